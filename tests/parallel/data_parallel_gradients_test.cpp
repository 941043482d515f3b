// The gradients of a DataParallel: sums over the replicas, in replica order, exactly.
#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "lockstep/tensor/nn/layers.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct Small : Module<Small> {
  Parameter weight, frozen{tensor({2}, {1}), false}, unused{tensor({1, 1}, {2})};
  explicit Small(Doubles w) : weight(tensor(w, {static_cast<std::int64_t>(w.size())})) {}
  Tensor forward(const Tensor& x) const { return x * weight.on(x.device()) * frozen.on(x.device()); }
  void members(Members& m) override { m("weight", weight), m("frozen", frozen), m("unused", unused); }
};

Tensor penalty(const Tensor& x, const Tensor& y) {
  const Tensor g = grad(y.sum(), {x}, {.create_graph = true})[0];
  return (g * g).sum() + (y * y).sum().to(g.device());
}
std::vector<Doubles> gradients(const ModuleBase& net) {
  std::vector<Doubles> result;
  for (const Parameter& parameter : net.parameters()) {
    result.push_back(parameter.grad().defined() ? values(parameter.grad()) : Doubles{});
  }
  return result;
}

}  // namespace

TEST_CASE("gradients are summed exactly, for every device set and batch size, step after step") {
  for (const auto& devices : device_sets()) {
    auto net = DataParallel(Small({3, 5, 7}), {.devices = devices});
    Doubles total(3);
    for (const std::int64_t batch : {7, 1, 16, 3, 9, 8, 2}) {
      // Integers, distinct per replica and element.
      const Tensor x = counting({batch, 3}, Device::cpu(), 1.0 + static_cast<double>(batch)),
                   c = counting({batch, 3}, devices[0], 11);
      (net(x) * c).sum().backward();
      const Doubles xs = values(x), cs = values(c);
      for (std::size_t i = 0; i < xs.size(); ++i) total[i % 3] += 2 * xs[i] * cs[i];
      CHECK(values(net.module().weight.grad()) == total);
    }
    CHECK(net.module().weight.grad().device() == devices[0]);
    CHECK_FALSE(net.module().frozen.grad().defined());
    CHECK_FALSE(net.module().unused.grad().defined());  // undefined, not zero
    net.zero_grad();
    CHECK_FALSE(net.module().weight.grad().defined());
  }
}

TEST_CASE("gradients of layers are the sums of what each piece of the batch gives, in replica order, to the bit") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& devices : device_sets()) {
      CAPTURE(to_string(dtype), devices.size());
      // Below and beyond what a device keeps until the end of a backward, and what is summed by one thread.
      Sequential net(Linear(200, 201), Tanh(), Linear(201, 400), Tanh(), Linear(400, 3));
      net.to(devices[0]);
      net.to(dtype);
      auto parallel = DataParallel(net, {.devices = devices});
      const std::int64_t rows = 3 * static_cast<std::int64_t>(devices.size());
      for (int step = 0; step < 3; ++step) {  // into nothing, onto a gradient, into nothing
        const Tensor x = noise({rows, 200}, 7 + static_cast<std::uint64_t>(step), devices[0]).to(dtype);
        if (step == 2) parallel.zero_grad();
        std::vector<Tensor> before;
        for (const Parameter& parameter : net.parameters())
          before.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
        parallel(x).sum().backward();
        std::vector<Tensor> sums(before.size());
        for (std::int64_t r = 0; r < rows; r += 3) {
          Sequential alone = deep_copy(net);
          alone.zero_grad();
          alone(x.narrow(0, r, 3)).sum().backward();
          for (std::size_t p = 0; p < sums.size(); ++p) {
            const Tensor gradient = alone.parameters()[p].grad().detach();
            sums[p] = sums[p].defined() ? sums[p] + gradient : gradient;
          }
        }
        for (std::size_t p = 0; p < sums.size(); ++p) {
          const Tensor expected = before[p].defined() ? before[p] + sums[p] : sums[p];
          CHECK(values(net.parameters()[p].grad()) == values(expected));
        }
      }
    }
  }
}

