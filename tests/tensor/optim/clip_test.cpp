// Clipping gradients.
#include "lockstep/tensor/optim/clip.h"

#include <cmath>
#include <limits>

#include "support/devices.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using support::device_at;

TEST_CASE("clipping by norm") {
  const Parameter a = parameter({0, 0}), b = parameter({0}, DType::f32, device_at(1)), unused = parameter({0});
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

TEST_CASE("clipping by other norms") {
  const Parameter a = parameter({0, 0}), b = parameter({0}, DType::f32, device_at(1));
  const Parameter empty(zeros({0}, {.dtype = DType::f64}));
  const std::vector<Parameter> all{empty, a, b};
  empty.set_grad(zeros({0}, {.dtype = DType::f64}));
  const auto clip = [&](double max_norm, double norm_type) {
    set_grad(a, {3, -1});
    set_grad(b, {-4});
    return clip_grad_norm(all, max_norm, {.norm_type = norm_type}).item<double>();
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(clip(2, kInfinity) == Approx(4));
  check_close(values(a.grad()), {1.5, -0.5}, 1e-6);
  check_close(values(b.grad()), {-2}, 1e-6);
  CHECK(clip(4, 1) == Approx(8));
  check_close(values(a.grad()), {1.5, -0.5}, 1e-6);
  CHECK(clip(1, 3) == Approx(std::cbrt(27 + 1 + 64)));
  check_close(values(b.grad()), {-4 / std::cbrt(92.0)}, 1e-6);
  CHECK(clip(100, 0.5) == Approx(std::pow(std::sqrt(3.0) + 1 + 2, 2)));
  CHECK(values(a.grad()) == Doubles{3, -1});
  CHECK_THROWS_WITH(clip(1, 0), Contains("norm_type") && Contains("0"));
  CHECK_THROWS_AS(clip(1, -1), InvalidArgument);
  CHECK_THROWS_AS(clip(1, NAN), InvalidArgument);
}

TEST_CASE("clipping by norm says when there is none") {
  const Parameter a = parameter({0, 0}), b = parameter({0}, DType::f32, device_at(1));
  const std::vector<Parameter> all{a, b};
  for (const double bad : {double{INFINITY}, double{NAN}})
    for (const double type : {2.0, 1.0, 3.0, double{INFINITY}}) {
      set_grad(a, {3, 0});
      set_grad(b, {bad});
      CHECK_THROWS_WITH(clip_grad_norm(all, 1, {.norm_type = type, .error_if_nonfinite = true}),
                        Contains("[clip_grad_norm]") && Contains("finite"));
      CHECK(values(a.grad()) == Doubles{3, 0});
      CHECK_FALSE(std::isfinite(clip_grad_norm(all, 1, {.norm_type = type}).item<double>()));
    }
  set_grad(b, {4});
  set_grad(a, {3, 0});
  CHECK(clip_grad_norm(all, 1, {.error_if_nonfinite = true}).item<double>() == Approx(5));
}
