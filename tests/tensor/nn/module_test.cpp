// Modules: names, traversal, modes, hooks, copies, substitution, state by name.
#include "lockstep/tensor/nn/module.h"

#include <atomic>
#include <thread>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/tensors.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::device_name;
using support::f64_vector;

namespace {

struct Scale : Module<Scale> {
  Parameter weight{f64_vector({2, 3})};
  Buffer calls{f64_vector({0})};
  Tensor forward(const Tensor& x) const { return x * weight.on(x.device()); }
  void members(Members& m) override { m("weight", weight), m("calls", calls); }
};

struct TwoScales : Module<TwoScales> {
  Scale first, second;
  std::vector<Scale> more{Scale{}, Scale{}};
  std::optional<Parameter> extra;
  Parameter absent;
  Tensor forward(const Tensor& x) const { return second(first(x)); }
  void members(Members& m) override {
    m("first", first), m("second", second), m("more", more), m("extra", extra), m("absent", absent);
  }
};

std::vector<std::string> names(const std::vector<NamedParameter>& list) {
  std::vector<std::string> result;
  for (const auto& entry : list) result.push_back(entry.name);
  return result;
}

}  // namespace

TEST_CASE("members give names, in order, absent ones left out") {
  TwoScales net;
  CHECK(names(net.named_parameters()) ==
        std::vector<std::string>{"first.weight", "second.weight", "more.0.weight", "more.1.weight"});
  CHECK(names(net.named_buffers()).front() == "first.calls");
  net.extra = Parameter(f64_vector({1}));
  CHECK(names(net.named_parameters()).back() == "extra");
}

TEST_CASE("a parameter shares the elements of a contiguous value, and copies those of another") {
  Tensor value = from_data(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3});
  const Parameter shared(value), copied(value.t());
  const Buffer buffer(value), part(value.select(1, 0));
  value.fill_(7);
  CHECK(shared.tensor().to_vector<double>() == std::vector<double>(6, 7));
  CHECK(buffer.tensor().data() == value.data());
  CHECK(copied.tensor().to_vector<double>() == std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(part.tensor().to_vector<double>() == std::vector<double>{1, 4});
  CHECK(copied.tensor().contiguous_layout());
}

TEST_CASE("tied parameters are listed once and saved under each name") {
  TwoScales net;
  net.second.weight = net.first.weight;
  CHECK(net.parameters().size() == 3);
  CHECK(net.state_dict().size() == 8);
  Tensor y = net(f64_vector({1, 1})).sum();  // w^2
  y.backward();
  CHECK(net.first.weight.grad().to_vector<double>() == std::vector<double>{4, 6});
}

TEST_CASE("copies share parameters and mode, deep copies do not, and keep ties") {
  TwoScales net;
  net.second.weight = net.first.weight;
  TwoScales shared = net, own = deep_copy(net);
  net.eval();
  CHECK_FALSE(shared.is_training());
  CHECK(own.is_training());
  CHECK(shared.first.weight == net.first.weight);
  CHECK_FALSE(own.first.weight == net.first.weight);
  CHECK(own.first.weight == own.second.weight);
  net.first.weight.assign(f64_vector({9, 9}));
  CHECK(own.first.weight.tensor().to_vector<double>() == std::vector<double>{2, 3});
  CHECK(own.first.weight.requires_grad());
}

TEST_CASE("mode: a default per module, for subtrees, overridden by a scope, not changed inside a call") {
  TwoScales net;
  net.first.eval();
  CHECK_FALSE(net.first.is_training());
  CHECK(net.second.is_training());
  {
    TrainingScope scope(false);
    CHECK_FALSE(net.second.is_training());
  }
  CHECK(net.second.is_training());
  TwoScales* self = &net;
  net.first.register_forward_pre_hook([self](const ModuleBase&, std::span<const Tensor>) { self->eval(); });
  CHECK_THROWS_WITH(net(f64_vector({1, 1})), Contains("TrainingScope"));
  CHECK(net.second.is_training());
}

