// DataParallel where memory is short, and every batch has another size.
#include <limits>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/memory/memory_sharing.h"
#include "lockstep/tensor/nn/conv.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct SmallImageNet : Module<SmallImageNet> {
  Conv2d first{3, 8, 3, {.padding = 1}}, second{8, 8, 3, {.padding = 1}};
  Linear head{8, 4};
  Tensor forward(const Tensor& x) const { return head(mean(relu(second(relu(first(x)))), {2, 3})); }
  void members(Members& m) override {
    m("first", first);
    m("second", second);
    m("head", head);
  }
};

struct LimitedTraining {
  std::vector<float> losses;
  std::uint64_t late_allocations = 0;  // raw ones, of the second half
  std::size_t most = 0;                // bytes in use at once on the device that had more, on top of what was before
};

std::uint64_t raw_calls(const std::vector<Device>& devices) {
  std::uint64_t count = 0;
  for (const Device device : devices) count += memory_stats(device).raw_allocations;
  return count;
}

// Each device may hold `room` bytes on top of what is in use; 0 for all there is.
LimitedTraining train_at_random_sizes(const std::vector<Device>& devices, double multiple, std::size_t room) {
  std::vector<std::size_t> before;
  for (const Device device : devices) {
    empty_cache(device);
    reset_peak(device);
    before.push_back(memory_stats(device).in_use_bytes);
    set_memory_sharing(device, multiple);
    set_memory_limit(device, room > 0 ? before.back() + room : 0);
  }
  LimitedTraining training;
  {
    constexpr int kSteps = 80;
    manual_seed(3);
    auto net = DataParallel(SmallImageNet{}, {.devices = devices});
    SGD sgd(net.parameters(), {.lr = 0.01});
    std::uint64_t draw = 5, at_half = 0;
    const auto side = [&] {
      draw = draw * 6364136223846793005u + 1442695040888963407u;
      return 12 + static_cast<std::int64_t>(draw >> 33) % 36;
    };
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) at_half = raw_calls(devices);
      const std::int64_t height = side(), width = side();
      sgd.zero_grad();
      const Tensor loss = mean(square(net(randn({6, 3, height, width}))));
      loss.backward();
      sgd.step();
      training.losses.push_back(loss.item<float>());
    }
    training.late_allocations = raw_calls(devices) - at_half;
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    training.most = std::max(training.most, memory_stats(devices[i]).peak_in_use_bytes - before[i]);
    set_memory_limit(devices[i], 0);
    set_memory_sharing(devices[i], 2);
    empty_cache(devices[i]);
  }
  return training;
}

}  // namespace

TEST_CASE("images of any size train under a limit without raw memory, and with the same bits") {
  const std::vector<Device> devices = first_devices(2);
  const LimitedTraining free = train_at_random_sizes(devices, 2, 0);
  const std::size_t room = 3 * free.most;

  const LimitedTraining shared = train_at_random_sizes(devices, 0, room);
  CHECK(shared.losses == free.losses);
  CHECK(shared.late_allocations == 0);

  // That the limit is one: without sharing segments come and go all the time.
  const LimitedTraining apart = train_at_random_sizes(devices, kNever, room);
  CHECK(apart.losses == free.losses);
  CHECK(apart.late_allocations > 0);
}
