// Training with DataParallel: steps, running statistics, what is moved, random numbers, hooks.
#include <atomic>
#include <thread>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct Normed : Module<Normed> {
  Linear in{3, 8};
  BatchNorm1d norm{8};
  Linear out{8, 2};
  Tensor forward(const Tensor& x) const { return out(relu(norm(in(x)))); }
  void members(Members& m) override { m("in", in), m("norm", norm), m("out", out); }
};

std::uint64_t raw_allocations(const std::vector<Device>& devices) {
  std::uint64_t count = 0;
  for (const Device device : devices) count += memory_stats(device).raw_allocations;
  return count;
}

}  // namespace

TEST_CASE("steps with changing batch sizes: the parameters of one device") {
  for (const auto& devices : device_sets()) {
    Mlp reference;
    auto net = DataParallel(Mlp{}, {.devices = devices});
    SGD one(reference.parameters(), {.lr = 0.1, .momentum = 0.9}), many(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    std::uint64_t seed = 20;
    for (const std::int64_t batch : {8, 5, 16, 1, 7, 8, 3}) {
      const Tensor x = noise({batch, 3}, ++seed), t = noise({batch, 2}, ++seed);
      one.zero_grad();
      many.zero_grad();
      mse_loss(reference(x), t).backward();
      mse_loss(net(x), t.to(net.output_device())).backward();
      one.step();
      many.step();
    }
    const auto expected = reference.parameters(), got = net.parameters();
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(largest_difference(got[i].tensor(), expected[i].tensor()) < 1e-10);
  }
}

TEST_CASE("running statistics: those of devices[0] persist") {
  Normed module = seeded<Normed>(3);
  auto net = DataParallel(deep_copy(module), {.devices = devices_at({3, 1})});
  const Tensor x = noise({8, 3}, 1);
  // On home alone, with the first half of the batch.
  for (int i = 0; i < 3; ++i) {
    module(x.narrow(0, 0, 4));
    net(x);
  }
  CHECK(largest_difference(net.module().norm.running_mean.tensor(), module.norm.running_mean.tensor()) < 1e-12);
  CHECK(largest_difference(net.module().norm.running_var.tensor(), module.norm.running_var.tensor()) < 1e-12);
  CHECK(net.module().norm.num_batches_tracked.tensor().item<std::int64_t>() == 3);
  // The other replica sees them too, after its own were lost.
  net.eval();
  module.eval();
  CHECK(largest_difference(net(x), module(x)) < 1e-10);
}

TEST_CASE("steady-state inference replicates nothing and allocates no raw memory") {
  for (const auto& devices : device_sets()) {
    auto net = DataParallel(seeded<Normed>(3), {.devices = devices});
    net.eval();
    const NoGrad off;
    const Tensor x = noise({16, 3}, 1, devices[0]);
    for (int i = 0; i < 3; ++i) net(x);
    const std::uint64_t raw = raw_allocations(devices);
    for (int i = 0; i < 10; ++i) {
      net(x);
      CHECK(net.stats().last.replicate.bytes == 0);
    }
    CHECK(raw_allocations(devices) == raw);
  }
}

TEST_CASE("training allocates no raw memory after warm-up") {
  support::needs_devices(5);
  for (const auto& devices : {first_devices(2), devices_at({4, 0, 2})}) {
    auto net = DataParallel(seeded<Normed>(3), {.devices = devices});
    SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    const Tensor x = noise({12, 3}, 1, devices[0]), t = noise({12, 2}, 2, devices[0]);
    const auto step = [&] {
      optimizer.zero_grad();
      mse_loss(net(x), t).backward();
      optimizer.step();
    };
    for (int i = 0; i < 5; ++i) step();
    const std::uint64_t raw = raw_allocations(devices);
    for (int i = 0; i < 10; ++i) step();
    CHECK(raw_allocations(devices) == raw);
  }
}

TEST_CASE("after a step exactly the changed parameters and buffers are copied to every mirror") {
  support::needs_devices(8);
  for (const auto& devices : {first_devices(2), first_devices(3), devices_at({4, 0, 2, 7, 1})}) {
    auto net = DataParallel(seeded<Normed>(3), {.devices = devices});
    net.module().out.weight.set_requires_grad(false);
    std::vector<Parameter> trained;
    std::uint64_t changing = 0;
    for (const Parameter& parameter : net.parameters()) {
      if (!parameter.requires_grad()) continue;
      trained.push_back(parameter);
      changing += parameter.tensor().bytes();
    }
    for (const Parameter& buffer : net.buffers()) changing += buffer.tensor().bytes();
    SGD optimizer(trained, {.lr = 0.1});
    const std::uint64_t mirrors = devices.size() - 1;
    const Tensor x = noise({10, 3}, 1, devices[0]);
    net(x);
    for (int i = 0; i < 5; ++i) {
      optimizer.zero_grad();
      const Tensor y = net(x);
      if (i > 0) CHECK(net.stats().last.replicate.bytes == changing * mirrors);
      (y * y).sum().backward();
      optimizer.step();
    }
    // In evaluation once more, then never.
    net.eval();
    net(x);
    CHECK(net.stats().last.replicate.bytes == changing * mirrors);
    net(x);
    CHECK(net.stats().last.replicate.bytes == 0);
  }
}

TEST_CASE("stats count the gradients that are summed, not what lies between them") {
  support::needs_devices(3);
  struct Uneven : Module<Uneven> {
    Parameter a, b, c;
    Uneven(std::int64_t large, std::int64_t small)
        : a(zeros({large}, {.dtype = DType::f64})),
          b(zeros({small}, {.dtype = DType::f64})),
          c(zeros({large}, {.dtype = DType::f64})) {}
    Tensor forward(const Tensor& x) const {
      const auto on = [&](const Parameter& p) { return p.on(x.device()).sum(); };
      return x * (on(a) + on(b) + on(c));
    }
    void members(Members& m) override { m("a", a), m("b", b), m("c", c); }
  };
  const auto reduced = [](Uneven module, int devices) {
    const auto net = DataParallel(std::move(module), {.devices = first_devices(devices)});
    net(counting({devices, 1})).sum().backward();
    return net.stats().last.reduce.bytes;
  };
  // Little, or one other replica: all comes home from each.
  CHECK(reduced({3, 1}, 3) == 2 * (3 + 1 + 3) * 8);
  CHECK(reduced({100'000, 1}, 2) == 200'001 * 8);
  // Much: home's own goes to the second device, the sums from there to the third, and from there home.
  CHECK(reduced({100'000, 1}, 3) == 3 * 200'001 * 8);
}

TEST_CASE("stats count bytes and time by phase, of the last call and in total") {
  auto net = DataParallel(Scale({1, 2}), {.devices = first_devices(2)});
  CHECK(net.stats().calls == 0);
  const Tensor x = counting({4, 2}, device_at(0));
  const Tensor y = net(x);
  DataParallelStats stats = net.stats();
  CHECK(stats.calls == 1);
  CHECK(stats.last.scatter.bytes == 2 * 2 * 8);  // the second half goes there,
  CHECK(stats.last.replicate.bytes == 2 * 8);    // with the weight,
  CHECK(stats.last.gather.bytes == 2 * 2 * 8);   // and comes back
  CHECK(stats.last.apply.bytes == 0);
  CHECK(stats.last.reduce.bytes == 0);
  y.sum().backward();
  CHECK(net.stats().last.reduce.bytes == 2 * 8);
  net(x).sum().backward();
  stats = net.stats();
  CHECK(stats.calls == 2);
  CHECK(stats.last.replicate.bytes == 0);
  CHECK(stats.last.reduce.bytes == 2 * 8);
  CHECK(stats.total.scatter.bytes == 2 * 2 * 2 * 8);
  CHECK(stats.total.replicate.bytes == 2 * 8);
  CHECK(stats.total.reduce.bytes == 2 * 2 * 8);
  for (const PhaseStats& phase :
       {stats.last.scatter, stats.last.replicate, stats.last.apply, stats.last.gather, stats.last.reduce}) {
    CHECK(phase.nanoseconds > 0);
  }
}

TEST_CASE("random masks depend on seed, replica and call, not on timing") {
  support::needs_devices(5);
  struct Dropping : Module<Dropping> {
    std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
    Tensor forward(const Tensor& x) const {
      std::this_thread::sleep_for(std::chrono::microseconds(*calls * 7919 % 5 * 100));
      ++*calls;
      const Tensor y = dropout(x, 0.5, is_training());
      std::this_thread::sleep_for(std::chrono::microseconds(*calls * 7919 % 3 * 100));
      return dropout(y, 0.5, is_training());
    }
  };
  for (const auto& devices : {first_devices(1), first_devices(3), devices_at({4, 0})}) {
    const auto net = DataParallel(Dropping{}, {.devices = devices});
    const Tensor x = ones({12, 16}, {.dtype = DType::f64});
    std::vector<Doubles> first;
    for (int run = 0; run < 10; ++run) {
      manual_seed(99);
      const std::vector<Doubles> masks{values(net(x)), values(net(x))};
      if (run == 0) first = masks;
      CHECK(masks == first);
    }
    CHECK(first[0] != first[1]);  // the next call draws others
    const std::size_t rows = 12 / devices.size() * 16;
    if (devices.size() > 1) {  // and so does the next replica
      CHECK(Doubles(first[0].begin(), first[0].begin() + rows) !=
            Doubles(first[0].begin() + rows, first[0].begin() + 2 * rows));
    }
  }
  manual_seed(0);
}

TEST_CASE("hooks of modules run once per replica, on its thread, in order per device") {
  struct Event {
    std::string what;
    std::int64_t rows;
    Device device, thread;
    bool operator==(const Event&) const = default;
  };
  struct Recorder {
    std::mutex mutex;
    std::vector<Event> events;
    void add(std::string what, const Tensor& x) {
      const DeviceThread* thread = DeviceThread::current();
      const std::lock_guard lock(mutex);
      events.push_back({std::move(what), x.size(0), x.device(), thread ? thread->device() : Device::cpu()});
    }
  } recorder;
  auto net = DataParallel(Mlp{}, {.devices = devices_at({3, 1, 2})});
  const auto listen = [&](ModuleBase& module, const std::string& name) {
    module.register_forward_pre_hook([&recorder, name](const ModuleBase&, std::span<const Tensor> inputs) {
      recorder.add("before " + name, inputs[0]);
    });
    module.register_forward_hook(
        [&recorder, name](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor> outputs) {
          recorder.add("after " + name, outputs[0]);
        });
    module.register_backward_hook([&recorder, name](const ModuleBase&, std::span<const Tensor> gradients) {
      recorder.add("back " + name, gradients[0]);
    });
  };
  listen(net.module(), "net");
  listen(net.module().first, "first");
  listen(net.module().second, "second");
  for (int run = 0; run < 5; ++run) {
    recorder.events.clear();
    net(noise({7, 3}, 1)).sum().backward();
    for (const auto& [device, rows] :
         std::vector<std::pair<Device, std::int64_t>>{{device_at(3), 3}, {device_at(1), 3}, {device_at(2), 1}}) {
      std::vector<Event> there, expected;
      for (const Event& event : recorder.events) {
        if (event.device == device) there.push_back(event);
      }
      for (const char* what : {"before net", "before first", "after first", "before second", "after second",
                               "after net", "back net", "back second", "back first"}) {
        // A wrapper hook and a member hook on the same output: both see it; which first is not settled.
        expected.push_back({what, rows, device, device});
      }
      REQUIRE(there.size() == expected.size());
      for (std::size_t i = 0; i < 6; ++i) CHECK(there[i] == expected[i]);
      CHECK(there.back() == expected.back());
      for (std::size_t i = 6; i < 9; ++i) CHECK(std::count(there.begin(), there.end(), expected[i]) == 1);
    }
  }
}

TEST_CASE("hooks of the wrapper itself run once per call, in the caller's thread") {
  auto net = DataParallel(Mlp{}, {.devices = first_devices(3)});
  std::vector<std::int64_t> rows;
  bool here = true;
  net.register_forward_hook([&](const ModuleBase&, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
    here = here && DeviceThread::current() == nullptr;
    rows.push_back(inputs[0].size(0));
    rows.push_back(outputs[0].size(0));
  });
  net(noise({7, 3}, 1));
  CHECK(here);
  CHECK(rows == std::vector<std::int64_t>{7, 7});
}