TEST_CASE("hooks run around forward and with the gradients of the results") {
  TwoScales net;
  std::vector<std::string> order;
  net.register_forward_pre_hook(
      [&](const ModuleBase&, std::span<const Tensor> in) { order.push_back(cat("pre ", in.size())); });
  const auto id =
      net.first.register_forward_hook([&](const ModuleBase&, std::span<const Tensor> in, std::span<const Tensor> out) {
        order.push_back(cat("first ", in.size(), out[0].to_vector<double>()[1] == 3 ? " 3" : " ?"));
      });
  net.first.register_backward_hook([&](const ModuleBase& m, std::span<const Tensor> g) {
    CHECK(&m == &net.first);
    order.push_back(cat("back ", g[0].to_vector<double>()[0]));
  });
  net(f64_vector({1, 1})).sum().backward();
  CHECK(order == std::vector<std::string>{"pre 1", "first 1 3", "back 2"});
  CHECK(net.first.weight.grad().to_vector<double>() == std::vector<double>{2, 3});
  net.first.remove_hook(id);
  order.clear();
  net(f64_vector({1, 1}));
  CHECK(order == std::vector<std::string>{"pre 1"});
}

TEST_CASE("hooks may remove themselves and others, and add more, while they run") {
  TwoScales net;
  std::vector<std::string> order;
  std::uint64_t once = 0, other = 0;
  once = net.register_forward_hook([&](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor>) {
    order.push_back("once");
    net.remove_hook(once);
    net.remove_hook(other);
    for (int i = 0; i < 20; ++i)  // the list moves in memory
      net.register_forward_pre_hook([&order](const ModuleBase&, std::span<const Tensor>) { order.push_back("new"); });
  });
  other = net.register_forward_hook(
      [&](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor>) { order.push_back("other"); });
  std::uint64_t back = 0;
  back = net.register_backward_hook([&](const ModuleBase&, std::span<const Tensor>) {
    order.push_back("back");
    net.remove_hook(back);
  });
  const Tensor first = net(f64_vector({1, 1}));
  CHECK(order == std::vector<std::string>{"once", "other"});  // a call goes on with the hooks that it began with
  order.clear();
  const Tensor second = net(f64_vector({1, 1}));
  CHECK(order == std::vector<std::string>(20, "new"));
  order.clear();
  first.sum().backward();
  second.sum().backward();
  CHECK(order == std::vector<std::string>{"back"});
  CHECK_THROWS_WITH(net.register_forward_hook(ForwardHook()), Contains("empty"));
}

TEST_CASE("hooks are removed by one thread while others call the module") {
  const TwoScales net;
  TwoScales handle = net;  // shares the hooks
  std::atomic<bool> go_on{true};
  std::atomic<int> seen{0};
  std::thread caller([&] {
    const NoGrad no_grad;
    while (go_on) net(f64_vector({1, 1}));
  });
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  for (int i = 0; i < 300 || (seen == 0 && !patience.passed()); ++i)
    handle.remove_hook(handle.register_forward_pre_hook([&](const ModuleBase&, std::span<const Tensor>) { ++seen; }));
  go_on = false;
  caller.join();
  CHECK(seen > 0);
  seen = 0;
  net(f64_vector({1, 1}));
  CHECK(seen == 0);
}

TEST_CASE("load_state_dict changes nothing unless everything fits") {
  TwoScales net;
  auto state = deep_copy(net).state_dict();
  for (auto& entry : state) {
    entry.tensor = entry.tensor.detach();
    entry.tensor.fill_(5);
  }
  auto wrong = state;
  wrong[0].name = "frist.weight";
  CHECK_THROWS_WITH(net.load_state_dict(wrong),
                    Contains("missing: first.weight") && Contains("unexpected: frist.weight"));
  CHECK(net.second.weight.tensor().to_vector<double>() == std::vector<double>{2, 3});
  net.load_state_dict(wrong, false);
  CHECK(net.first.weight.tensor().to_vector<double>() == std::vector<double>{2, 3});
  CHECK(net.second.weight.tensor().to_vector<double>() == std::vector<double>{5, 5});
  wrong = state;
  wrong[2].tensor = f64_vector({1, 2, 3});
  CHECK_THROWS_WITH(net.load_state_dict(wrong, false), Contains("second.weight (expected [2], got [3])"));
  net.load_state_dict(state);
  CHECK(net.first.weight.tensor().to_vector<double>() == std::vector<double>{5, 5});
}

