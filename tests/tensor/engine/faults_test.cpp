// The engine when it is used in odd ways, or wrongly.
#include <atomic>
#include <memory>
#include <thread>

#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/engine/engine.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/tensors.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::first_devices;
using support::leaf;

namespace {

using Doubles = std::vector<double>;

// An operation of somebody's own, whose backward does as it is told.
struct OwnNode : NodeOf<1> {
  std::function<Tensor(const Tensor&)> rule;
  const char* name() const override { return "own"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = rule(grad_outputs[0]);
  }
};
Tensor own(const Tensor& x, std::function<Tensor(const Tensor&)> rule) {
  Tensor y = x.detach().clone();
  if (auto* node = record<OwnNode>(y, x)) node->rule = std::move(rule);
  return y;
}

}  // namespace

TEST_CASE("autograd: grad of a result leaves the graph before that result alone") {
  Tensor x = leaf({3});
  const Tensor h = x * x, y = h * 2.0;
  CHECK(grad(y, {h})[0].item<double>() == 2);
  h.backward();
  CHECK(x.grad().item<double>() == 6);
  // Nor does what lies before it run.
  const Tensor odd = own(x, [](const Tensor&) -> Tensor { throw Error("ran"); });
  CHECK(grad(odd * 5.0, {odd})[0].item<double>() == 5);
}

TEST_CASE("autograd: grad of a result and of what it was computed from, in any order") {
  Tensor x = leaf({3}), other = leaf({5});
  const auto check = [](const std::vector<Tensor>& found, const Doubles& wanted) {
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK((found[i].defined() && found[i].item<double>() == wanted[i]));
  };
  const Tensor h = x * x, y = h * 2.0, deeper = h * other, z = deeper * deeper;
  const GradOptions again{.retain_graph = true};
  check(grad(y, {h, x}, again), {2, 12});
  check(grad(y, {x, h}, again), {12, 2});
  check(grad(y, {y, h, x}, again), {1, 2, 12});
  check(grad(z, {deeper, h, other, x}, again), {90, 450, 810, 2700});
  check(grad(z, {x, other, h, deeper}, again), {2700, 810, 450, 90});
  check(grad(z, {deeper, x}, again), {90, 2700});
}

TEST_CASE("autograd: hooks may remove themselves and add others while they run") {
  Tensor x = leaf({1});
  std::vector<int> calls;
  std::uint64_t first = 0;
  first = x.register_hook([&](Tensor&) {
    calls.push_back(1);
    for (int i = 0; i < 20; ++i) x.register_hook([&calls, i](Tensor&) { calls.push_back(10 + i); });
    x.remove_hook(first);
    calls.push_back(2);
  });
  std::uint64_t after = 0;
  after = x.register_post_accumulate_hook([&] {
    x.remove_hook(after);
    for (int i = 0; i < 20; ++i) x.register_post_accumulate_hook([&calls] { calls.push_back(40); });
    calls.push_back(3);
  });
  (x * 2.0).backward();
  CHECK(calls == std::vector<int>{1, 2, 3});
  calls.clear();
  (x * 2.0).backward();
  CHECK(calls.size() == 40);
}

TEST_CASE("autograd: what a hook or an operation of one's own gives must be like the tensor") {
  Tensor x = leaf({1, 2});
  const auto hooked = [&](TensorHook hook) {
    const Tensor h = x * 2.0;
    h.register_hook(std::move(hook));
    h.sum().backward();
  };
  CHECK_THROWS_WITH(hooked([](Tensor& g) { g = g.sum(); }), Contains("[2]") && Contains("'mul'"));
  CHECK_THROWS_WITH(hooked([](Tensor& g) { g = g.to(DType::f32); }), Contains("f64") && Contains("f32"));
  CHECK_THROWS_WITH(hooked([](Tensor& g) { g = g.to(first_devices(1)[0]); }), Contains("cpu") && Contains(":0"));
  CHECK_THROWS_WITH(hooked([](Tensor& g) { g = Tensor(); }), Contains("undefined"));
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH(own(x, [](const Tensor& g) { return g.sum(); }).sum().backward(),
                    Contains("f64[2]") && Contains("f64[]"));
  CHECK_THROWS_WITH(own(x, [](const Tensor& g) { return g.to(DType::f32); }).sum().backward(),
                    Contains("f64[2]") && Contains("f32[2]"));
  x.set_grad(ones({2}, {.dtype = DType::f64}));
  CHECK_THROWS_WITH(own(x, [](const Tensor& g) { return g.sum(); }).sum().backward(), Contains("f64[2]"));
  CHECK(x.grad().to_vector<double>() == Doubles{1, 1});
}

TEST_CASE("autograd: the hook of a replicated parameter is held to the same") {
  support::needs_devices(2);
  struct Net : Module<Net> {
    Parameter weight{ones({2}, {.dtype = DType::f64})};
    void members(Members& m) override { m("weight", weight); }
  };
  Net net;
  net.to(first_devices(1)[0]);
  ModuleSlots slots(net);
  slots.refresh(first_devices(2));
  const auto loss = [&] {
    Tensor total = net.weight.on(first_devices(2)[0]).sum();
    return total + net.weight.on(first_devices(2)[1]).sum().to(first_devices(2)[0]);
  };
  std::uint64_t id = net.weight.tensor().register_hook([](Tensor& g) { g = g.sum(); });
  CHECK_THROWS_WITH(loss().backward(), Contains("weight") && Contains("[2]"));
  net.weight.tensor().remove_hook(id);
  id = net.weight.tensor().register_hook([&](Tensor& g) {
    g = g * 3.0;
    net.weight.tensor().remove_hook(id);
  });
  loss().backward();
  CHECK(net.weight.grad().to_vector<double>() == Doubles{6, 6});
}

