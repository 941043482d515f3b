// GradScaler: what is scaled, what is skipped, and how the scale moves.
#include "lockstep/tensor/optim/grad_scaler.h"

#include <cmath>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/devices.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using support::device_at;

TEST_CASE("scaled training is training") {
  const Linear one(3, 2), two = deep_copy(one);
  Adam plain(one.parameters(), {.lr = 0.1}), scaled(two.parameters(), {.lr = 0.1});
  GradScaler scaler;
  CHECK(scaler.scale() == 65536);
  for (int i = 0; i < 5; ++i) {
    const Tensor x = from_data({1.0, -2.0, 0.5 * i}, {1, 3});
    plain.zero_grad();
    scaled.zero_grad();
    square(one(x)).sum().backward();
    scaler.scale(square(two(x)).sum()).backward();
    const Doubles gradient = values(one.weight.grad());
    CHECK(values(two.weight.grad())[0] == 65536 * gradient[0]);
    plain.step();
    CHECK(scaler.step(scaled));
    scaler.update();
    CHECK(values(two.weight.grad()) == gradient);
  }
  CHECK(values(one.weight.tensor()) == values(two.weight.tensor()));  // a power of two costs no bit
  CHECK(scaler.growth_tracker() == 5);
}

TEST_CASE("infinity and NaN on any device skip the step and shrink the scale") {
  support::needs_devices(3);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const double bad : {double{INFINITY}, -double{INFINITY}, double{NAN}})
      for (const std::size_t place : {0, 1, 2, 3}) {
        const std::vector<Parameter> all{parameter(Doubles(37, 1), dtype), parameter({1}, DType::f32),
                                         parameter({1, 1}, dtype, device_at(1)),
                                         parameter({1}, DType::f64, device_at(2)), parameter({1})};
        SGD optimizer(all, {.lr = 1, .momentum = 0.9});
        GradScaler scaler({.init_scale = 8});
        for (std::size_t i = 0; i < 4; ++i) {
          Doubles gradient(static_cast<std::size_t>(all[i].tensor().count()), 4);
          if (i == place) gradient.back() = bad;
          set_grad(all[i], gradient);
        }
        CHECK_FALSE(scaler.step(optimizer));
        scaler.update();
        CHECK(scaler.scale() == 4);
        for (const Parameter& p : all) CHECK(values(p.tensor())[0] == 1);
        for (const NamedTensor& entry : optimizer.state_dict())
          CHECK(entry.name.find("momentum_") == std::string::npos);
        for (std::size_t i = 0; i < 4; ++i)
          set_grad(all[i], Doubles(static_cast<std::size_t>(all[i].tensor().count()), 4));
        CHECK(scaler.step(optimizer));
        scaler.update();
        for (std::size_t i = 0; i < 4; ++i) CHECK(values(all[i].tensor())[0] == 0);
        CHECK(values(all[4].tensor())[0] == 1);
      }
}

TEST_CASE("the largest and smallest finite numbers are finite") {
  const Parameter p = parameter({0, 0, 0}, DType::f16), q = parameter({0, 0}, DType::f32);
  SGD optimizer({p, q}, {.lr = 0});
  GradScaler scaler({.init_scale = 1});
  set_grad(p, {65504, -65504, 0x1p-24});
  set_grad(q, {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()});
  CHECK(scaler.step(optimizer));
  CHECK(values(p.grad()) == Doubles{65504, -65504, 0x1p-24});
  scaler.update();
  // What unscaling itself makes infinite counts.
  scaler.set_scale(0.5);
  CHECK_FALSE(scaler.step(optimizer));
  scaler.update();
  CHECK(scaler.scale() == 0.25);
}

