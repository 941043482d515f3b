// Ranks as threads, for the tests of communicators within one process.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/peer_communicator.h"
#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/ops_math.h"
#include "support/catch.h"
#include "support/device_sets.h"

namespace comm_test {

using namespace lockstep;
using Group = std::vector<std::unique_ptr<Communicator>>;

// What became of each rank: "" when its function has returned.
struct Outcome {
  std::string message;
  bool comm_error = false;
  int rank = -1;  // of the CommError
  std::string collective;
};

// Runs the function with each communicator in a thread of its own and joins them.
inline std::vector<Outcome> on_ranks(const Group& group, const std::function<void(Communicator&)>& function) {
  std::vector<Outcome> outcomes(group.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r] {
      Outcome& outcome = outcomes[r];
      try {
        function(*group[r]);
      } catch (const CommError& error) {
        outcome = {error.what(), true, error.rank, error.collective};
      } catch (const std::exception& error) {
        outcome.message = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Throws what REQUIRE would report: threads of ranks make no assertions.
inline void expect(bool condition, const std::string& what) {
  if (!condition) throw Error("unexpected: " + what);
}

// "" when `text` contains all parts, else what is missing.
inline std::string missing(const std::string& text, std::initializer_list<std::string> parts) {
  std::string absent;
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos) absent += "'" + part + "' ";
  return absent.empty() ? "" : absent + "in: " + text;
}
// The message of the E that `body` throws; what happened instead otherwise.
template <class E, class F>
std::string message_of(F&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type of error: ") + error.what();
  }
  return "no error";
}

inline void check_all_well(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    INFO("rank " << r);
    CHECK(outcomes[r].message == "");
  }
}

}  // namespace comm_test
