// What operations compute, against plain formulas.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;

namespace {

using Doubles = std::vector<double>;
using Integers = std::vector<std::int64_t>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor f64(const Doubles& values, const Shape& shape) { return from_data(values, shape); }
Doubles values(const Tensor& x) { return x.to_vector<double>(); }

// Compares with f(element) after rounding to f32; `tolerance` is relative.
void check_unary(const char* name, Tensor (*op)(const Tensor&), double (*f)(double), double low, double high) {
  Doubles in, want;
  for (int i = 0; i <= 40; ++i) {
    in.push_back(static_cast<float>(low + (high - low) * i / 40));
    want.push_back(f(in.back()));
  }
  INFO(name);
  CHECK(allclose(op(f64(in, {41})), f64(want, {41}), 1e-13, 1e-14));
  CHECK(allclose(op(f64(in, {41}).to(DType::f32)).to(DType::f64), f64(want, {41}), 2e-6, 1e-7));
  CHECK(allclose(op(f64(in, {41}).to(DType::bf16)).to(DType::f64), f64(want, {41}), 5e-2, 5e-2));
  CHECK(op(f64(in, {41}).to(DType::f16)).dtype() == DType::f16);
  // Any layout, any device.
  const Tensor grid = f64(in, {41}).narrow(0, 1, 40).reshape({8, 5}).t().to(device_at(2));
  CHECK(op(grid).device() == device_at(2));
  CHECK(allclose(op(grid).t().reshape({40}), f64(want, {41}).narrow(0, 1, 40), 1e-13, 1e-14));
}

}  // namespace