TEST_CASE("where home reads gradients in place, replicas keep no memory for them") {
  const auto devices = first_devices(3);
  const auto in_use = [&](Device device) {
    synchronize(device);
    return memory_stats(device).in_use_bytes;
  };
  auto net = DataParallel(Linear(700, 500), {.devices = devices});
  const Tensor x = noise({6, 700}, 1).to(DType::f32);
  net(x).detach();
  const std::size_t bytes = net.module().weight.tensor().bytes(), before = in_use(devices[1]);
  for (int step = 0; step < 2; ++step) net(x).sum().backward();
  CHECK(net.module().weight.grad().defined());
  CHECK((in_use(devices[1]) < before + bytes / 2) == sums_in_place(devices[0]));
}

TEST_CASE("the sum over the replicas is formed in replica order, home first") {
  support::needs_devices(8);
  const float big = 1e8f;
  struct Case {
    std::vector<Device> devices;
    std::vector<float> rows;
    double sum;  // in f32, from the first to the last
  };
  for (const Case& one :
       {Case{devices_at({0, 1, 2}), {big, 1, -big}, 0}, Case{devices_at({0, 1, 2}), {big, -big, 1}, 1},
        Case{devices_at({0, 1, 2}), {1, big, -big}, 0}, Case{devices_at({3, 1, 2}), {big, 1, -big}, 0},
        Case{devices_at({3, 1, 2}), {big, -big, 1}, 1}, Case{devices_at({2, 1, 0}), {big, -big, 1}, 1},
        Case{devices_at({4, 7, 0, 5}), {big, -big, 1, 1}, 2}, Case{devices_at({4, 7, 0, 5}), {1, big, -big, 1}, 1}}) {
    struct F32 : Module<F32> {
      Parameter weight{ones({1}, {.dtype = DType::f32})};
      Tensor forward(const Tensor& x) const { return x * weight.on(x.device()); }
      void members(Members& m) override { m("weight", weight); }
    };
    const auto net = DataParallel(F32{}, {.devices = one.devices});
    for (int i = 0; i < 20; ++i) {
      net(from_data(one.rows, {static_cast<std::int64_t>(one.rows.size()), 1})).sum().backward();
      CHECK(net.module().weight.grad().item<double>() == one.sum);
      net.module().weight.zero_grad();
    }
  }
}

TEST_CASE("against one device within 1e-10; run to run and wrapper to wrapper the same bits") {
  for (const auto& devices : device_sets()) {
    Mlp module;
    const Tensor x = noise({13, 3}, 5), c = noise({13, 2}, 6);
    (module(x) * c).sum().backward();
    const std::vector<Doubles> expected = gradients(module);
    std::vector<Doubles> first;
    for (int run = 0; run < 5; ++run) {
      const auto net = DataParallel(Mlp{}, {.devices = devices});
      (net(x) * c.to(devices[0])).sum().backward();
      const std::vector<Doubles> got = gradients(net);
      if (run == 0) first = got;
      CHECK(got == first);
      for (std::size_t p = 0; p < got.size(); ++p) {
        for (std::size_t i = 0; i < got[p].size(); ++i) CHECK(std::abs(got[p][i] - expected[p][i]) < 1e-10);
      }
    }
  }
}

TEST_CASE("the gradient reaches the inputs") {
  for (const auto& devices : device_sets()) {
    const auto net = DataParallel(Small({3, 5, 7}), {.devices = devices});
    Tensor x = counting({5, 3});
    x.set_requires_grad();
    (net(x) * counting({5, 3}, devices[0])).sum().backward();
    Doubles expected = values(counting({5, 3}));
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] *= 2 * Doubles{3, 5, 7}[i % 3];
    CHECK(x.grad().device() == Device::cpu());
    CHECK(values(x.grad()) == expected);
  }
}

