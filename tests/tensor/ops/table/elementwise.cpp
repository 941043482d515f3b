// Arithmetic, comparisons, functions of the elements.
#include <algorithm>
#include <cmath>

#include "support/devices.h"
#include "tensor/ops/table/table.h"

namespace op_tests {

namespace {

double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }
double normal_cdf_of(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_tanh_of(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

constexpr Range kPositive{0.3, 3}, kWide{-5, 5};

std::vector<Row> functions() {
  return {
      unary(
          "neg", "", [](const Tensor& x) { return -x; }, [](double x) { return -x; }, {}, "neg"),
      unary(
          "abs", "", abs, [](double x) { return std::fabs(x); }, {}, "abs"),
      with(Gradient::zero, unary("sign", "", sign, sign_of, {}, "sign")),
      unary(
          "exp", "", exp, [](double x) { return std::exp(x); }, {}, "exp"),
      unary(
          "log", "", log, [](double x) { return std::log(x); }, kPositive, "log"),
      unary(
          "sqrt", "", sqrt, [](double x) { return std::sqrt(x); }, kPositive, "sqrt"),
      unary(
          "rsqrt", "", rsqrt, [](double x) { return 1 / std::sqrt(x); }, kPositive, "rsqrt"),
      unary(
          "reciprocal", "", reciprocal, [](double x) { return 1 / x; }, kPositive, "reciprocal"),
      unary(
          "square", "", square, [](double x) { return x * x; }, {}, "square"),
      unary(
          "sin", "", sin, [](double x) { return std::sin(x); }, {}, "sin"),
      unary(
          "cos", "", cos, [](double x) { return std::cos(x); }, {}, "cos"),
      unary(
          "tanh", "", tanh, [](double x) { return std::tanh(x); }, {}, "tanh"),
      unary("sigmoid", "", sigmoid, sigmoid_of, kWide, "sigmoid"),
      unary(
          "relu", "", relu, [](double x) { return std::max(x, 0.0); }, {}, "relu"),
      unary(
          "relu", "squared", [](const Tensor& x) { return square(relu(x)); },
          [](double x) { return x > 0 ? x * x : 0; }),
      unary(
          "softplus", "", softplus, [](double x) { return std::log1p(std::exp(x)); }, kWide, "softplus"),
      unary(
          "hardswish", "", hardswish, [](double x) { return x * std::min(std::max(x + 3, 0.0), 6.0) / 6; }, {-5, 5},
          "hardswish"),
      unary(
          "silu", "", silu, [](double x) { return x * sigmoid_of(x); }, kWide, "silu"),
      unary("normal_cdf", "", normal_cdf, normal_cdf_of, {}, "normal_cdf"),
      unary(
          "gelu", "", [](const Tensor& x) { return gelu(x); }, [](double x) { return x * normal_cdf_of(x); }, {},
          "gelu_exact"),
      unary(
          "gelu", "tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); }, gelu_tanh_of, {}, "gelu_tanh"),
      unary(
          "log1p", "", log1p, [](double x) { return std::log1p(x); }, {-0.7, 2}, "log1p"),
      unary(
          "expm1", "", expm1, [](double x) { return std::expm1(x); }, {}, "expm1"),
      unary(
          "erf", "", erf, [](double x) { return std::erf(x); }, {}, "erf"),
      with(Gradient::zero, unary(
                               "floor", "", floor, [](double x) { return std::floor(x); }, {}, "floor")),
      with(Gradient::zero, unary(
                               "ceil", "", ceil, [](double x) { return std::ceil(x); }, {}, "ceil")),
      with(Gradient::zero, unary(
                               "round", "", round, [](double x) { return std::nearbyint(x); }, {}, "round")),
      with(Gradient::zero, unary(
                               "trunc", "", trunc, [](double x) { return std::trunc(x); }, {}, "trunc")),
      unary(
          "floor", "beside others",
          [](const Tensor& x) { return square(x) + floor(x) * ceil(x) + round(x) - trunc(x); }, nullptr),
      with(Gradient::none,
           unary(
               "isnan", "", [](const Tensor& x) { return isnan(log(x)); }, [](double x) { return x < 0 ? 1.0 : 0.0; })),
      with(Gradient::none, unary(
                               "isinf", "", [](const Tensor& x) { return isinf(clamp(x, 0) / 0.0); },
                               [](double x) { return x > 0 ? 1.0 : 0.0; })),
      with(Gradient::none, unary(
                               "isfinite", "", [](const Tensor& x) { return isfinite(log(x)); },
                               [](double x) { return x < 0 ? 0.0 : 1.0; })),
      with(Gradient::none, unary(
                               "logical_not", "", [](const Tensor& x) { return logical_not(x > 0.5); },
                               [](double x) { return x > 0.5 ? 0.0 : 1.0; })),
      unary(
          "clamp", "", [](const Tensor& x) { return clamp(x, -1, 1); },
          [](double x) { return std::min(std::max(x, -1.0), 1.0); }),
      unary(
          "clamp", "from below, squared", [](const Tensor& x) { return square(clamp(x, -1)); },
          [](double x) { return std::max(x, -1.0) * std::max(x, -1.0); }),
      unary(
          "masked_fill", "", [](const Tensor& x) { return square(masked_fill(x, x > 0.0, 3)); },
          [](double x) { return x > 0 ? 9 : x * x; }),
      unary(
          "clone", "", [](const Tensor& x) { return x.clone(); }, [](double x) { return x; }),
      unary(
          "to", "a device and back",
          [](const Tensor& x) { return square(square(x).to(support::device_at(0))).to(x.device()); },
          [](double x) { return x * x * x * x; }),
  };
}

std::vector<Row> with_numbers() {
  return {
      unary(
          "add", "x + 3", [](const Tensor& x) { return x + 3; }, [](double x) { return x + 3; }),
      unary(
          "add", "x - 3", [](const Tensor& x) { return x - 3; }, [](double x) { return x - 3; }),
      unary(
          "sub", "1.5 - x", [](const Tensor& x) { return 1.5 - x; }, [](double x) { return 1.5 - x; }),
      unary(
          "mul", "x * 3", [](const Tensor& x) { return x * 3; }, [](double x) { return x * 3; }),
      unary(
          "div", "x / 3", [](const Tensor& x) { return x / 3; }, [](double x) { return x / 3; }),
      unary(
          "div", "x / 4", [](const Tensor& x) { return x / 4; }, [](double x) { return x / 4; }),
      unary(
          "div", "3 / x", [](const Tensor& x) { return 3 / x; }, [](double x) { return 3 / x; }, kPositive),
      unary(
          "pow", "x ^ 3", [](const Tensor& x) { return pow(x, 3); }, [](double x) { return x * x * x; }),
      unary(
          "pow", "x ^ 2", [](const Tensor& x) { return pow(x, 2); }, [](double x) { return x * x; }),
      unary(
          "pow", "x ^ 1", [](const Tensor& x) { return pow(x, 1); }, [](double x) { return x; }),
      unary(
          "pow", "x ^ -1.5", [](const Tensor& x) { return pow(x, -1.5); }, [](double x) { return std::pow(x, -1.5); },
          kPositive),
      unary(
          "pow", "x ^ 2.5", [](const Tensor& x) { return pow(x, 2.5); }, [](double x) { return std::pow(x, 2.5); },
          kPositive),
      unary(
          "pow", "2 ^ x", [](const Tensor& x) { return pow(2, x); }, [](double x) { return std::exp2(x); }),
      with(Gradient::none, unary(
                               "floor_divide", "by a number", [](const Tensor& x) { return floor_divide(x, 0.7); },
                               [](double x) { return std::floor(x / 0.7); }, {0.8, 1.3})),
      unary(
          "remainder", "by a number", [](const Tensor& x) { return remainder(x, 0.75); },
          [](double x) { return x - 0.75 * std::floor(x / 0.75); }, {0.8, 1.4}),
      with(Gradient::none, unary(
                               "eq", "a number", [](const Tensor& x) { return round(x) == 1; },
                               [](double x) { return std::nearbyint(x) == 1 ? 1.0 : 0.0; })),
      with(Gradient::none, unary(
                               "ne", "a number", [](const Tensor& x) { return round(x) != 1; },
                               [](double x) { return std::nearbyint(x) != 1 ? 1.0 : 0.0; })),
      with(Gradient::none, unary(
                               "lt", "a number", [](const Tensor& x) { return x < 0.5; },
                               [](double x) { return x < 0.5 ? 1.0 : 0.0; })),
      with(Gradient::none, unary(
                               "le", "a number", [](const Tensor& x) { return x <= 0.5; },
                               [](double x) { return x <= 0.5 ? 1.0 : 0.0; })),
      with(Gradient::none, unary(
                               "gt", "a number", [](const Tensor& x) { return x > 0.5; },
                               [](double x) { return x > 0.5 ? 1.0 : 0.0; })),
      with(Gradient::none, unary(
                               "ge", "a number", [](const Tensor& x) { return x >= 0.5; },
                               [](double x) { return x >= 0.5 ? 1.0 : 0.0; })),
  };
}

// 1 where it holds.
Row comparison(const char* op, Tensor (*f)(const Tensor&, const Tensor&), double (*reference)(double, double)) {
  return with(Gradient::none, binary(op, "", f, reference, {}, op));
}

std::vector<Row> of_two() {
  return {
      binary(
          "add", "", [](const Tensor& a, const Tensor& b) { return a + b; }, [](double a, double b) { return a + b; }),
      binary(
          "add", "with a factor", [](const Tensor& a, const Tensor& b) { return add(a, b, -2.5); },
          [](double a, double b) { return a - 2.5 * b; }),
      binary(
          "sub", "", sub, [](double a, double b) { return a - b; }, {}, "sub"),
      binary(
          "mul", "", mul, [](double a, double b) { return a * b; }, {}, "mul"),
      binary(
          "div", "", div, [](double a, double b) { return a / b; }, kPositive, "div"),
      binary(
          "pow", "", pow, [](double a, double b) { return std::pow(a, b); }, {0.3, 2}, "pow"),
      binary(
          "maximum", "", maximum, [](double a, double b) { return std::max(a, b); }, {}, "maximum"),
      binary(
          "minimum", "", minimum, [](double a, double b) { return std::min(a, b); }, {}, "minimum"),
      binary(
          "minimum", "squared", [](const Tensor& a, const Tensor& b) { return square(minimum(a, b)); },
          [](double a, double b) { return std::min(a, b) * std::min(a, b); }),
      with(Gradient::none,
           binary(
               "floor_divide", "", [](const Tensor& a, const Tensor& b) { return floor_divide(a * 3.5, b); },
               [](double a, double b) { return std::floor(a * 3.5 / b); }, {1.1, 1.2})),
      binary(
          "remainder", "", [](const Tensor& a, const Tensor& b) { return square(remainder(a * 3.5, b)); },
          [](double a, double b) { return std::pow(a * 3.5 - b * std::floor(a * 3.5 / b), 2); }, {1.1, 1.2}),
      comparison("eq", eq, [](double a, double b) { return a == b ? 1.0 : 0.0; }),
      comparison("ne", ne, [](double a, double b) { return a != b ? 1.0 : 0.0; }),
      comparison("lt", lt, [](double a, double b) { return a < b ? 1.0 : 0.0; }),
      comparison("le", le, [](double a, double b) { return a <= b ? 1.0 : 0.0; }),
      comparison("gt", gt, [](double a, double b) { return a > b ? 1.0 : 0.0; }),
      comparison("ge", ge, [](double a, double b) { return a >= b ? 1.0 : 0.0; }),
      with(Gradient::none,
           binary(
               "logical_and", "", [](const Tensor& a, const Tensor& b) { return logical_and(a > 0.0, b > 0.0); },
               [](double a, double b) { return a > 0 && b > 0 ? 1.0 : 0.0; })),
      with(Gradient::none,
           binary(
               "logical_or", "", [](const Tensor& a, const Tensor& b) { return logical_or(a > 0.0, b > 0.0); },
               [](double a, double b) { return a > 0 || b > 0 ? 1.0 : 0.0; })),
      with(Gradient::none,
           binary(
               "logical_xor", "", [](const Tensor& a, const Tensor& b) { return logical_xor(a > 0.0, b > 0.0); },
               [](double a, double b) { return (a > 0) != (b > 0) ? 1.0 : 0.0; })),
      binary(
          "where", "", [](const Tensor& a, const Tensor& b) { return where(a > 0.0, a * a, b * b); },
          [](double a, double b) { return a > 0 ? a * a : b * b; }),
      binary(
          "where", "a number",
          [](const Tensor& a, const Tensor& b) { return where(a > b, a * b, 2.0) + where(a > b, 1.5, b); },
          [](double a, double b) { return a > b ? a * b + 1.5 : 2.0 + b; }),
  };
}

}  // namespace

std::vector<Row> elementwise_rows() {
  std::vector<Row> rows = functions();
  for (std::vector<Row> more : {with_numbers(), of_two()})
    rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return rows;
}

}  // namespace op_tests