TEST_CASE("functions of the elements") {
  check_unary(
      "neg", [](const Tensor& x) { return -x; }, [](double x) { return -x; }, -2, 2);
  check_unary(
      "abs", abs, [](double x) { return std::fabs(x); }, -2, 2);
  check_unary(
      "sign", sign, [](double x) { return x > 0   ? 1.0
                                          : x < 0 ? -1.0
                                                  : 0.0; }, -2, 2);
  check_unary(
      "exp", exp, [](double x) { return std::exp(x); }, -2, 2);
  check_unary(
      "log", log, [](double x) { return std::log(x); }, 0.1, 4);
  check_unary(
      "sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.1, 4);
  check_unary(
      "rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.1, 4);
  check_unary(
      "reciprocal", reciprocal, [](double x) { return 1 / x; }, 0.1, 4);
  check_unary(
      "square", square, [](double x) { return x * x; }, -2, 2);
  check_unary(
      "sin", sin, [](double x) { return std::sin(x); }, -2, 2);
  check_unary(
      "cos", cos, [](double x) { return std::cos(x); }, -2, 2);
  check_unary(
      "tanh", tanh, [](double x) { return std::tanh(x); }, -2, 2);
  check_unary(
      "sigmoid", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -5, 5);
  check_unary(
      "relu", relu, [](double x) { return std::max(x, 0.0); }, -2, 2);
  check_unary(
      "softplus", softplus, [](double x) { return std::log1p(std::exp(x)); }, -5, 5);
  check_unary(
      "silu", silu, [](double x) { return x / (1 + std::exp(-x)); }, -5, 5);
  check_unary(
      "normal_cdf", normal_cdf, [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }, -3, 3);
  check_unary(
      "gelu", [](const Tensor& x) { return gelu(x); },
      [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }, -3, 3);
  check_unary(
      "gelu tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); },
      [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }, -3, 3);
  check_unary(
      "clamp", [](const Tensor& x) { return clamp(x, -0.5, 1); },
      [](double x) { return std::min(std::max(x, -0.5), 1.0); }, -2, 2);
  check_unary(
      "1.5 - x", [](const Tensor& x) { return 1.5 - x; }, [](double x) { return 1.5 - x; }, -2, 2);
  check_unary(
      "3 / x", [](const Tensor& x) { return 3 / x; }, [](double x) { return 3 / x; }, 0.1, 4);
  check_unary(
      "x ^ 2.5", [](const Tensor& x) { return pow(x, 2.5); }, [](double x) { return std::pow(x, 2.5); }, 0.1, 4);
  check_unary(
      "2 ^ x", [](const Tensor& x) { return pow(2, x); }, [](double x) { return std::exp2(x); }, -2, 2);
}

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

TEST_CASE("arithmetic broadcasts by NumPy's rules") {
  const Tensor a = f64({1, 2, 3, 4, 5, 6}, {2, 3}), row = f64({10, 20, 30}, {3}), column = f64({100, 200}, {2, 1});
  CHECK(values(a + row) == Doubles{11, 22, 33, 14, 25, 36});
  CHECK(values(row - a) == Doubles{9, 18, 27, 6, 15, 24});
  CHECK(values(a * column) == Doubles{100, 200, 300, 800, 1000, 1200});
  CHECK(values(column / row) == Doubles{10, 5, 100.0 / 30, 20, 10, 200.0 / 30});
  CHECK((row + column).shape() == Shape{2, 3});
  CHECK(values(a + f64({1}, {})) == Doubles{2, 3, 4, 5, 6, 7});
  CHECK((zeros({0, 3}) + zeros({3})).shape() == Shape{0, 3});
  CHECK((zeros({1}) + zeros({0})).shape() == Shape{0});
  CHECK(values(maximum(a, f64({3}, {}))) == Doubles{3, 3, 3, 4, 5, 6});
  CHECK(values(minimum(a, f64({3}, {}))) == Doubles{1, 2, 3, 3, 3, 3});
  CHECK(values(pow(a, f64({2, 0, 1}, {3}))) == Doubles{1, 1, 3, 16, 1, 6});
  CHECK(values(where(a > row * 0.1, a, column)) == Doubles{100, 100, 100, 4, 5, 6});
  CHECK(values(a.t() + a.t()) == Doubles{2, 8, 4, 10, 6, 12});
}

TEST_CASE("dividing by a number rounds like a division") {
  const Tensor x = rand({1000});
  const auto in = x.to_vector<float>();
  for (const float divisor : {3.0f, 10.0f, 255.0f, 0.25f, -7.0f}) {
    const auto got = (x / divisor).to_vector<float>();
    bool same = true;
    for (std::size_t i = 0; i < in.size(); ++i) same = same && got[i] == in[i] / divisor;
    INFO(divisor);
    CHECK(same);
  }
}

TEST_CASE("comparisons and logic") {
  const Tensor a = f64({1, 2, 3, NAN}, {4}), b = f64({2, 2, 2, NAN}, {4});
  const auto bits = [](const Tensor& x) {
    CHECK(x.dtype() == DType::boolean);
    CHECK_FALSE(x.requires_grad());
    return x.to_vector<int>();
  };
  using Bits = std::vector<int>;
  CHECK(bits(a == b) == Bits{0, 1, 0, 0});
  CHECK(bits(a != b) == Bits{1, 0, 1, 1});
  CHECK(bits(a < b) == Bits{1, 0, 0, 0});
  CHECK(bits(a <= b) == Bits{1, 1, 0, 0});
  CHECK(bits(a > b) == Bits{0, 0, 1, 0});
  CHECK(bits(a >= b) == Bits{0, 1, 1, 0});
  CHECK(bits(a > 1.5) == Bits{0, 1, 1, 0});
  CHECK(bits(a == 1) == Bits{1, 0, 0, 0});
  CHECK(bits(logical_not(a > 1.5)) == Bits{1, 0, 0, 1});
  CHECK(bits(logical_and(a > 1, a < 3)) == Bits{0, 1, 0, 0});
  CHECK(bits(logical_or(a > 2, a < 2)) == Bits{1, 0, 1, 0});
  CHECK(bits(logical_xor(a > 1, a < 3)) == Bits{1, 0, 1, 0});
  CHECK(bits(from_data({1, 2}, {2}) < 1.5) == Bits{1, 0});
}

TEST_CASE("reductions") {
  const Tensor x = f64({3, 1, 2, 6, 5, 4}, {2, 3});
  CHECK(sum(x).item<double>() == 21);
  CHECK(sum(x).shape() == Shape{});
  CHECK(values(sum(x, {0})) == Doubles{9, 6, 6});
  CHECK(sum(x, {0}, true).shape() == Shape{1, 3});
  CHECK(values(sum(x, {-1, 0})) == Doubles{21});
  CHECK(values(sum(x, {})) == values(x));
  CHECK(values(x.t().sum({0})) == Doubles{6, 15});
  CHECK(values(mean(x, {1})) == Doubles{2, 5});
  CHECK(x.mean().item<double>() == 3.5);
  CHECK(values(var(x, {1})) == Doubles{1, 1});
  CHECK(var(x, {1}, 0).to_vector<double>()[0] == Approx(2.0 / 3));
  CHECK(std::isnan(var(f64({5}, {1})).item<double>()));
  CHECK(values(prod(x, 1)) == Doubles{6, 120});
  CHECK(prod(x).item<double>() == 720);
  CHECK(norm(f64({3, 4}, {2})).item<double>() == 5);
  CHECK(max(x).item<double>() == 6);
  CHECK(min(x).item<double>() == 1);
  CHECK(values(max(x, 0).values) == Doubles{6, 5, 4});
  CHECK(max(x, 1).indices.to_vector<std::int64_t>() == Integers{0, 0});
  CHECK(min(x, -1, true).indices.shape() == Shape{2, 1});
  CHECK(argmax(x).item<std::int64_t>() == 3);
  CHECK(argmin(x, 1).to_vector<std::int64_t>() == Integers{1, 2});
  CHECK(argmax(f64({1, 7, 7}, {3})).item<std::int64_t>() == 1);
  CHECK(argmax(f64({1, NAN, 7}, {3})).item<std::int64_t>() == 1);
  CHECK(any(x > 5.5).item<bool>());
  CHECK_FALSE(all(x > 5.5).item<bool>());
  CHECK(any(x > 2.5, {0}).to_vector<int>() == std::vector<int>{1, 1, 1});
  CHECK(all(x > 1.5, {1}).to_vector<int>() == std::vector<int>{0, 1});
  CHECK(sum(zeros({0, 2})).item<double>() == 0);
  CHECK(values(sum(zeros({0, 2}), {0})) == Doubles{0, 0});
  CHECK(std::isnan(mean(zeros({0})).item<double>()));
  CHECK(prod(zeros({0})).item<double>() == 1);
  CHECK(all(zeros({0})).item<bool>());
  CHECK_FALSE(any(zeros({0})).item<bool>());
  // A gradient that is wanted must not change the value.
  Tensor tracked = x.clone().set_requires_grad();
  CHECK(max(tracked).item<double>() == 6);
  CHECK(norm(tracked).item<double>() == norm(x).item<double>());
}

TEST_CASE("matrix products") {
  const auto reference = [](const Tensor& a, const Tensor& b) {
    const auto x = values(a), y = values(b);
    const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
    Doubles z(static_cast<std::size_t>(m * n), 0.0);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t l = 0; l < k; ++l)
          z[static_cast<std::size_t>(i * n + j)] +=
              x[static_cast<std::size_t>(i * k + l)] * y[static_cast<std::size_t>(l * n + j)];
    return f64(z, {m, n});
  };
  manual_seed(1);
  const TensorOptions options{.dtype = DType::f64};
  for (const auto& [m, k, n] : {std::array<int, 3>{2, 3, 4}, {1, 1, 1}, {17, 33, 5}, {1, 64, 9}, {40, 1, 3}}) {
    const Tensor a = randn({m, k}, options), b = randn({k, n}, options);
    INFO(m << ' ' << k << ' ' << n);
    CHECK(allclose(matmul(a, b), reference(a, b), 1e-12, 1e-12));
    CHECK(allclose(matmul(a.t().contiguous().t(), b.t().contiguous().t()), reference(a, b), 1e-12, 1e-12));
    CHECK(allclose(matmul(a.to(DType::f32), b.to(DType::f32)).to(DType::f64), reference(a, b), 1e-4, 1e-4));
    CHECK(allclose(linear(a, b.t()), reference(a, b), 1e-12, 1e-12));
    const Tensor bias = randn({n}, options);
    CHECK(allclose(linear(a, b.t().contiguous(), bias), reference(a, b) + bias, 1e-12, 1e-12));
    CHECK(allclose(matmul(a[0], b), reference(a, b)[0], 1e-12, 1e-12));
    CHECK(allclose(matmul(a, b.select(1, 0)), reference(a, b).select(1, 0), 1e-12, 1e-12));
    const Tensor batch = matmul(stack({a, a * 2, a * 3}), b);
    CHECK(batch.shape() == Shape{3, m, n});
    CHECK(allclose(batch[2], reference(a, b) * 3, 1e-12, 1e-12));
    CHECK(allclose(matmul(a, stack({b, b * 2}))[1], reference(a, b) * 2, 1e-12, 1e-12));
    CHECK(allclose(matmul(stack({a, a * 2}).unsqueeze(1), stack({b, b * 3, b}))[1][1], reference(a, b) * 6, 1e-12,
                   1e-12));
  }
  CHECK(matmul(f64({1, 2}, {2}), f64({3, 4}, {2})).item<double>() == 11);
  CHECK(matmul(f64({1, 2}, {2}), f64({3, 4}, {2})).shape() == Shape{});
  CHECK(values(matmul(zeros({2, 0}, options), zeros({0, 2}, options))) == Doubles{0, 0, 0, 0});
  CHECK(values(linear(zeros({2, 0}, options), zeros({1, 0}, options), f64({7}, {1}))) == Doubles{7, 7});
  CHECK(matmul(zeros({0, 3}), zeros({3, 2})).shape() == Shape{0, 2});
  CHECK(matmul(zeros({0, 2, 3}), zeros({0, 3, 4})).shape() == Shape{0, 2, 4});
}

TEST_CASE("answers for the host") {
  const Tensor x = f64({1, 2, kInfinity}, {3});
  CHECK(equal(x, x.to(device_at(1))));
  CHECK_FALSE(equal(x, x.to(DType::f32)));
  CHECK_FALSE(equal(x, x.reshape({3, 1})));
  CHECK_FALSE(equal(x, f64({1, 2, -kInfinity}, {3})));
  CHECK(equal(zeros({0}), zeros({0})));
  CHECK(allclose(x, x));
  CHECK(allclose(x, f64({1 + 1e-6, 2, kInfinity}, {3})));
  CHECK_FALSE(allclose(x, f64({1 + 1e-4, 2, kInfinity}, {3})));
  CHECK_FALSE(allclose(x, f64({1, 2, 3}, {3})));
  CHECK_FALSE(allclose(f64({1, 2, 3}, {3}), x));
  CHECK_FALSE(allclose(f64({NAN}, {1}), f64({NAN}, {1})));
}
