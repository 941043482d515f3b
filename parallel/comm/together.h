// Sends and receives that go on at the same time, where each occupies a thread. Private to the library.
#pragma once

#include <exception>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/collective.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::detail {

// Calls `perform` for every transfer: those of one pair and direction one after the other, the others at the same time,
// in threads of their own but for the last. Returns when all have ended; throws what the first has thrown. It costs a
// thread per pair and direction but one, which is started and joined in every call. The program's signals are not for
// them.
template <class Perform>
void perform_together(const std::vector<Collective>& transfers, Perform&& perform) {
  std::map<std::pair<int, Collective::Kind>, std::vector<const Collective*>> lines;
  for (const Collective& each : transfers) lines[{each.peer, each.kind}].push_back(&each);
  std::vector<std::exception_ptr> errors(lines.size());
  std::vector<std::thread> threads;
  std::size_t line = 0;
  for (const auto& entry : lines) {
    const auto run = [&perform, &line_of = entry.second, &error = errors[line]]() noexcept {
      try {
        for (const Collective* each : line_of) perform(*each);
      } catch (...) {
        error = std::current_exception();
      }
    };
    if (++line == lines.size()) {
      run();
      break;
    }
    try {
      const BlockedSignals blocked;
      threads.emplace_back(run);
    } catch (...) {  // the system has no thread left: in turn, then, which may wait for the deadline
      run();
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::detail
