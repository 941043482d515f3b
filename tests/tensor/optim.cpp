// SGD against plain loops, its state, and clipping.
#include <cmath>

#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "support/catch.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

using Doubles = std::vector<double>;
Doubles values(const Tensor& x) { return x.to_vector<double>(); }

Parameter parameter(const Doubles& at, DType dtype = DType::f64, Device device = Device::cpu()) {
  return Parameter(from_data(at, {static_cast<std::int64_t>(at.size())}, {.dtype = dtype, .device = device}));
}
void set_grad(const Parameter& p, const Doubles& gradient) {
  p.set_grad(from_data(gradient, p.shape(), {.dtype = p.dtype(), .device = p.device()}));
}

// The recursion of the header, element by element.
struct Plain {
  SgdOptions o;
  Doubles p, v;
  bool first = true;
  void step(const Doubles& gradient) {
    v.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      double g = (o.maximize ? -gradient[i] : gradient[i]) + o.weight_decay * p[i];
      if (o.momentum > 0) {
        v[i] = first ? g : o.momentum * v[i] + (1 - o.dampening) * g;
        g = o.nesterov ? g + o.momentum * v[i] : v[i];
      }
      p[i] -= o.lr * g;
    }
    first = false;
  }
};

void check_close(const Doubles& got, const Doubles& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(want[i]).epsilon(tolerance).margin(tolerance));
}

}  // namespace

TEST_CASE("SGD follows its recursion for every option") {
  const SgdOptions all[] = {
      {.lr = 0.1},
      {.lr = 0.1, .momentum = 0.9},
      {.lr = 0.1, .momentum = 0.9, .dampening = 0.3},
      {.lr = 0.1, .momentum = 0.9, .nesterov = true},
      {.lr = 0.1, .weight_decay = 0.01},
      {.lr = 0.1, .momentum = 0.5, .weight_decay = 0.01, .nesterov = true, .maximize = true},
      {.lr = 0.1, .maximize = true},
      {.lr = 0},
  };
  for (const SgdOptions& options : all) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Doubles start{1, -2, 3, 0.5, -0.25};
      // Several devices and dtypes in one optimizer.
      const Parameter p = parameter(start, dtype), other = parameter(start, DType::f64, Device::host(1));
      SGD optimizer({p, other}, options);
      Plain plain{options, start, {}};
      for (int i = 0; i < 4; ++i) {
        const Doubles gradient{0.5, 0.25, -1, 2, 0.125 * i};
        set_grad(p, gradient);
        set_grad(other, gradient);
        const std::uint64_t version = p.tensor().version();
        optimizer.step();
        CHECK(p.tensor().version() > version);
        plain.step(gradient);
      }
      INFO(to_string(dtype));
      check_close(values(p.tensor()), plain.p, dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 3e-2);
      check_close(values(other.tensor()), plain.p, 1e-14);
    }
  }
}

TEST_CASE("SGD leaves what has no gradient alone") {
  const Parameter used = parameter({1}), unused = parameter({2});
  SGD optimizer({used, unused}, {.lr = 1, .momentum = 0.9});
  set_grad(used, {1});
  const std::uint64_t version = unused.tensor().version();
  optimizer.step();
  CHECK(values(used.tensor()) == Doubles{0});
  CHECK(values(unused.tensor()) == Doubles{2});
  CHECK(unused.tensor().version() == version);
  CHECK(optimizer.state_dict().size() == 1);
  // Its momentum begins with its own first gradient.
  set_grad(unused, {4});
  used.zero_grad();
  optimizer.step();
  CHECK(values(unused.tensor()) == Doubles{-2});
  CHECK(values(used.tensor()) == Doubles{0});
  optimizer.zero_grad();
  CHECK_FALSE(unused.grad().defined());
  optimizer.step();
  CHECK(values(unused.tensor()) == Doubles{-2});
}

