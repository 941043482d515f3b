// Adam and AdamW against PyTorch's formulas.
#include "lockstep/tensor/optim/adam.h"

#include <cmath>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "support/devices.h"
#include "support/watched.h"
#include "tensor/optim/optim_golden.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using support::device_at;

namespace {

AdamWOptions for_adamw(const AdamOptions& o) {
  return {.lr = o.lr,
          .betas = o.betas,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .amsgrad = o.amsgrad,
          .maximize = o.maximize};
}

std::unique_ptr<Optimizer> make(const AdamCase& known, const std::vector<Parameter>& parameters) {
  if (known.decoupled) return std::make_unique<AdamW>(parameters, for_adamw(known.options));
  return std::make_unique<Adam>(parameters, known.options);
}

}  // namespace

TEST_CASE("Adam and AdamW follow PyTorch for every option") {
  int number = 0;
  for (const AdamCase& known : kAdamCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      if (support::watched() && number++ % 4 != 0) continue;
      const Parameter p = parameter(kStart, dtype), other = parameter(kStart, DType::f64, device_at(1));
      const Parameter empty(zeros({0, 3}, {.dtype = dtype})), unused = parameter({2}, dtype);
      const auto optimizer = make(known, {empty, p, unused, other});
      empty.set_grad(zeros({0, 3}, {.dtype = dtype}));
      const std::uint64_t unused_version = unused.tensor().version();
      for (int t = 1; t <= kSteps; ++t) {
        Doubles gradient;
        for (std::int64_t i = 0; i < p.tensor().count(); ++i) gradient.push_back(golden_gradient(i, t));
        set_grad(p, gradient);
        set_grad(other, gradient);
        const std::uint64_t version = p.tensor().version();
        optimizer->step();
        CHECK(p.tensor().version() > version);
        CHECK(values(p.grad()) == gradient);  // also with weight decay
      }
      const AdamOptions& o = known.options;
      INFO(optimizer->name() << " " << to_string(dtype) << " lr " << o.lr << " beta1 " << o.betas.first << " decay "
                             << o.weight_decay << (o.amsgrad ? " amsgrad" : "") << (o.maximize ? " maximize" : ""));
      check_close(values(p.tensor()), known.result, tolerance(dtype));
      check_close(values(other.tensor()), known.result, tolerance(DType::f64));
      CHECK(unused.tensor().version() == unused_version);
    }
}

TEST_CASE("Adam in f16, where the second moments fit it") {
  for (const AdamCase& known : kAdamCases) {
    if (known.options.eps < 1e-3) continue;  // 1e-8 is 0 in comparison: bf16 has the range for it, f16 does not
    const Parameter p = parameter(kStart, DType::f16);
    const auto optimizer = make(known, {p});
    for (int t = 1; t <= kSteps; ++t) {
      Doubles gradient;
      for (std::int64_t i = 0; i < p.tensor().count(); ++i) gradient.push_back(golden_gradient(i, t));
      set_grad(p, gradient);
      optimizer->step();
    }
    check_close(values(p.tensor()), known.result, tolerance(DType::f16));
  }
}

TEST_CASE("the defaults are PyTorch's") {
  const Parameter p = parameter({1});
  const AdamOptions adam = Adam({p}).options(), adamw = AdamW({p}).options();
  CHECK(adam.lr == 1e-3);
  CHECK(adam.betas == std::pair(0.9, 0.999));
  CHECK(adam.eps == 1e-8);
  CHECK(adam.weight_decay == 0);
  CHECK_FALSE(adam.amsgrad);
  CHECK_FALSE(adam.maximize);
  CHECK(adamw.lr == 1e-3);
  CHECK(adamw.betas == std::pair(0.9, 0.999));
  CHECK(adamw.eps == 1e-8);
  CHECK(adamw.weight_decay == 1e-2);
  CHECK_FALSE(adamw.amsgrad);
  CHECK_FALSE(adamw.maximize);
}

TEST_CASE("Adam counts the steps of each parameter by itself") {
  const Parameter early = parameter({1}), late = parameter({1});
  Adam optimizer({early, late}, {.lr = 0.1});
  set_grad(early, {2});
  optimizer.step();
  set_grad(late, {2});
  early.zero_grad();
  optimizer.step();
  // The first step has the length of the learning rate, whatever the gradient.
  CHECK(values(early.tensor())[0] == Approx(0.9));
  CHECK(values(late.tensor())[0] == Approx(0.9));
  // And both in one call, after different numbers of them.
  late.zero_grad();
  for (const double gradient : {2.0, 0.5, -1.0}) {
    set_grad(early, {gradient});
    if (gradient < 2) set_grad(late, {gradient});
    optimizer.step();
  }
  const auto alone = [](const Doubles& gradients) {
    const Parameter p = parameter({1});
    Adam single({p}, {.lr = 0.1});
    for (const double gradient : gradients) {
      set_grad(p, {gradient});
      single.step();
    }
    return values(p.tensor());
  };
  CHECK(values(early.tensor()) == alone({2, 2, 0.5, -1}));
  CHECK(values(late.tensor()) == alone({2, 0.5, -1}));
}

