// Stores of each kind for tests, and threads that do something at the same time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"

namespace lockstep::test {

inline Deadline soon() { return Deadline::after(Milliseconds(60'000)); }  // for what comes at once when it works

// Runs `body(i)` in threads of its own and returns what they threw, "" for those that did not.
inline std::vector<std::string> in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> thrown(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(i)] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return thrown;
}

}  // namespace lockstep::test