TEST_CASE("SGD trains a network, and a step is outside the graph") {
  manual_seed(1);
  Sequential net(Linear(2, 16), Tanh(), Linear(16, 1));
  SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const Tensor x = randn({64, 2}), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
  double first = 0, last = 0;
  for (int i = 0; i < 300; ++i) {
    const Tensor loss = mse_loss(net(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  CHECK(last < first / 20);
  for (const Parameter& p : net.parameters()) CHECK(p.tensor().is_leaf());
  manual_seed(0);
}

TEST_CASE("SGD's state goes on where it was saved") {
  const Parameter a = parameter({1, 2}), b = parameter({3}), c = parameter({1, 2}), d = parameter({3});
  const SgdOptions options{.lr = 0.1, .momentum = 0.9};
  SGD one({a, b}, options);
  const auto step = [](SGD& optimizer, double scale) {
    for (const Parameter& p : optimizer.parameters())
      set_grad(p, Doubles(static_cast<std::size_t>(p.tensor().count()), scale));
    optimizer.step();
  };
  step(one, 1);
  step(one, 2);
  const auto state = one.state_dict();
  REQUIRE(state.size() == 2);
  CHECK(state[0].name == "momentum.0");
  CHECK(state[1].name == "momentum.1");
  SGD two({c, d}, options);
  c.assign(a.tensor());
  d.assign(b.tensor());
  two.load_state_dict(state);
  step(one, 3);
  step(two, 3);
  CHECK(values(a.tensor()) == values(c.tensor()));
  CHECK(values(b.tensor()) == values(d.tensor()));
  CHECK(values(state[0].tensor) == Doubles{2.9, 2.9});  // a copy: the steps since have not changed it

  CHECK_THROWS_WITH(two.load_state_dict({{"momentum.2", zeros({1})}}), Contains("momentum.2"));
  CHECK_THROWS_AS(two.load_state_dict({{"momentum.x", zeros({1})}}), InvalidArgument);
  CHECK_THROWS_AS(two.load_state_dict({{"momentum.", zeros({1})}}), InvalidArgument);
  CHECK_THROWS_AS(two.load_state_dict({{"velocity.0", zeros({1})}}), InvalidArgument);
  CHECK_THROWS_WITH(two.load_state_dict({{"momentum.0", zeros({3})}}), Contains("[2]") && Contains("[3]"));
  CHECK(two.state_dict().size() == 2);
  two.load_state_dict({});
  CHECK(two.state_dict().empty());
}

TEST_CASE("SGD follows a module that is moved") {
  Linear net(2, 1);
  SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const auto step = [&](Device device) {
    optimizer.zero_grad();
    net(ones({1, 2}, {.device = device})).sum().backward();
    optimizer.step();
  };
  const Doubles before = values(net.weight.tensor());
  step(Device::cpu());
  net.to(Device::host(2));
  step(Device::host(2));
  const Doubles after = values(net.weight.tensor());
  check_close(after, {before[0] - 0.29, before[1] - 0.29}, 1e-5);  // 0.1 (1 + 1.9)
  CHECK(optimizer.state_dict()[0].tensor.device() == Device::host(2));
}

TEST_CASE("optimizers refuse what makes no sense") {
  const Parameter p = parameter({1});
  CHECK_THROWS_WITH(SGD({}), Contains("[SGD]") && Contains("empty"));
  CHECK_THROWS_WITH(SGD({p, p}), Contains("once"));
  CHECK_THROWS_AS(SGD({Parameter()}), InvalidArgument);
  CHECK_THROWS_WITH(SGD({p}, {.lr = -1}), Contains("learning rate") && Contains("-1"));
  CHECK_THROWS_AS(SGD({p}, {.lr = NAN}), InvalidArgument);
  CHECK_THROWS_AS(SGD({p}, {.momentum = -0.1}), InvalidArgument);
  CHECK_THROWS_AS(SGD({p}, {.weight_decay = -0.1}), InvalidArgument);
  CHECK_THROWS_WITH(SGD({p}, {.nesterov = true}), Contains("nesterov"));
  CHECK_THROWS_AS(SGD({p}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), InvalidArgument);
  SGD optimizer({p}, {.lr = 0.5});
  CHECK(optimizer.lr() == 0.5);
  CHECK_THROWS_AS(optimizer.set_lr(-1), InvalidArgument);
  optimizer.set_lr(0.25);
  set_grad(p, {1});
  optimizer.step();
  CHECK(values(p.tensor()) == Doubles{0.75});
}

TEST_CASE("clipping by norm") {
  const Parameter a = parameter({0, 0}), b = parameter({0}, DType::f32, Device::host(1)), unused = parameter({0});
  const std::vector<Parameter> all{a, b, unused};
  set_grad(a, {3, 0});
  set_grad(b, {4});
  CHECK(clip_grad_norm(all, 10).item<double>() == Approx(5));
  CHECK(values(a.grad()) == Doubles{3, 0});
  const Tensor total = clip_grad_norm(all, 1);
  CHECK(total.item<double>() == Approx(5));
  CHECK(total.device() == Device::cpu());
  check_close(values(a.grad()), {0.6, 0}, 1e-6);
  check_close(values(b.grad()), {0.8}, 1e-6);
  CHECK(clip_grad_norm({{unused}}, 1).item<double>() == 0);
  set_grad(unused, {0});
  CHECK(clip_grad_norm({{unused}}, 1).item<double>() == 0);
  CHECK(values(unused.grad()) == Doubles{0});
  CHECK_THROWS_AS(clip_grad_norm(all, -1), InvalidArgument);
  // The squares of these do not fit their dtype.
  const Parameter half = parameter({0, 0}, DType::f16);
  set_grad(half, {3000, 4000});
  CHECK(clip_grad_norm({{half}}, 5).item<double>() == Approx(5000));
  check_close(values(half.grad()), {3, 4}, 1e-2);
}

TEST_CASE("clipping by value") {
  const Parameter a = parameter({0, 0, 0}), unused = parameter({0});
  set_grad(a, {3, -0.5, -7});
  const std::uint64_t version = a.grad().version();
  clip_grad_value(std::vector<Parameter>{a, unused}, 1);
  CHECK(values(a.grad()) == Doubles{1, -0.5, -1});
  CHECK(a.grad().version() > version);
  CHECK_THROWS_AS(clip_grad_value(std::vector<Parameter>{a}, -1), InvalidArgument);
}
