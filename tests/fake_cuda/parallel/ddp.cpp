// Ranks that are CUDA devices train as one device does: the scenarios of tests/parallel/ddp.
#include <cuda_runtime_api.h>

#include <exception>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/ddp/bucket_cap.h"
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "parallel/ddp/scenarios.h"
#include "parallel/sharding/support.h"
#include "support/devices.h"

using namespace parallel_test;

namespace {

using Make = decltype(RunRanksOptions::make);

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

const Make kPeers = [](std::span<const Device> devices, Milliseconds timeout) {
  return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
};

const Make kNccl = [](std::span<const Device> devices, Milliseconds timeout) {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::unique_ptr<Communicator>> group(devices.size());
  std::vector<std::exception_ptr> errors(devices.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        group[r] = make_nccl_communicator(store, static_cast<int>(r), static_cast<int>(devices.size()), devices[r],
                                          {.timeout = timeout});
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return group;
};

void check_training(const Make& make, std::initializer_list<int> counts) {
  for (const int ranks : counts) {
    std::vector<Device> devices;
    for (int r = 0; r < ranks; ++r) devices.push_back(support::device_at(ranks - 1 - r));
    int number = 0;
    for (const Scenario& scenario : scenarios()) {
      // A few of them: the host's devices go through all; what many ranks add is not in the scenario.
      if (number++ % (ranks > 2 || kSanitized ? 6 : 2) != 0) continue;
      INFO(scenario.name << ", " << ranks << " ranks");
      const auto result = run_ranks(ranks, scenario.rank, {.devices = devices, .make = make});
      CHECK(different(result) == 0);
      CHECK(largest_difference(result[0], scenario.whole(ranks)) <= scenario.tolerance);
    }
  }
}

}  // namespace

TEST_CASE("ddp over peer copies trains as one device does") { check_training(kPeers, {2, 8}); }

TEST_CASE("ddp reduces on streams of the highest priority, and computes on others") {
  const std::vector<Device> devices = support::first_devices(2);
  const auto priorities =
      run_ranks(2,
                [](Communicator& communicator) {
                  std::vector<int> seen;
                  const auto look = [&] {
                    int priority = 1;
                    const Stream stream = current_stream(communicator.device());
                    (void)cudaStreamGetPriority(
                        static_cast<cudaStream_t>(stream.backend().native_stream(stream.handle())), &priority);
                    seen.push_back(priority);
                  };
                  DistributedDataParallel<Affine> net(Affine{3, 2, 1}, communicator);
                  net.register_comm_hook({"looks", [&](GradBucket&) {
                                            look();
                                            return Work();
                                          }});
                  look();
                  loss_of(net(counting({2, 3}).to(communicator.device()))).backward();
                  look();
                  return seen;
                },
                {.devices = devices, .make = kPeers});
  int least = 0, greatest = 0;
  REQUIRE(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
  REQUIRE(greatest < least);
  for (const auto& seen : priorities) CHECK(seen == std::vector<int>{least, greatest, least});
}

#if __has_include(<nccl.h>)
// The fake's GPUs reach each other, in slots of PCIe.
TEST_CASE("the size of buckets that ddp chooses on GPUs is that of the links between them") {
  struct Wide : Module<Wide> {
    Parameter weight{zeros({4'000'000})};
    Tensor forward(const Tensor& x) const { return x; }
    void members(Members& m) override { m("weight", weight); }
  };
  const Device first = support::device_at(0), second = support::device_at(1);
  if (native_ordinal(first) == native_ordinal(second)) support::skip("2 GPUs expected, 1 found");
  const auto chosen =
      run_ranks(2,
                [](Communicator& communicator) {
                  const DistributedDataParallel<Wide> net(Wide(), communicator, {.bucket_cap_mb = kAutoBucketCap});
                  return net.logging_data().bucket_cap_bytes;
                },
                {.devices = {first, second}, .make = kPeers});
  const auto of = [](detail::HostLink link) {
    return detail::choose_bucket_cap({.bytes = 16'000'000, .ranks = 2, .links = {link, 25}});
  };
  CHECK(of(detail::HostLink::pcie) != of(detail::HostLink::nvlink));
  CHECK(chosen == std::vector(2, of(detail::HostLink::pcie)));
}

TEST_CASE("ddp over NCCL trains as one device does") {
  if (native_ordinal(Device::cuda(0)) == native_ordinal(Device::cuda(support::device_count() - 1)))
    support::skip("GPUs of their own expected, logical devices of one found");
#ifdef __SANITIZE_THREAD__  // half the time: more ranks have the same threads
  check_training(kNccl, {2, 4});
#else
  check_training(kNccl, {1, 2, 8});
#endif
}

// NCCL adds in an order of its own: to rounding.
TEST_CASE("fully sharded ranks over NCCL train as replicated ones do") {
  if (native_ordinal(Device::cuda(0)) == native_ordinal(Device::cuda(support::device_count() - 1)))
    support::skip("GPUs of their own expected, logical devices of one found");
  const RunRanksOptions options{.devices = support::first_devices(4), .make = kNccl};
  const auto expected = run_ranks(
      4, [](Communicator& c) { return train_replicated(c, Tower(), adam(), 4); }, options);
  const auto result = run_ranks(
      4, [](Communicator& c) { return train_sharded(c, Tower(), adam(), 4, {.wrap = wrap_modules<Block>()}); },
      options);
  for (std::size_t r = 0; r < 4; ++r) CHECK(largest_difference(result[r], expected[r]) <= 1e-4);
}

TEST_CASE("a divided optimizer over NCCL trains as the optimizer alone does") {
  if (native_ordinal(Device::cuda(0)) == native_ordinal(Device::cuda(support::device_count() - 1)))
    support::skip("GPUs of their own expected, logical devices of one found");
  const RunRanksOptions options{.devices = support::first_devices(4), .make = kNccl};
  const auto expected = run_ranks(
      4, [](Communicator& c) { return train_replicated(c, Tower(), adam(), 4); }, options);
  const auto result = run_ranks(
      4,
      [](Communicator& c) {
        DistributedDataParallel<Tower> net(Tower(), c, small_buckets());
        ZeroRedundancyOptimizer optimizer(Adam(net.parameters(), {.lr = 0.01}), c);
        for (int i = 0; i < 4; ++i) {
          optimizer.zero_grad();
          loss_of(net(rows_of(c, i))).backward();
          optimizer.step();
        }
        if (optimizer.whole_state_dict(net.module()).empty()) throw Error("a state on every rank was asked for");
        return all_parameters(net.module());
      },
      options);
  for (std::size_t r = 0; r < 4; ++r) CHECK(largest_difference(result[r], expected[r]) <= 1e-4);
}
#endif
