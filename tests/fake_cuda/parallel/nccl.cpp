// NcclCommunicators on the fake NCCL: what every communicator must do, and how failures reach those who wait.
#if __has_include(<nccl.h>)
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/comm/nccl_communicator.h"
#include "lockstep/runtime/order.h"
#include "lockstep/tensor/factory.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/device_sets.h"

using namespace lockstep;
using support::hosts;

namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;

// Each made by a thread of its own, as NCCL wants it.
Group make_group(const std::vector<Device>& devices, const NcclOptions& options,
                 const std::shared_ptr<Store>& store = make_local_store()) {
  Group group(devices.size());
  std::vector<std::exception_ptr> errors(devices.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        group[r] =
            make_nccl_communicator(store, static_cast<int>(r), static_cast<int>(devices.size()), devices[r], options);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return group;
}

conformance::Ranks ranks(bool check_collectives) {
  return {.name = check_collectives ? "NCCL, checked" : "NCCL",
          .run =
              [check_collectives](int count, Milliseconds timeout, const conformance::Body& body) {
                return conformance::run_on_threads(
                    make_group(hosts(count), {.timeout = timeout, .check_collectives = check_collectives}), body);
              },
          .most = 4,
          .rank_order = false};
}

}  // namespace

TEST_CASE("communicator: NCCL") {
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(ranks(false));
    }
}
#endif