TEST_CASE("a parameter that members never lists is an error at the first backward into it") {
  struct Forgetful : Module<Forgetful> {
    Parameter listed{f64_vector({1, 1})}, forgotten{f64_vector({1, 1})};
    Scale child;  // not listed either
    bool use_child = false;
    Tensor forward(const Tensor& x) const {
      return use_child ? child(x * listed.on(x.device())) : x * listed.on(x.device()) * forgotten.on(x.device());
    }
    void members(Members& m) override { m("listed", listed); }
  };
  Forgetful net;
  net.use_child = GENERATE(false, true);
  Tensor y = net(f64_vector({1, 2})).sum();
  CHECK_THROWS_WITH(y.backward({}, {.retain_graph = true}), Contains("no module's members() lists it"));
  CHECK_FALSE(net.listed.grad().defined());
  // An error leaves nothing claimed behind.
  Scale other;
  other(f64_vector({1, 1})).sum().backward();
  CHECK(other.weight.grad().defined());
}

TEST_CASE("substitute computes with other tensors, differentiably, and nests") {
  TwoScales net;
  Tensor fast = f64_vector({10, 20});
  fast.set_requires_grad();
  std::vector<Tensor> tensors;
  for (const Parameter& p : net.parameters()) tensors.push_back(p.tensor());
  tensors[0] = fast;
  Tensor y;
  {
    auto scope = substitute(net, tensors);
    y = net(f64_vector({1, 1}));
    {
      SubstituteScope inner({net.first.weight}, {f64_vector({0, 0})});
      CHECK(net(f64_vector({1, 1})).to_vector<double>() == std::vector<double>{0, 0});
    }
  }
  CHECK(y.to_vector<double>() == std::vector<double>{20, 60});
  CHECK(net(f64_vector({1, 1})).to_vector<double>() == std::vector<double>{4, 9});
  y.sum().backward();
  CHECK(fast.grad().to_vector<double>() == std::vector<double>{2, 3});
  CHECK_FALSE(net.first.weight.grad().defined());
  CHECK(net.second.weight.grad().defined());
  CHECK_THROWS_WITH(substitute(net, {fast}), Contains("4 parameters"));
}

TEST_CASE("moving a module moves parameters, buffers and gradients") {
  TwoScales net;
  net(f64_vector({1, 1})).sum().backward();
  net.to(device_at(1));
  CHECK(net.first.weight.device() == device_at(1));
  CHECK(net.first.calls.device() == device_at(1));
  CHECK(net.first.weight.grad().device() == device_at(1));
  net(f64_vector({1, 1}).to(device_at(1))).sum().backward();
  CHECK(net.first.weight.grad().to_vector<double>() == std::vector<double>{4, 6});
  CHECK_THROWS_WITH(net(f64_vector({1, 1})), Contains("'first.weight'") && Contains("cpu") && Contains(device_name(1)));
  CHECK_THROWS_AS(net.to(device_at(99)), InvalidArgument);
  net.to(DType::f32);
  CHECK(net.first.weight.dtype() == DType::f32);
  CHECK(net.first.weight.grad().dtype() == DType::f32);
}

TEST_CASE("freezing keeps the gradient and stops new ones") {
  Scale scale;
  scale(f64_vector({1, 1})).sum().backward();
  scale.set_requires_grad(false);
  CHECK_FALSE(scale(f64_vector({1, 1})).requires_grad());
  scale.set_requires_grad(true);
  CHECK(scale.weight.grad().to_vector<double>() == std::vector<double>{1, 1});
}

TEST_CASE("an uninitialised parameter has a shape but no elements") {
  Parameter p = Parameter::uninitialized({2}, DType::f32);
  CHECK(p.shape() == Shape{2});
  CHECK_THROWS_WITH(p.on(Device::cpu()), Contains("uninitialised"));
  p.assign(f64_vector({1, 2}));
  CHECK(p.on(Device::cpu()).to_vector<float>() == std::vector<float>{1, 2});
  CHECK(p.requires_grad());
}