TEST_CASE("the scale grows after its interval and shrinks at once") {
  const Parameter p = parameter({1});
  SGD optimizer({p}, {.lr = 0});
  GradScaler scaler({.init_scale = 16, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  const auto iteration = [&](double gradient) {
    set_grad(p, {gradient});
    scaler.step(optimizer);
    scaler.update();
    return scaler.scale();
  };
  CHECK(iteration(1) == 16);
  CHECK(iteration(1) == 16);
  CHECK(iteration(1) == 64);
  CHECK(iteration(1) == 64);
  CHECK(iteration(1) == 64);
  CHECK(iteration(NAN) == 16);
  CHECK(scaler.growth_tracker() == 0);
  CHECK(iteration(1) == 16);
  CHECK(iteration(1) == 16);
  CHECK(iteration(1) == 64);
  scaler.set_scale(0x1p127);
  for (int i = 0; i < 6; ++i) CHECK(iteration(1) == 0x1p127);  // more is no float
  for (int i = 0; i < 200; ++i) iteration(INFINITY);
  CHECK(scaler.scale() > 0);

  GradScaler fixed({.init_scale = 16, .growth_interval = 1, .dynamic = false});
  set_grad(p, {NAN});
  CHECK_FALSE(fixed.step(optimizer));
  fixed.update();
  CHECK(fixed.scale() == 16);
  set_grad(p, {1});
  CHECK(fixed.step(optimizer));
  fixed.update();
  CHECK(fixed.scale() == 16);
}

TEST_CASE("several optimizers: each is skipped for itself, and one is enough to shrink the scale") {
  const Parameter p = parameter({1}), q = parameter({1});
  SGD good({p}, {.lr = 1}), bad({q}, {.lr = 1});
  GradScaler scaler({.init_scale = 2});
  set_grad(p, {2});
  set_grad(q, {NAN});
  CHECK(scaler.step(good));
  CHECK_FALSE(scaler.step(bad));
  scaler.update();
  CHECK(scaler.scale() == 1);
  CHECK(values(p.tensor())[0] == 0);
  CHECK(values(q.tensor())[0] == 1);
  // One that was unscaled but not stepped counts as well.
  set_grad(q, {NAN});
  scaler.unscale_(bad);
  scaler.update();
  CHECK(scaler.scale() == 0.5);
}

TEST_CASE("gradients can be looked at between unscaling and the step") {
  const Parameter p = parameter({0, 0});
  // A gradient that is not contiguous.
  const Parameter matrix(zeros({2, 2}, {.dtype = DType::f64}));
  SGD optimizer({p, matrix}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  set_grad(p, {12, 16});
  matrix.set_grad(from_data(Doubles{4, 8, 0, 0}, {2, 2}).transpose(0, 1));
  const std::uint64_t version = p.grad().version();
  scaler.unscale_(optimizer);
  CHECK(p.grad().version() > version);
  CHECK(values(p.grad()) == Doubles{3, 4});
  CHECK(values(matrix.grad()) == Doubles{1, 0, 2, 0});
  CHECK(clip_grad_norm({{p}}, 1).item<double>() == Approx(5));
  CHECK(scaler.step(optimizer));
  check_close(values(p.tensor()), {-0.6, -0.8}, 1e-6);
  CHECK(values(matrix.tensor()) == Doubles{-1, 0, -2, 0});
  scaler.update();
}

TEST_CASE("a scaler that is used out of order says so") {
  const Parameter p = parameter({1});
  SGD optimizer({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 2});
  CHECK_THROWS_WITH(scaler.update(), Contains("[GradScaler]") && Contains("before update()"));
  set_grad(p, {2});
  scaler.unscale_(optimizer);
  CHECK_THROWS_WITH(scaler.unscale_(optimizer), Contains("a second one"));
  CHECK(values(p.grad()) == Doubles{1});
  CHECK_THROWS_AS(scaler.set_scale(4), Error);
  CHECK_THROWS_AS(scaler.load_state_dict(scaler.state_dict()), Error);
  scaler.step(optimizer);
  CHECK_THROWS_WITH(scaler.unscale_(optimizer), Contains("after step()"));
  CHECK_THROWS_WITH(scaler.step(optimizer), Contains("a second one"));
  CHECK(values(p.tensor()) == Doubles{0});
  scaler.update();
  // Without any gradient there is nothing to find.
  optimizer.zero_grad();
  CHECK(scaler.step(optimizer));
  scaler.update();
  CHECK(scaler.scale() == 2);
}

TEST_CASE("a scaler that is off does nothing") {
  const Parameter p = parameter({1});
  SGD optimizer({p}, {.lr = 1});
  GradScaler scaler({.enabled = false});
  CHECK(scaler.scale() == 1);
  CHECK(scaler.scale(tensor(3.0)).item<double>() == 3);
  set_grad(p, {INFINITY});
  scaler.unscale_(optimizer);
  CHECK(scaler.step(optimizer));
  scaler.update();
  CHECK(std::isinf(values(p.tensor())[0]));
}

TEST_CASE("options and states of a scaler that make no sense are refused") {
  CHECK_THROWS_WITH(GradScaler({.init_scale = 0}), Contains("[GradScaler]") && Contains("scale"));
  CHECK_THROWS_AS(GradScaler({.init_scale = INFINITY}), InvalidArgument);
  CHECK_THROWS_AS(GradScaler({.init_scale = NAN}), InvalidArgument);
  CHECK_THROWS_AS(GradScaler({.growth_factor = 1}), InvalidArgument);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 1}), InvalidArgument);
  CHECK_THROWS_AS(GradScaler({.growth_interval = 0}), InvalidArgument);
  GradScaler scaler({.init_scale = 8});
  CHECK_THROWS_AS(scaler.set_scale(-1), InvalidArgument);
  const auto good = scaler.state_dict();
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto state = good;
    state.erase(state.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK_THROWS_WITH(scaler.load_state_dict(state), Contains("'" + good[i].name + "'") && Contains("undefined"));
    state = good;
    state[i].tensor = tensor(-1.0, {.dtype = state[i].tensor.dtype()});
    CHECK_THROWS_AS(scaler.load_state_dict(state), InvalidArgument);
    state[i].tensor = ones({}, {.dtype = DType::f32});
    CHECK_THROWS_WITH(scaler.load_state_dict(state), Contains("f32"));
  }
  auto state = good;
  state.push_back({"more", tensor(1)});
  CHECK_THROWS_AS(scaler.load_state_dict(state), InvalidArgument);
  CHECK(scaler.scale() == 8);
  GradScaler other;
  other.load_state_dict(good);
  CHECK(other.scale() == 8);
}