TEST_CASE("double backward through the whole thing") {
  for (const auto& devices : device_sets()) {
    Mlp module;
    Tensor x = noise({7, 3}, 8), y = noise({7, 3}, 8);
    x.set_requires_grad();
    y.set_requires_grad();
    penalty(x, module(x)).backward();
    const auto net = DataParallel(Mlp{}, {.devices = devices});
    penalty(y, net(y)).backward();
    const std::vector<Doubles> expected = gradients(module), got = gradients(net);
    for (std::size_t p = 0; p < got.size(); ++p) {
      REQUIRE(got[p].size() == expected[p].size());
      for (std::size_t i = 0; i < got[p].size(); ++i) CHECK(std::abs(got[p][i] - expected[p][i]) < 1e-10);
    }
    CHECK(largest_difference(x.grad(), y.grad()) < 1e-10);
  }
}

TEST_CASE("gradients of the parameters themselves can be differentiated") {
  for (const auto& devices : device_sets()) {
    const auto curvature = [](const auto& net, const Tensor& x) {
      const Tensor y = net(x);
      std::vector<Tensor> parameters;
      for (const Parameter& parameter : net.parameters()) parameters.push_back(parameter.tensor());
      Tensor sum;
      for (const Tensor& g : grad((y * y * y).sum(), parameters, {.create_graph = true})) {
        sum = sum.defined() ? sum + (g * g).sum() : (g * g).sum();
      }
      sum.backward();
      return gradients(net);
    };
    const Tensor x = noise({5, 3}, 9);
    const std::vector<Doubles> expected = curvature(Mlp{}, x),
                               got = curvature(DataParallel(Mlp{}, {.devices = devices}), x);
    for (std::size_t p = 0; p < got.size(); ++p) {
      for (std::size_t i = 0; i < got[p].size(); ++i) CHECK(std::abs(got[p][i] - expected[p][i]) < 1e-10);
    }
  }
}

TEST_CASE("under no-grad nothing is recorded; frozen modules give no graph") {
  auto net = DataParallel(Mlp{}, {.devices = first_devices(3)});
  {
    const NoGrad off;
    CHECK_FALSE(net(noise({5, 3}, 1)).requires_grad());
  }
  CHECK(net(noise({5, 3}, 1)).requires_grad());
  net.set_requires_grad(false);
  CHECK_FALSE(net(noise({5, 3}, 1)).requires_grad());
}

TEST_CASE("tied parameters: both uses in every replica add up once") {
  struct Tied : Module<Tied> {
    Parameter weight{tensor({2, 3}, {2})};
    Parameter again = weight;
    Tensor forward(const Tensor& x) const { return x * weight.on(x.device()) + x * x * again.on(x.device()); }
    void members(Members& m) override { m("weight", weight), m("again", again); }
  };
  for (const auto& devices : device_sets()) {
    const auto net = DataParallel(Tied{}, {.devices = devices});
    net(counting({4, 2})).sum().backward();
    CHECK(values(net.module().weight.grad()) ==
          Doubles{1 + 3 + 5 + 7 + 1 + 9 + 25 + 49, 2 + 4 + 6 + 8 + 4 + 16 + 36 + 64});
  }
}

TEST_CASE("a parameter used by some replicas only") {
  support::needs_devices(3);
  struct Picky : Module<Picky> {
    Parameter always{tensor({2}, {1})}, sometimes{tensor({3}, {1})};
    Tensor forward(const Tensor& x) const {
      const Tensor y = x * always.on(x.device());
      return x.device() == device_at(1) ? y * sometimes.on(x.device()) : y;
    }
    void members(Members& m) override { m("always", always), m("sometimes", sometimes); }
  };
  const auto net = DataParallel(Picky{}, {.devices = first_devices(3)});
  net(counting({3})).sum().backward();
  CHECK(values(net.module().always.grad()) == Doubles{1 + 2 * 3 + 3});
  CHECK(values(net.module().sometimes.grad()) == Doubles{2 * 2});
}

