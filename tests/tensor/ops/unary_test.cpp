// Functions of one tensor.
#include <algorithm>
#include <cmath>

#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;

namespace {

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

const Shape kShapes[] = {{}, {1}, {5}, {0}, {3, 4}, {2, 1, 3}};

struct Unary {
  const char* name;
  Tensor (*f)(const Tensor& x);
  double low = -2, high = 2;
};

const Unary kUnary[] = {
    {"neg", [](const Tensor& x) { return -x; }},
    {"abs", [](const Tensor& x) { return abs(x); }},
    {"exp", [](const Tensor& x) { return exp(x); }},
    {"log", [](const Tensor& x) { return log(x); }, 0.3, 3},
    {"sqrt", [](const Tensor& x) { return sqrt(x); }, 0.3, 3},
    {"rsqrt", [](const Tensor& x) { return rsqrt(x); }, 0.3, 3},
    {"reciprocal", [](const Tensor& x) { return reciprocal(x); }, 0.3, 3},
    {"square", [](const Tensor& x) { return square(x); }},
    {"sin", [](const Tensor& x) { return sin(x); }},
    {"cos", [](const Tensor& x) { return cos(x); }},
    {"tanh", [](const Tensor& x) { return tanh(x); }},
    {"sigmoid", [](const Tensor& x) { return sigmoid(x); }},
    {"relu", [](const Tensor& x) { return relu(x); }},
    {"relu squared", [](const Tensor& x) { return square(relu(x)); }},
    {"softplus", [](const Tensor& x) { return softplus(x); }},
    {"silu", [](const Tensor& x) { return silu(x); }},
    {"normal_cdf", [](const Tensor& x) { return normal_cdf(x); }},
    {"gelu", [](const Tensor& x) { return gelu(x); }},
    {"gelu tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); }},
    {"log1p", [](const Tensor& x) { return log1p(x); }, -0.7, 2},
    {"expm1", [](const Tensor& x) { return expm1(x); }},
    {"erf", [](const Tensor& x) { return erf(x); }},
    {"rounded", [](const Tensor& x) { return square(x) + floor(x) * ceil(x) + round(x) - trunc(x); }},
    {"masked_fill", [](const Tensor& x) { return square(masked_fill(x, x > 0.0, 3)); }},
    {"clamp", [](const Tensor& x) { return clamp(x, -1, 1); }},
    {"clamp squared", [](const Tensor& x) { return square(clamp(x, -1)); }},
    {"x + 3", [](const Tensor& x) { return x + 3; }},
    {"3 - x", [](const Tensor& x) { return 3 - x; }},
    {"x - 3", [](const Tensor& x) { return x - 3; }},
    {"x * 3", [](const Tensor& x) { return x * 3; }},
    {"x / 3", [](const Tensor& x) { return x / 3; }},
    {"x / 4", [](const Tensor& x) { return x / 4; }},
    {"3 / x", [](const Tensor& x) { return 3 / x; }, 0.3, 3},
    {"x ^ 3", [](const Tensor& x) { return pow(x, 3); }},
    {"x ^ 2", [](const Tensor& x) { return pow(x, 2); }},
    {"x ^ 1", [](const Tensor& x) { return pow(x, 1); }},
    {"x ^ -1.5", [](const Tensor& x) { return pow(x, -1.5); }, 0.3, 3},
    {"2 ^ x", [](const Tensor& x) { return pow(2, x); }},
    {"clone", [](const Tensor& x) { return x.clone(); }},
    {"to a device and back", [](const Tensor& x) { return square(square(x).to(device_at(0))).to(Device::cpu()); }},
};

struct Activated {
  const char* name;
  Tensor (*f)(const Tensor& x);
};
const Activated kActivations[] = {{"softplus", [](const Tensor& x) { return softplus(x); }},
                                  {"silu", [](const Tensor& x) { return silu(x); }},
                                  {"gelu", [](const Tensor& x) { return gelu(x); }},
                                  {"gelu tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); }}};

Tensor activation_gradient(const Activated& function, const Tensor& at, bool create_graph) {
  const Tensor x = at.clone().set_requires_grad(true);
  return grad((function.f(x) * 0.75).sum(), {x}, {.create_graph = create_graph})[0];
}

Tensor reals(std::initializer_list<double> values, DType dtype = DType::f64) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = dtype});
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

TEST_CASE("derivatives of functions of one tensor") {
  for (const Unary& op : kUnary) {
    const Function f = [&](const std::vector<Tensor>& in) { return op.f(in[0]); };
    for (const Shape& shape : kShapes) {
      INFO(op.name << " of " << to_string(shape));
      CHECK(gradcheck(f, {random_leaf(shape, 1, op.low, op.high)}) == "");
    }
    INFO(op.name);
    CHECK(gradcheck(f, {random_transposed_leaf({3, 2, 4}, 2, op.low, op.high)}) == "");
    CHECK(gradgradcheck(f, {random_leaf({2, 3}, 3, op.low, op.high)}) == "");
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
        int apart = 0;  // f32 may round to the other side of a tie, and cancels around a zero
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double ulp = std::abs(want[i]) * (dtype == DType::f16 ? 0x1p-10 : 0x1p-7);
          CHECK(std::abs(got[i] - want[i]) <= ulp + 1e-6);
          apart += got[i] != want[i] ? 1 : 0;
        }
        CHECK(apart <= 4);
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