TEST_CASE("autograd: a graph two hundred thousand operations deep may be dropped by another thread") {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 200'000; ++i) y = -y;
  y.backward({}, {.retain_graph = true});
  CHECK(x.grad().item<double>() == 1);
  std::thread([last = std::move(y)]() mutable { last = Tensor(); }).join();
}

TEST_CASE("autograd: an exception in an operation's backward leaves everything usable, on one device and on several") {
  support::needs_devices(2);
  for (const bool several : {false, true}) {
    Tensor x = leaf({1, 2}, first_devices(1)[0]);
    bool fails = true;
    const auto rule = [&](const Tensor& g) {
      if (fails) throw std::runtime_error("not today");
      return g * 2.0;
    };
    const auto make = [&] {
      const Tensor there = several ? x.to(first_devices(2)[1]) : x;
      return own(there * 1.0, rule).to(first_devices(1)[0]).sum();
    };
    const Tensor y = make();
    CHECK_THROWS_WITH(y.backward({}, {.retain_graph = true}), "not today");
    CHECK_FALSE(x.grad().defined());
    fails = false;
    y.backward();  // the very same graph
    CHECK(x.grad().to_vector<double>() == Doubles{2, 2});
    make().backward();
    CHECK(x.grad().to_vector<double>() == Doubles{4, 4});
  }
}

TEST_CASE("autograd: threads run one graph at once, and a hook runs its own graph again") {
  Tensor x = leaf({3});
  const Tensor h = x * x, y = h * h;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) y.backward({}, {.retain_graph = true});
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(x.grad().item<double>() == 100 * 4 * 27);
  x.zero_grad();
  double inner = 0;
  int depth = 0;
  h.register_hook([&](Tensor&) {
    if (depth++ == 0) inner = grad(y, {x}, {.retain_graph = true})[0].item<double>();
  });
  y.backward({}, {.retain_graph = true});
  CHECK(inner == 108);
  CHECK(x.grad().item<double>() == 108);
}

TEST_CASE("autograd: mistakes are told with both sides") {
  Tensor x = leaf({1, 2});
  CHECK_THROWS_WITH((x * 2.0).backward(ones({2}, {.dtype = DType::f32})), Contains("f32[2]") && Contains("f64[2]"));
  CHECK_THROWS_WITH((x * 2.0).backward(ones({2}, {.dtype = DType::f64, .device = first_devices(1)[0]})),
                    Contains("cpu") && Contains(":0"));
  CHECK_THROWS_WITH(zeros({3}, {.dtype = DType::i64}).set_requires_grad(), Contains("i64[3]"));
  CHECK_THROWS_WITH(x.set_grad(ones({3}, {.dtype = DType::f64})), Contains("[2]") && Contains("[3]"));
  CHECK_THROWS_WITH((x * 2.0).set_grad(ones({2}, {.dtype = DType::f64})), Contains("leaf"));
  CHECK_THROWS_WITH((x * 2.0).set_requires_grad(false), Contains("mul"));
  const Tensor empty = x.narrow(0, 0, 0) * 2.0;
  CHECK_THROWS_WITH(empty.backward(), Contains("f64[0]") && Contains("one element"));
}

TEST_CASE("autograd: a graph dies in the thread that lets go of it, not in a device's") {
  support::needs_devices(2);
  const std::vector<Device> devices = first_devices(2);
  // Says in which thread it dies, as the code of a plug-in would notice that is unloaded after its backward.
  struct Witness {
    std::shared_ptr<std::atomic<std::thread::id>> died = std::make_shared<std::atomic<std::thread::id>>();
    std::shared_ptr<void> token() const {
      return std::shared_ptr<void>(nullptr, [died = died](void*) { *died = std::this_thread::get_id(); });
    }
  };
  const auto dies_elsewhere = [&](int caller, bool fails) {
    const Witness rule, callback;
    {
      Tensor x = leaf({1, 2}, devices[static_cast<std::size_t>(caller % 2)]);
      const Tensor there = x.to(devices[static_cast<std::size_t>((caller + 1) % 2)]);
      const Tensor y = own(there, [fails, held = rule.token(), &callback](const Tensor& g) -> Tensor {
        queue_backward_callback([held = callback.token()] {});
        return fails ? throw Error("refused") : g * 2.0;
      });
      const Tensor loss = y.to(Device::cpu()).sum();
      try {
        loss.backward();
      } catch (const Error&) {
      }
    }
    const auto here = std::this_thread::get_id();
    return *rule.died != here || *callback.died != here;
  };
  // Several callers, more than there are cores for: threads are interrupted everywhere.
  std::atomic<int> elsewhere = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 16; ++caller)
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 1000; ++i) elsewhere += dies_elsewhere(caller, i % 10 == 9) ? 1 : 0;
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(elsewhere == 0);
}
