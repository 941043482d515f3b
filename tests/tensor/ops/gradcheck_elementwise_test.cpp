// First and second derivatives of the elementwise operations, against central differences.
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/gradcheck.h"

using namespace lockstep;
using support::device_at;
using support::Function;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;

namespace {

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

struct Binary {
  const char* name;
  Tensor (*f)(const Tensor& a, const Tensor& b);
  double low = -2, high = 2;
};

const Binary kBinary[] = {
    {"a + b", [](const Tensor& a, const Tensor& b) { return a + b; }},
    {"add alpha", [](const Tensor& a, const Tensor& b) { return add(a, b, -2.5); }},
    {"a - b", [](const Tensor& a, const Tensor& b) { return a - b; }},
    {"a * b", [](const Tensor& a, const Tensor& b) { return a * b; }},
    {"a / b", [](const Tensor& a, const Tensor& b) { return a / b; }, 0.3, 3},
    {"pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); }, 0.3, 2},
    {"maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }},
    {"minimum squared", [](const Tensor& a, const Tensor& b) { return square(minimum(a, b)); }},
    {"where", [](const Tensor& a, const Tensor& b) { return where(a > 0.0, a * a, b * b); }},
    {"where number", [](const Tensor& a, const Tensor& b) { return where(a > b, a * b, 2.0) + where(a > b, 1.5, b); }},
};

}  // namespace

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

TEST_CASE("derivatives of functions of two tensors, with broadcasting") {
  const std::pair<Shape, Shape> pairs[] = {
      {{2, 3}, {2, 3}}, {{2, 3}, {3}}, {{3}, {2, 3}},       {{2, 1}, {1, 3}}, {{}, {2, 3}},
      {{2, 3}, {}},     {{1}, {4}},    {{4, 1, 2}, {3, 1}}, {{0, 3}, {3}},    {{1, 1}, {1}},
  };
  for (const Binary& op : kBinary) {
    const Function f = [&](const std::vector<Tensor>& in) { return op.f(in[0], in[1]); };
    for (const auto& [a, b] : pairs) {
      INFO(op.name << " of " << to_string(a) << " and " << to_string(b));
      CHECK(gradcheck(f, {random_leaf(a, 4, op.low, op.high), random_leaf(b, 5, op.low, op.high)}) == "");
    }
    INFO(op.name);
    CHECK(gradcheck(f, {random_transposed_leaf({3, 4}, 6, op.low, op.high), random_leaf({3, 4}, 7, op.low, op.high)}) ==
          "");
    CHECK(gradgradcheck(f, {random_leaf({2, 3}, 8, op.low, op.high), random_leaf({3}, 9, op.low, op.high)}) == "");
    // One operand alone.
    CHECK(gradcheck(f, {random_leaf({2, 3}, 8, op.low, op.high).detach(), random_leaf({3}, 9, op.low, op.high)}) == "");
    CHECK(gradcheck(f, {random_leaf({2, 3}, 8, op.low, op.high), random_leaf({3}, 9, op.low, op.high).detach()}) == "");
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
