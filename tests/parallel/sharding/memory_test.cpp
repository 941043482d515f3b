// What a rank holds, by the allocator's figures, and what a device's memory is enough for.
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "lockstep/runtime/memory/allocator.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;

namespace {

constexpr int kShardRanks = 4;

// Wide enough that the allocator's rounding and padding do not matter, with few rows: activations do not either.
struct Wide : Module<Wide> {
  static constexpr int kSize = 96, kDepth = 6;
  Layer in{3, kSize, 1};
  std::vector<Block> blocks;
  explicit Wide() {
    for (int i = 0; i < kDepth; ++i) blocks.emplace_back(kSize, 2 * kSize, 10 + static_cast<std::uint64_t>(i) * 2);
  }
  Tensor forward(const Tensor& x) const {
    Tensor h = in(x);
    for (const Block& block : blocks) h = block(h);
    return h;
  }
  void members(Members& m) override { m("in", in), m("blocks", blocks); }

  static std::size_t unit_bytes() { return (2 * kSize * 2 * kSize + 3 * kSize) * sizeof(float); }
  static std::size_t bytes() { return kDepth * unit_bytes() + 4 * kSize * sizeof(float); }
};

// The most that was in use on the rank's device beyond what there was before.
struct Peak {
  explicit Peak(Device on) : device(on), before(memory_stats(on).in_use_bytes) { reset_peak(on); }
  std::size_t bytes() const { return memory_stats(device).peak_in_use_bytes - before; }
  std::size_t now() const { return memory_stats(device).in_use_bytes - before; }
  Device device;
  std::size_t before;
};

RunRanksOptions own_devices() {
  std::vector<Device> devices;
  for (int r = 0; r < kShardRanks; ++r) devices.push_back(device_at(r));
  return {.devices = devices};
}

// The peaks of a training, from before the wrapper is made, on each rank; activations included.
std::vector<std::size_t> peaks(const FullyShardedOptions& options, int count) {
  return run_ranks(
      kShardRanks,
      [&](Communicator& c) {
        const Peak peak(c.device());
        std::size_t most = 0;
        FullyShardedDataParallel<Wide> net(Wide(), c, options);
        Adam optimizer(net.parameters(), {.lr = 0.01});
        for (int i = 0; i < count; ++i) {
          optimizer.zero_grad();
          loss_of(net(rows_of(c, i))).backward();
          optimizer.step();
          most = std::max(most, peak.bytes());
        }
        return most;
      },
      own_devices());
}

}  // namespace

TEST_CASE("a divided optimizer remembers at most 30 % of what one that is not does, and needs little more in a step") {
  struct Grown {
    std::size_t whole, part, most;  // most: at any allocation
  };
  const auto bytes = run_ranks(
      kShardRanks,
      [](Communicator& c) {
        Grown grown{};
        for (const bool divided : {false, true}) {
          DistributedDataParallel<Wide> net(Wide(), c);
          Adam plain(net.parameters(), {.lr = 0.01});
          loss_of(net(rows_of(c, 0))).backward();
          synchronize(c.device());
          const Peak peak(c.device());
          const auto step_twice = [&](auto& optimizer) {
            for (int i = 0; i < 2; ++i) optimizer.step(), synchronize(c.device());
            return peak.now();
          };
          if (divided) {
            ZeroRedundancyOptimizer optimizer(std::move(plain), c);
            grown.part = step_twice(optimizer);
            grown.most = peak.bytes();
          } else {
            grown.whole = step_twice(plain);
          }
        }
        return grown;
      },
      own_devices());
  for (const auto& [whole, part, most] : bytes) {
    CHECK(whole >= 2 * Wide::bytes());
    INFO(part << " and " << most << " of " << whole);
    CHECK(part * 100 <= whole * 30);
    CHECK(most <= part + Wide::bytes() * 30 / 100);  // what one rank broadcasts
  }
}

TEST_CASE("parameters, gradients and state of four ranks are at most 35 % each, and two units") {
  // Parameters, gradients and two moments of a replicated training.
  const std::size_t replicated = 4 * Wide::bytes();
  for (const std::size_t peak : peaks({.wrap = wrap_modules<Block>()}, 3)) {
    INFO(peak << " of " << replicated << ", a unit of " << Wide::unit_bytes());
    CHECK(peak <= replicated * 35 / 100 + 2 * Wide::unit_bytes());
  }
  // One unit has the whole model at its peak.
  for (const std::size_t peak : peaks({}, 1)) CHECK(peak > Wide::bytes() * 2);
}

TEST_CASE("a model that does not fit one device trains on four") {
  // Less than parameters and gradients of a replicated training, without any state.
  const std::size_t limit = 2 * Wide::bytes() + Wide::bytes() / 2;
  const auto train = [&](Communicator& c, auto&& body) {
    empty_cache(c.device());
    const MemoryStats stats = memory_stats(c.device());
    set_memory_limit(c.device(), stats.in_use_bytes + stats.cached_bytes + limit);
    struct Lift {
      Device device;
      ~Lift() { set_memory_limit(device, 0); }
    } lift{c.device()};
    body(c);
  };
  run_ranks(
      kShardRanks,
      [&](Communicator& c) {
        train(c, [](Communicator& rank) {
          FullyShardedDataParallel<Wide> net(Wide(), rank, {.wrap = wrap_modules<Block>()});
          Adam optimizer(net.parameters(), {.lr = 0.01});
          for (int i = 0; i < 2; ++i) {
            optimizer.zero_grad();
            loss_of(net(rows_of(rank, i))).backward();
            optimizer.step();
          }
        });
        return 0;
      },
      own_devices());
  bool fits = true;
  run_ranks(1,
            [&](Communicator& c) {
              train(c, [&](Communicator& rank) {
                try {
                  Wide net;
                  net.to(rank.device());
                  Adam optimizer(net.parameters(), {.lr = 0.01});
                  loss_of(net(rows_of(rank, 0))).backward();
                  optimizer.step();
                } catch (const OutOfMemory&) {
                  fits = false;
                }
              });
              drain(c.device());
              return 0;
            },
            {.devices = {device_at(0)}});
  CHECK(!fits);
}