TEST_CASE("amsgrad can begin later") {
  const Parameter p = parameter({1}), q = parameter({1});
  Adam optimizer({p}, {.lr = 0.1}), plain({q}, {.lr = 0.1});
  const auto step = [&](double gradient) {
    set_grad(p, {gradient});
    set_grad(q, {gradient});
    optimizer.step();
    plain.step();
  };
  step(1), step(2);
  AdamOptions options = optimizer.options();
  options.amsgrad = true;
  optimizer.set_options(0, options);
  step(2);  // the second moment still grows: it is its own maximum
  CHECK(values(p.tensor()) == values(q.tensor()));
  step(0.001);
  CHECK(std::fabs(values(p.tensor())[0]) != std::fabs(values(q.tensor())[0]));
}

TEST_CASE("AdamW groups: decay for the weights alone") {
  manual_seed(3);
  Linear net(3, 2);
  AdamW optimizer({{.parameters = {net.weight}, .weight_decay = 0.5}, {.parameters = {net.bias}, .lr = 0}},
                  {.lr = 0.1, .betas = {0.8, 0.9}, .weight_decay = 0});
  CHECK(optimizer.options(1).betas == std::pair(0.8, 0.9));
  const Doubles weight = values(net.weight.tensor()), bias = values(net.bias.tensor());
  net.weight.set_grad(zeros({2, 3}));
  net.bias.set_grad(ones({2}));
  optimizer.step();
  Doubles shrunk;
  for (const double w : weight) shrunk.push_back(w * 0.95);
  check_close(values(net.weight.tensor()), shrunk, 1e-6);
  CHECK(values(net.bias.tensor()) == bias);
  optimizer.add_group({.parameters = {parameter({1})}, .amsgrad = true});
  CHECK(optimizer.options(2).amsgrad);
  CHECK_THROWS_WITH(optimizer.add_group({.parameters = {net.bias}}), Contains("[AdamW]") && Contains("once"));
  manual_seed(0);
}

TEST_CASE("Adam trains a network, on the device it is moved to, outside the graph") {
  manual_seed(1);
  Sequential net(Linear(2, 16), Tanh(), Linear(16, 1));
  AdamW optimizer(net.parameters(), {.lr = 0.02});
  const Tensor x = randn({64, 2}), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
  double first = 0, last = 0;
  for (int i = 0; i < 200; ++i) {
    const Device device = i < 100 ? Device::cpu() : device_at(2);
    if (i == 100) net.to(device);
    const Tensor loss = mse_loss(net(x.to(device)), y.to(device));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  CHECK(last < first / 20);
  for (const Parameter& p : net.parameters()) CHECK(p.tensor().is_leaf());
  for (const NamedTensor& entry : optimizer.state_dict(net)) {
    CHECK_FALSE(entry.tensor.requires_grad());
    if (entry.name.find(".exp_avg") != std::string::npos) CHECK(entry.tensor.device() == device_at(2));
  }
  manual_seed(0);
}

TEST_CASE("Adam refuses what makes no sense") {
  const Parameter p = parameter({1});
  CHECK_THROWS_WITH(Adam(std::vector<Parameter>{}), Contains("[Adam]") && Contains("empty"));
  CHECK_THROWS_WITH(AdamW({p, p}), Contains("[AdamW]") && Contains("once"));
  CHECK_THROWS_WITH(Adam({p}, {.lr = -1}), Contains("learning rate") && Contains("-1"));
  CHECK_THROWS_AS(Adam({p}, {.lr = NAN}), InvalidArgument);
  CHECK_THROWS_WITH(Adam({p}, {.betas = {1, 0.9}}), Contains("betas") && Contains("0.9"));
  CHECK_THROWS_AS(Adam({p}, {.betas = {0.9, 1}}), InvalidArgument);
  CHECK_THROWS_AS(Adam({p}, {.betas = {-0.1, 0.9}}), InvalidArgument);
  CHECK_THROWS_AS(Adam({p}, {.betas = {0.9, NAN}}), InvalidArgument);
  CHECK_THROWS_WITH(AdamW({p}, {.eps = -1}), Contains("[AdamW]") && Contains("eps"));
  CHECK_THROWS_AS(Adam({p}, {.weight_decay = -1}), InvalidArgument);
}
