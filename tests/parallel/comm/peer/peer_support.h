// Ranks as threads, for the tests of communicators within one process.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"

namespace comm_test {

using namespace lockstep;
using support::message_of;
using support::missing;
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

inline void check_all_well(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    INFO("rank " << r);
    CHECK(outcomes[r].message == "");
  }
}

}  // namespace comm_test