TEST_CASE("buffers that require gradients") {
  struct Learned : Module<Learned> {
    Buffer scale{tensor({2}, {1}), true};
    Tensor forward(const Tensor& x) const { return x * scale.on(x.device()); }
    void members(Members& m) override { m("scale", scale); }
  };
  const auto net = DataParallel(Learned{}, {.devices = first_devices(3)});
  net(counting({6})).sum().backward();
  CHECK(values(net.module().scale.grad()) == Doubles{21});
}

TEST_CASE("gradient hooks of a parameter see the sum over the replicas once") {
  const auto net = DataParallel(Small({1, 1, 1}), {.devices = first_devices(3)});
  int calls = 0;
  Doubles seen;
  net.module().weight.tensor().register_hook([&](Tensor& gradient) {
    ++calls;
    seen = values(gradient);
    gradient = gradient * 10;
  });
  net(counting({3, 3})).sum().backward();
  CHECK(calls == 1);
  CHECK(seen == Doubles{2 * (1 + 4 + 7), 2 * (2 + 5 + 8), 2 * (3 + 6 + 9)});
  CHECK(values(net.module().weight.grad()) == Doubles{240, 300, 360});
}

TEST_CASE("create_graph over replicas sums in one order, whichever replica is first") {
  // f32 numbers whose sum depends on the order. Each backward lets the replicas go on in another order: the hook of a
  // replica's first mirror waits for the replicas before it, the one of its second says that the first has arrived.
  struct Pair : Module<Pair> {
    Parameter a{ones({1}, {.dtype = DType::f32})}, b{ones({1}, {.dtype = DType::f32})};
    Tensor forward(const Tensor& x) const { return x * a.on(x.device()) + x * b.on(x.device()); }
    void members(Members& m) override { m("a", a), m("b", b); }
  };
  const auto devices = first_devices(5);
  const auto net = DataParallel(Pair{}, {.devices = devices});
  const std::vector<float> numbers{1e8f, 1, -1e8f, 3, 7};
  const Tensor x = from_data(numbers, {5, 1});
  std::vector<std::size_t> order{1, 2, 3, 4};
  std::set<float> sums;
  do {
    float sum = numbers[0];
    for (const std::size_t replica : order) sum += numbers[replica];
    sums.insert(sum);
  } while (std::next_permutation(order.begin(), order.end()));
  REQUIRE(sums.size() > 2);
  std::set<std::pair<double, double>> seen;
  std::mutex mutex;
  std::condition_variable changed;
  do {
    const Tensor loss = net(x).sum();
    std::size_t turn = 0;
    std::vector<int> calls(devices.size());
    bool in_time = true;
    std::vector<std::pair<Tensor, std::uint64_t>> hooks;
    for (std::size_t replica = 1; replica < devices.size(); ++replica) {
      for (const Parameter& parameter : {net.module().a, net.module().b}) {
        const Tensor mirror = parameter.on(devices[replica]);
        hooks.emplace_back(mirror, mirror.register_hook([&, replica](Tensor&) {
          std::unique_lock lock(mutex);
          if (calls[replica]++ == 0) {
            in_time =
                changed.wait_for(lock, std::chrono::minutes(1), [&] { return order[turn] == replica; }) && in_time;
          } else {
            turn = std::min(turn + 1, order.size() - 1);
            changed.notify_all();
          }
        }));
      }
    }
    loss.backward({}, {.create_graph = true});
    CHECK(in_time);
    CHECK(calls == std::vector<int>{0, 2, 2, 2, 2});
    for (const auto& [mirror, id] : hooks) mirror.remove_hook(id);
    seen.insert({net.module().a.grad().item<double>(), net.module().b.grad().item<double>()});
    for (const Parameter& parameter : net.parameters()) parameter.zero_grad();
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(seen.size() == 1);
}
