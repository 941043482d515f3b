// What all optimizers do, by the example of SGD: values, groups, parameters on several devices.
#include "lockstep/tensor/optim/sgd.h"

#include <cmath>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
#include "support/devices.h"
#include "support/watched.h"
#include "tensor/optim/optim_golden.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using support::device_at;

TEST_CASE("SGD follows PyTorch for every option") {
  int number = 0;
  for (const SgdCase& known : kSgdCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      if (support::watched() && number++ % 5 != 0) continue;
      // Several devices and dtypes in one optimizer.
      const Parameter p = parameter(kStart, dtype), other = parameter(kStart, DType::f64, device_at(1));
      SGD optimizer({p, other}, known.options);
      for (int t = 1; t <= kSteps; ++t) {
        Doubles gradient;
        for (std::int64_t i = 0; i < p.tensor().count(); ++i) gradient.push_back(golden_gradient(i, t));
        set_grad(p, gradient);
        set_grad(other, gradient);
        const std::uint64_t version = p.tensor().version();
        optimizer.step();
        CHECK(p.tensor().version() > version);
      }
      INFO(to_string(dtype) << " " << known.options.momentum << " " << known.options.dampening << " "
                            << known.options.weight_decay << known.options.nesterov << known.options.maximize);
      check_close(values(p.tensor()), known.result, tolerance(dtype));
      check_close(values(other.tensor()), known.result, tolerance(DType::f64));
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
  const auto momenta = [&] {
    std::vector<std::string> names;
    for (const NamedTensor& entry : optimizer.state_dict())
      if (entry.name.ends_with(".momentum_buffer")) names.push_back(entry.name);
    return names;
  };
  CHECK(momenta() == std::vector<std::string>{"state.0.momentum_buffer"});
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
  net.to(device_at(2));
  step(device_at(2));
  const Doubles after = values(net.weight.tensor());
  check_close(after, {before[0] - 0.29, before[1] - 0.29}, 1e-5);  // 0.1 (1 + 1.9)
  for (const NamedTensor& entry : optimizer.state_dict())
    if (entry.name.ends_with(".momentum_buffer")) CHECK(entry.tensor.device() == device_at(2));
}

TEST_CASE("optimizers refuse what makes no sense") {
  const Parameter p = parameter({1});
  CHECK_THROWS_WITH(SGD(std::vector<Parameter>{}), Contains("[SGD]") && Contains("empty"));
  CHECK_THROWS_WITH(SGD(std::vector<SgdGroup>{}), Contains("[SGD]") && Contains("empty"));
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

TEST_CASE("groups have options of their own") {
  const Parameter a = parameter({1}), b = parameter({1}), c = parameter({1}), d = parameter({1}, DType::f32);
  SGD optimizer({{.parameters = {a}}, {.parameters = {b, d}, .lr = 0.01, .momentum = 0}}, {.lr = 0.1, .momentum = 0.5});
  const auto step = [&] {
    for (const Parameter& p : optimizer.parameters()) set_grad(p, {1});
    optimizer.step();
  };
  step(), step();
  CHECK(values(a.tensor())[0] == Approx(1 - 0.1 * (1 + 1.5)));
  CHECK(values(b.tensor())[0] == Approx(1 - 0.02));
  CHECK(values(d.tensor())[0] == Approx(1 - 0.02));
  CHECK(optimizer.group_count() == 2);
  CHECK(optimizer.lr() == 0.1);
  CHECK(optimizer.lr(1) == 0.01);
  CHECK(optimizer.options(1).momentum == 0);
  CHECK(optimizer.group_parameters(1).size() == 2);

  // A group that comes later has the defaults, and a momentum that begins with its own first gradient.
  optimizer.add_group({.parameters = {c}, .lr = 1});
  CHECK(optimizer.options(2).momentum == 0.5);
  optimizer.set_lr(0, 0);
  SgdOptions changed = optimizer.options(1);
  changed.weight_decay = 1;
  optimizer.set_options(1, changed);
  const double a_before = values(a.tensor())[0], b_before = values(b.tensor())[0];
  step();
  CHECK(values(a.tensor())[0] == a_before);
  CHECK(values(b.tensor())[0] == Approx(b_before - 0.01 * (1 + b_before)));
  CHECK(values(c.tensor())[0] == 0);
  optimizer.set_lr(0.25);
  for (std::size_t group = 0; group < 3; ++group) CHECK(optimizer.lr(group) == 0.25);
}

TEST_CASE("groups that make no sense are refused, and nothing changes") {
  Linear net(2, 1);
  net.named_parameters();
  const Parameter other = parameter({1});
  SGD optimizer({net.weight}, {.lr = 0.5});
  CHECK_THROWS_WITH(optimizer.add_group({.parameters = {other, net.weight}}),
                    Contains("'weight'") && Contains("index 1 of group 1") && Contains("is in group 0"));
  CHECK_THROWS_WITH(optimizer.add_group({.parameters = {other, other}}), Contains("once"));
  CHECK_THROWS_WITH(optimizer.add_group({}), Contains("empty"));
  CHECK_THROWS_WITH(optimizer.add_group({.parameters = {other}, .lr = -1}), Contains("learning rate"));
  CHECK_THROWS_AS(optimizer.add_group({.parameters = {other, Parameter()}}), InvalidArgument);
  CHECK(optimizer.group_count() == 1);
  CHECK(optimizer.parameters().size() == 1);
  CHECK_THROWS_WITH(optimizer.set_lr(1, 0.1), Contains("group below 1"));
  CHECK_THROWS_AS(optimizer.lr(1), InvalidArgument);
  CHECK_THROWS_AS(optimizer.options(1), InvalidArgument);
  CHECK_THROWS_AS(optimizer.group_parameters(1), InvalidArgument);
  CHECK_THROWS_AS(optimizer.set_options(0, {.momentum = -1}), InvalidArgument);
  CHECK(optimizer.options().momentum == 0);
  optimizer.add_group({.parameters = {other}});
  CHECK(optimizer.lr(1) == 0.5);
  CHECK_THROWS_WITH(SGD({{.parameters = {other}}, {.parameters = {other}}}), Contains("once"));
}
