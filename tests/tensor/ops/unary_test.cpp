// Functions of one tensor.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;

namespace {

struct Activated {
  const char* name;
  Tensor (*f)(const Tensor& x);
};
const Activated kActivations[] = {{"softplus", [](const Tensor& x) { return softplus(x); }},
                                  {"silu", [](const Tensor& x) { return silu(x); }},
                                  {"hardswish", [](const Tensor& x) { return hardswish(x); }},
                                  {"gelu", [](const Tensor& x) { return gelu(x); }},
                                  {"gelu tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); }}};

Tensor activation_gradient(const Activated& function, const Tensor& at, bool create_graph) {
  const Tensor x = at.clone().set_requires_grad(true);
  return grad((function.f(x) * 0.75).sum(), {x}, {.create_graph = create_graph})[0];
}

}  // namespace

TEST_CASE("large arguments neither overflow nor lose themselves") {
  const Tensor x = f64({-1000, 1000}, {2});
  for (const DType dtype : {DType::f32, DType::f64}) {
    CHECK(values(sigmoid(x.to(dtype))) == Doubles{0, 1});
    CHECK(values(softplus(x.to(dtype))) == Doubles{0, 1000});
    CHECK(values(softmax(x.to(dtype), 0)) == Doubles{0, 1});
    CHECK(values(log_softmax(x.to(dtype), 0)) == Doubles{-2000, 0});
    CHECK(values(bce_with_logits(x.to(dtype), ones({2}, {.dtype = dtype}), Reduction::none)) == Doubles{1000, 0});
  }
}

TEST_CASE("the derivative where a function has a kink or a pole") {
  const auto slope = [](auto f, double at) {
    Tensor x = tensor(at, {.dtype = DType::f64, .requires_grad = true});
    f(x).backward();
    return x.grad().template item<double>();
  };
  CHECK(slope([](const Tensor& x) { return relu(x); }, 0) == 0);
  CHECK(slope([](const Tensor& x) { return abs(x); }, 0) == 0);
  CHECK(slope([](const Tensor& x) { return pow(x, 1); }, 0) == 1);
  CHECK(slope([](const Tensor& x) { return pow(x, 2); }, 0) == 0);
  CHECK(slope([](const Tensor& x) { return pow(x, 0) + x * 0; }, 0) == 0);
  CHECK(slope([](const Tensor& x) { return pow(x, zeros({}, {.dtype = DType::f64})); }, 0) == 0);
  CHECK(slope([](const Tensor& x) { return pow(0, x); }, 2) == 0);
  CHECK(slope([](const Tensor& x) { return clamp(x, -1, 1); }, 1) == 1);
  CHECK(slope([](const Tensor& x) { return maximum(x, zeros({}, {.dtype = DType::f64})); }, 0) == 0.5);
  CHECK(slope([](const Tensor& x) { return maximum(x, x); }, 3) == 1);
  CHECK(slope([](const Tensor& x) { return norm(x); }, 0) == 0);
  // sign is flat.
  CHECK(slope([](const Tensor& x) { return sign(x) + x; }, 2) == 1);
}

TEST_CASE("gradients of activations in 16-bit dtypes are rounded once") {
  for (const Activated& function : kActivations)
    for (const DType dtype : {DType::f16, DType::bf16})
      for (const bool create_graph : {false, true}) {
        INFO(function.name << " " << to_string(dtype) << (create_graph ? " create_graph" : ""));
        // Every number of the dtype would do; these are some hundred, both signs, and 0.
        const Tensor x = (arange(801).to(DType::f64) * 0.0125 - 5).to(dtype);
        const std::vector<double> got = activation_gradient(function, x, create_graph).detach().to_vector<double>();
        const std::vector<double> want =
            activation_gradient(function, x.to(DType::f64), false).to(dtype).to_vector<double>();
        int apart = 0;  // f32 may round to the other side of a tie, and cancels around a zero; lines meet more ties
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double ulp = std::abs(want[i]) * (dtype == DType::f16 ? 0x1p-10 : 0x1p-7);
          CHECK(std::abs(got[i] - want[i]) <= ulp + 1e-6);
          apart += got[i] != want[i] ? 1 : 0;
        }
        CHECK(apart <= 8);
      }
}

TEST_CASE("gradients of activations where they are saturated") {
  for (const Activated& function : kActivations)
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
      for (const bool create_graph : {false, true}) {
        INFO(function.name << " " << to_string(dtype) << (create_graph ? " create_graph" : ""));
        const double large = dtype == DType::f16 ? 6e4 : 1e15;
        const Tensor x = from_data({-large, -400.0, 400.0, large}, {4}, {.dtype = dtype});
        const std::vector<double> got = activation_gradient(function, x, create_graph).detach().to_vector<double>();
        CHECK(std::abs(got[0]) + std::abs(got[1]) < 1e-100);
        CHECK((got[2] == 0.75 && got[3] == 0.75));
      }
}

TEST_CASE("functions that are odd keep the sign of zero") {
  Tensor (*const functions[])(const Tensor&) = {sin, tanh, erf, expm1, log1p, sqrt, floor, ceil, round, trunc};
  for (std::size_t f = 0; f < std::size(functions); ++f)
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
      for (const std::int64_t count : {1, 33}) {
        INFO("function " << f << " of " << to_string(dtype) << ' ' << count);
        const Tensor zeros = full({count}, -0.0, {.dtype = dtype});
        CHECK(values(1 / functions[f](zeros)) == Doubles(static_cast<std::size_t>(count), -kInf));
        CHECK(values(1 / functions[f](-zeros)) == Doubles(static_cast<std::size_t>(count), kInf));
      }
}

TEST_CASE("16-bit results do not overflow on the way") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor x = reals({300, -300, 1000, 2}, dtype).set_requires_grad();
    for (const bool again : {false, true}) {
      const GradOptions options{.create_graph = again};
      CHECK(values(grad(sum(gelu(x, GeluForm::tanh)), {x}, options)[0].narrow(0, 0, 3)) == Doubles{1, 0, 1});
      CHECK(values(grad(sum(gelu(x)), {x}, options)[0].narrow(0, 0, 3)) == Doubles{1, 0, 1});
      CHECK(values(grad(sum(silu(x)), {x}, options)[0].narrow(0, 0, 3)) == Doubles{1, 0, 1});
    }
    CHECK(vector_norm(reals({300, 400}, dtype), 3).item<double>() == Approx(449.79).epsilon(0.01));
    // The sum of the squares is beyond f16; the mean, 257, is no bf16.
    CHECK(var(cat({full({2000}, 10, {.dtype = dtype}), full({2000}, -10, {.dtype = dtype})})).item<double>() ==
          Approx(100).epsilon(0.01));
    CHECK(var(reals({256, 258}, dtype)).item<double>() == 2);
    CHECK(stddev(reals({500, -500}, dtype)).item<double>() == Approx(707).epsilon(0.01));
  }
}

TEST_CASE("the gradient of hardswish at its kinks, at NaN, and where the gradient before it is infinite") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const bool create_graph : {false, true}) {
      INFO(to_string(dtype) << (create_graph ? " create_graph" : ""));
      const Tensor x = from_data({-4.0, -3.0, 0.0, 3.0, 4.0, kNan}, {6}, {.dtype = dtype}).set_requires_grad(true);
      const auto slopes = [&](double before) {
        return grad((hardswish(x) * before).sum(), {x}, {.create_graph = create_graph})[0].detach().to_vector<double>();
      };
      CHECK(slopes(1) == std::vector<double>{0, 0, 0.5, 1, 1, 1});
      CHECK(slopes(kInfinity) == std::vector<double>{0, 0, kInfinity, kInfinity, kInfinity, kInfinity});
    }
}
