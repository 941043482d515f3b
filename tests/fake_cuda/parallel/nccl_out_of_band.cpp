// What NCCL ranks leave for each other in the store.
#if __has_include(<nccl.h>)
#include "lockstep/parallel/comm/nccl/nccl_out_of_band.h"

#include <atomic>
#include <thread>

#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/store/forwarding_store.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

// In which rank 1 finds what rank 0 has said of its first send only when rank 0 is done with what rank 1 has said of
// both.
class LateStore final : public lockstep::test::ForwardingStore {
 public:
  LateStore() : ForwardingStore(make_local_store()) {}
  std::string get(const std::string& key, Deadline deadline) override {
    if (key.ends_with("pair/0-1/1/0"))
      while (!rank0_is_done_) std::this_thread::yield();
    return next().get(key, deadline);
  }
  bool erase(const std::string& key) override {
    const bool erased = next().erase(key);
    if (key.ends_with("pair/0-1/1/0") || key.ends_with("pair/0-1/2/1")) rank0_is_done_ = true;
    return erased;
  }

 private:
  std::atomic<bool> rank0_is_done_{false};
};

}  // namespace

TEST_CASE("nccl: the words of a failure come back as they were") {
  for (const CommError& error :
       {CommError(-1, "store", "the store is gone"), CommError(3, "all_reduce", "first line\nsecond: line\n"),
        CommError(0, "send", ""), CommError(2, "abort", "rank 2 aborted: out of ideas"),
        CommError(2, "abort", "rank 2: rank 2 "), CommError(1'000'000, "make_nccl_communicator", "[x] rank 1: y")}) {
    const auto store = make_local_store();
    nccl::OutOfBand(store, 0, 2).report(error);
    const std::optional<CommError> got = nccl::OutOfBand(store, 1, 2).failure();
    REQUIRE(got);
    CHECK(got->rank == error.rank);
    CHECK(got->collective == error.collective);
    CHECK(std::string(got->what()) == error.what());
  }
}

TEST_CASE("nccl: where calls are compared, what a rank has said stays until the other has read it") {
  support::needs_devices(2);
  if (native_ordinal(support::device_at(0)) == native_ordinal(support::device_at(1)))
    support::skip("GPUs of their own expected, logical devices of one found");
  const auto store = std::make_shared<LateStore>();
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::string token = cat("process ", r);
      detail::process_token_override = &token;
      try {
        const auto comm = make_nccl_communicator(store, r, 2, support::device_at(r),
                                                 {.timeout = Milliseconds(60'000), .check_collectives = true});
        const auto two = [&](const Tensor& tensor) {
          return r == 0 ? Transfer::to(1, tensor) : Transfer::from(0, tensor);
        };
        const TensorOptions options{.dtype = DType::f32, .device = comm->device()};
        comm->transfer(std::vector{two(ones({3}, options)), two(ones({3}, options))});
        synchronize(current_stream(comm->device()));
      } catch (const std::exception& error) {
        said[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : said) CHECK(each == "");
}
#endif
