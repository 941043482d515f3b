// unary, binary and where against one scalar at a time, for every dtype and layout.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

const std::vector<Shape> kElementwiseShapes = {{},       {0},       {1},        {7},       {33},           {1027},
                                               {3, 5},   {2, 3, 4}, {17, 1, 9}, {4, 0, 3}, {2, 1, 3, 600}, {521, 3},
                                               {67, 31}, {40, 33}};

std::int64_t wrap(DType dtype, std::int64_t value) {
  switch (dtype) {
    case DType::i32:
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
    case DType::u8:
      return static_cast<std::uint8_t>(value);
    case DType::i8:
      return static_cast<std::int8_t>(static_cast<std::uint8_t>(value));
    default:
      return value;
  }
}

struct UnaryCase {
  UnaryOp op;
  const char* name;
  double (*reference)(double);
  double low = -2, high = 2;
  bool integers = false;
  double tolerance = 0.5;  // in epsilons: exactly rounded
};
constexpr double kA = 1.5, kB = 1.75;  // the scalars of the ops that have them

const std::vector<UnaryCase> kUnary = {
    {UnaryOp::neg, "neg", [](double x) { return -x; }, -2, 2, true},
    {UnaryOp::abs, "abs", [](double x) { return std::fabs(x); }, -5, 5, true},
    {UnaryOp::sign, "sign", [](double x) { return x > 0   ? 1.0
                                                  : x < 0 ? -1.0
                                                          : 0.0; }, -3, 3, true},
    {UnaryOp::exp, "exp", [](double x) { return std::exp(x); }, -5, 5, false, 2},
    {UnaryOp::log, "log", [](double x) { return std::log(x); }, 0.01, 9, false, 2},
    {UnaryOp::sqrt, "sqrt", [](double x) { return std::sqrt(x); }, 0, 9, false, 1},
    {UnaryOp::rsqrt, "rsqrt", [](double x) { return 1 / std::sqrt(x); }, 0.1, 9, false, 2},
    {UnaryOp::reciprocal, "reciprocal", [](double x) { return 1 / x; }, 0.1, 9, false, 1},
    {UnaryOp::square, "square", [](double x) { return x * x; }, -3, 3, true, 1},
    {UnaryOp::sin, "sin", [](double x) { return std::sin(x); }, -9, 9, false, 2},
    {UnaryOp::cos, "cos", [](double x) { return std::cos(x); }, -9, 9, false, 2},
    {UnaryOp::tanh, "tanh", [](double x) { return std::tanh(x); }, -4, 4, false, 2},
    {UnaryOp::sigmoid, "sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -9, 9, false, 3},
    {UnaryOp::relu, "relu", [](double x) { return std::max(x, 0.0); }, -3, 3, true},
    {UnaryOp::softplus, "softplus", [](double x) { return std::log1p(std::exp(x)); }, -9, 9, false, 3},
    {UnaryOp::gelu_exact, "gelu_exact", [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }, -4, 4, false,
     24},  // erfc magnifies the rounding of its argument
    {UnaryOp::gelu_tanh, "gelu_tanh",
     [](double x) { return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x))); }, -3,
     3, false, 12},  // the polynomial's rounding is amplified by exp
    {UnaryOp::silu, "silu", [](double x) { return x / (1 + std::exp(-x)); }, -9, 9, false, 3},
    {UnaryOp::hardswish, "hardswish", [](double x) { return x * std::min(std::max(x + 3, 0.0), 6.0) / 6; }, -5, 5,
     false, 2},
    {UnaryOp::normal_cdf, "normal_cdf", [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }, -4, 4, false,
     24},  // as gelu_exact
    {UnaryOp::log1p, "log1p", [](double x) { return std::log1p(x); }, -0.9, 9, false, 2},
    {UnaryOp::expm1, "expm1", [](double x) { return std::expm1(x); }, -5, 5, false, 2},
    {UnaryOp::erf, "erf", [](double x) { return std::erf(x); }, -3, 3, false, 2},
    {UnaryOp::floor, "floor", [](double x) { return std::floor(x); }, -3, 3, true},
    {UnaryOp::ceil, "ceil", [](double x) { return std::ceil(x); }, -3, 3, true},
    {UnaryOp::round, "round", [](double x) { return std::nearbyint(x); }, -3, 3, true},
    {UnaryOp::trunc, "trunc", [](double x) { return std::trunc(x); }, -3, 3, true},
    {UnaryOp::logical_not, "logical_not", [](double x) { return x == 0 ? 1.0 : 0.0; }, -2, 2, true},
    {UnaryOp::add_scalar, "add_scalar", [](double x) { return x + kA; }, -2, 2, false, 1},
    {UnaryOp::mul_scalar, "mul_scalar", [](double x) { return x * kA; }, -2, 2, false, 1},
    {UnaryOp::pow_scalar, "pow_scalar", [](double x) { return std::pow(x, kA); }, 0, 4, false, 2},
    {UnaryOp::clamp, "clamp", [](double x) { return std::min(std::max(x, kA), kB); }, -3, 3, false},
};

// The operations without a row; empty when there are none.
template <class Op>
std::string without_row(const auto& rows) {
  std::string missing;
  for (std::size_t i = 0; i < kCountOf<Op>; ++i) {
    const auto op = static_cast<Op>(i);
    if (std::none_of(rows.begin(), rows.end(), [op](const auto& row) { return row.op == op; }))
      missing += cat(missing.empty() ? "" : ", ", op_name(op));
  }
  return missing;
}

}  // namespace

TEST_CASE("every unary operation has a row", "[elementwise]") { CHECK(without_row<UnaryOp>(kUnary) == ""); }

TEST_CASE("unary agrees with one scalar at a time", "[elementwise]") {
  for (const UnaryCase& c : kUnary)
    for (const DType dtype : kAllDTypes) {
      if (!is_floating(dtype) && !c.integers) continue;
      if (dtype == DType::boolean && c.op != UnaryOp::logical_not) continue;
      const DType out_dtype = c.op == UnaryOp::logical_not ? DType::boolean : dtype;
      for (const Shape& shape : kElementwiseShapes)
        for (const Layout in_layout : kInputLayouts)
          for (const Layout out_layout : kOutputLayouts) {
            TestTensor x(dtype, shape, in_layout), y(out_dtype, shape, out_layout);
            x.fill_random(7, c.low, c.high);
            run(UnaryArgs{.op = c.op, .in = x.in(), .out = y.out(), .a = kA, .b = kB});
            const auto want = [&](std::int64_t i) {
              const double value = c.reference(x[i]);
              return is_floating(dtype) || out_dtype == DType::boolean
                         ? value
                         : static_cast<double>(wrap(dtype, static_cast<std::int64_t>(value)));
            };
            const std::string error = mismatch(y, want, c.tolerance);
            INFO(c.name << " " << name_of(in_layout) << " to " << name_of(out_layout));
            if (!error.empty()) FAIL(error);
          }
    }
}

TEST_CASE("unary scalars on integers", "[elementwise]") {
  for (const DType dtype : {DType::i32, DType::i64, DType::u8, DType::i8}) {
    TestTensor x(dtype, {9}), y(dtype, {9});
    x.fill([](std::int64_t i) { return static_cast<double>(i); });
    run(UnaryArgs{.op = UnaryOp::add_scalar, .in = x.in(), .out = y.out(), .a = 3});
    CHECK(mismatch(y, [](std::int64_t i) { return i + 3.0; }) == "");
    run(UnaryArgs{.op = UnaryOp::mul_scalar, .in = x.in(), .out = y.out(), .a = 3});
    CHECK(mismatch(y, [](std::int64_t i) { return i * 3.0; }) == "");
    run(UnaryArgs{.op = UnaryOp::pow_scalar, .in = x.in(), .out = y.out(), .a = 2});
    CHECK(mismatch(y, [](std::int64_t i) { return static_cast<double>(i * i); }) == "");
    run(UnaryArgs{.op = UnaryOp::pow_scalar, .in = x.in(), .out = y.out(), .a = 0});
    CHECK(mismatch(y, [](std::int64_t) { return 1.0; }) == "");
    run(UnaryArgs{.op = UnaryOp::clamp, .in = x.in(), .out = y.out(), .a = 2, .b = 5});
    CHECK(mismatch(y, [](std::int64_t i) { return std::min(std::max(i + 0.0, 2.0), 5.0); }) == "");
  }
  SECTION("a negative power of an integer is 0, except of 1 and -1") {
    TestTensor x(DType::i64, {5}), y(DType::i64, {5});
    x.fill([](std::int64_t i) { return static_cast<double>(i - 2); });
    run(UnaryArgs{.op = UnaryOp::pow_scalar, .in = x.in(), .out = y.out(), .a = -3});
    CHECK(y.values() == std::vector<double>{0, -1, 0, 1, 0});
  }
  SECTION("the lowest integer has no negative: it wraps") {
    TestTensor x(DType::i32, {1}), y(DType::i32, {1});
    x.set(0, std::numeric_limits<std::int32_t>::min());
    run(UnaryArgs{.op = UnaryOp::neg, .in = x.in(), .out = y.out()});
    CHECK(y[0] == std::numeric_limits<std::int32_t>::min());
    run(UnaryArgs{.op = UnaryOp::square, .in = x.in(), .out = y.out()});
    CHECK(y[0] == 0);
  }
}

TEST_CASE("unary at the edges of the floating-point numbers", "[elementwise]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto apply = [&](UnaryOp op, double value, double a = 0, double b = 0) {
      TestTensor x(dtype, {19}), y(dtype, {19});  // vector part and tail
      x.fill([&](std::int64_t) { return value; });
      run(UnaryArgs{.op = op, .in = x.in(), .out = y.out(), .a = a, .b = b});
      for (std::int64_t i = 1; i < 19; ++i)
        if (std::isnan(y[0]) ? !std::isnan(y[i]) : y[i] != y[0]) return -12345.0;
      return y[0];
    };
    CAPTURE(to_string(dtype));
    for (const UnaryCase& c : kUnary) {
      if (c.op == UnaryOp::logical_not) continue;
      INFO(c.name);
      CHECK(std::isnan(apply(c.op, nan, kA, kB)));
    }
    CHECK(apply(UnaryOp::exp, kInf) == kInf);
    CHECK(apply(UnaryOp::exp, -kInf) == 0);
    CHECK(apply(UnaryOp::exp, 1e30) == kInf);
    CHECK(apply(UnaryOp::exp, -1e30) == 0);
    CHECK(apply(UnaryOp::exp, 0) == 1);
    CHECK(apply(UnaryOp::log, 0) == -kInf);
    CHECK(apply(UnaryOp::log, 1) == 0);
    CHECK(apply(UnaryOp::log, kInf) == kInf);
    CHECK(std::isnan(apply(UnaryOp::log, -1)));
    CHECK(apply(UnaryOp::log, 1e-40) == Approx(std::log(rounded(dtype, 1e-40))));  // subnormal in f32
    CHECK(apply(UnaryOp::tanh, kInf) == 1);
    CHECK(apply(UnaryOp::tanh, -kInf) == -1);
    CHECK(apply(UnaryOp::tanh, 1e-20) == rounded(dtype, 1e-20));
    CHECK(apply(UnaryOp::sigmoid, kInf) == 1);
    CHECK(apply(UnaryOp::sigmoid, -kInf) == 0);
    CHECK(apply(UnaryOp::softplus, kInf) == kInf);
    CHECK(apply(UnaryOp::softplus, -kInf) == 0);
    CHECK(apply(UnaryOp::softplus, 500) == 500);
    CHECK(apply(UnaryOp::gelu_exact, 50) == 50);
    CHECK(apply(UnaryOp::gelu_exact, -50) == 0);
    CHECK(apply(UnaryOp::hardswish, -3) == 0);
    CHECK(apply(UnaryOp::hardswish, 3) == 3);
    const double most = dtype == DType::f32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
    CHECK(apply(UnaryOp::hardswish, most) == most);
    CHECK(apply(UnaryOp::hardswish, -most) == 0);
    CHECK(std::isnan(apply(UnaryOp::sqrt, -1)));
    CHECK(apply(UnaryOp::rsqrt, 0) == kInf);
    CHECK(std::signbit(apply(UnaryOp::neg, 0)));
    CHECK(apply(UnaryOp::pow_scalar, -3, 2) == 9);
    CHECK(apply(UnaryOp::pow_scalar, 0, 0) == 1);
    CHECK(std::isnan(apply(UnaryOp::pow_scalar, -3, 0.5)));
    CHECK(apply(UnaryOp::log1p, -1) == -kInf);
    CHECK(apply(UnaryOp::log1p, kInf) == kInf);
    CHECK(std::isnan(apply(UnaryOp::log1p, -1.5)));
    CHECK(std::isnan(apply(UnaryOp::log1p, -kInf)));
    CHECK(std::signbit(apply(UnaryOp::log1p, -0.0)));
    CHECK(apply(UnaryOp::expm1, kInf) == kInf);
    CHECK(apply(UnaryOp::expm1, -kInf) == -1);
    CHECK(std::signbit(apply(UnaryOp::expm1, -0.0)));
    CHECK(apply(UnaryOp::clamp, kInf, -1, 1) == 1);
  }
}

namespace {

struct BinaryCase {
  BinaryOp op;
  const char* name;
  double (*reference)(double x, double y);
  enum { floats, numbers, all } dtypes;
  bool predicate = false;
  double tolerance = 1;
  double reach = 2;  // of y: beyond what bends the function
};
constexpr double kAlpha = 3;

const std::vector<BinaryCase> kBinary = {
    {BinaryOp::add, "add", [](double x, double y) { return x + kAlpha * y; }, BinaryCase::numbers, false, 4},
    {BinaryOp::sub, "sub", [](double x, double y) { return x - y; }, BinaryCase::numbers},
    {BinaryOp::mul, "mul", [](double x, double y) { return x * y; }, BinaryCase::numbers},
    {BinaryOp::div, "div", [](double x, double y) { return x / y; }, BinaryCase::floats},
    {BinaryOp::pow, "pow", [](double x, double y) { return std::pow(x, y); }, BinaryCase::floats, false, 2},
    {BinaryOp::maximum, "maximum", [](double x, double y) { return std::max(x, y); }, BinaryCase::all},
    {BinaryOp::minimum, "minimum", [](double x, double y) { return std::min(x, y); }, BinaryCase::all},
    {BinaryOp::eq, "eq", [](double x, double y) { return x == y ? 1.0 : 0.0; }, BinaryCase::all, true},
    {BinaryOp::ne, "ne", [](double x, double y) { return x != y ? 1.0 : 0.0; }, BinaryCase::all, true},
    {BinaryOp::lt, "lt", [](double x, double y) { return x < y ? 1.0 : 0.0; }, BinaryCase::all, true},
    {BinaryOp::le, "le", [](double x, double y) { return x <= y ? 1.0 : 0.0; }, BinaryCase::all, true},
    {BinaryOp::gt, "gt", [](double x, double y) { return x > y ? 1.0 : 0.0; }, BinaryCase::all, true},
    {BinaryOp::ge, "ge", [](double x, double y) { return x >= y ? 1.0 : 0.0; }, BinaryCase::all, true},
    {BinaryOp::logical_and, "logical_and", [](double x, double y) { return x != 0 && y != 0 ? 1.0 : 0.0; },
     BinaryCase::all, true},
    {BinaryOp::logical_or, "logical_or", [](double x, double y) { return x != 0 || y != 0 ? 1.0 : 0.0; },
     BinaryCase::all, true},
    {BinaryOp::logical_xor, "logical_xor", [](double x, double y) { return (x != 0) != (y != 0) ? 1.0 : 0.0; },
     BinaryCase::all, true},
    {BinaryOp::relu_grad, "relu_grad", [](double x, double y) { return y <= 0 ? 0.0 : x; }, BinaryCase::floats},
    {BinaryOp::tanh_grad, "tanh_grad", [](double x, double y) { return x * (1 - y * y); }, BinaryCase::floats, false,
     16},
    {BinaryOp::sigmoid_grad, "sigmoid_grad", [](double x, double y) { return x * y * (1 - y); }, BinaryCase::floats,
     false, 16},
    {BinaryOp::softplus_grad, "softplus_grad", [](double x, double y) { return x / (1 + std::exp(-y)); },
     BinaryCase::floats, false, 16},
    {BinaryOp::silu_grad, "silu_grad",
     [](double x, double y) {
       const double s = 1 / (1 + std::exp(-y));
       return x * s * (1 + y * (1 - s));
     },
     BinaryCase::floats, false, 16},
    {BinaryOp::gelu_grad, "gelu_grad",
     [](double x, double y) {
       return x * (0.5 * std::erfc(-y / std::sqrt(2)) + y * std::exp(-y * y / 2) / std::sqrt(2 * std::acos(-1.0)));
     },
     BinaryCase::floats, false, 16},
    {BinaryOp::gelu_tanh_grad, "gelu_tanh_grad",
     [](double x, double y) {
       const double k = std::sqrt(2 / std::acos(-1.0)), t = std::tanh(k * (y + 0.044715 * y * y * y));
       return x * (0.5 * (1 + t) + 0.5 * y * (1 - t * t) * k * (1 + 3 * 0.044715 * y * y));
     },
     BinaryCase::floats, false, 16},
    {BinaryOp::hardswish_grad, "hardswish_grad",
     [](double x, double y) {
       if (std::fabs(y) >= 3) return y > 0 ? x : 0;
       return x * (y / 3 + 0.5);
     },
     BinaryCase::floats, false, 2, 5},
    {BinaryOp::floor_div, "floor_div", [](double x, double y) { return std::floor(x / y); }, BinaryCase::floats},
    {BinaryOp::remainder, "remainder", [](double x, double y) { return std::fmod(x, y); }, BinaryCase::floats},
    {BinaryOp::smooth_l1, "smooth_l1",
     [](double x, double y) {
       const double d = std::fabs(x - y);
       return d < kAlpha ? d * d / (2 * kAlpha) : d - kAlpha / 2;
     },
     BinaryCase::floats, false, 16},
};

bool legal(const BinaryCase& c, DType dtype) {
  if (c.dtypes == BinaryCase::floats) return is_floating(dtype);
  return c.dtypes == BinaryCase::all || dtype != DType::boolean;
}

}  // namespace

TEST_CASE("every binary operation has a row", "[elementwise]") { CHECK(without_row<BinaryOp>(kBinary) == ""); }

TEST_CASE("binary agrees with one scalar at a time", "[elementwise]") {
  for (const BinaryCase& c : kBinary)
    for (const DType dtype : kAllDTypes) {
      if (!legal(c, dtype)) continue;
      for (const Shape& shape : kElementwiseShapes)
        for (const Layout x_layout : kInputLayouts)
          for (const Layout y_layout : kInputLayouts) {
            // Every pair of one input's layout with the output's, and of the inputs' layouts.
            const Layout out_layout = kOutputLayouts[(static_cast<int>(x_layout) + static_cast<int>(y_layout)) % 3];
            TestTensor x(dtype, shape, x_layout), y(dtype, shape, y_layout);
            TestTensor z(c.predicate ? DType::boolean : dtype, shape, out_layout);
            const bool positive = c.op == BinaryOp::pow || c.op == BinaryOp::div || c.op == BinaryOp::floor_div ||
                                  c.op == BinaryOp::remainder;
            // Few values for predicates, so that equal ones occur.
            x.fill_random(3, positive ? 0.5 : -2, 2);
            y.fill_random(11, positive ? 0.5 : -c.reach, c.reach);
            if (c.predicate) {
              x.fill([&, copy = x.values()](std::int64_t i) { return std::trunc(copy[static_cast<std::size_t>(i)]); });
              y.fill([&, copy = y.values()](std::int64_t i) { return std::trunc(copy[static_cast<std::size_t>(i)]); });
            }
            run(BinaryArgs{.op = c.op, .x = x.in(), .y = y.in(), .out = z.out(), .alpha = kAlpha});
            const auto want = [&](std::int64_t i) {
              const double value = c.reference(x[i], y[i]);
              return c.predicate || is_floating(dtype) || dtype == DType::boolean
                         ? value
                         : static_cast<double>(wrap(dtype, static_cast<std::int64_t>(value)));
            };
            // The absolute part covers sums that cancel.
            const std::string error = mismatch(z, want, c.tolerance, c.tolerance);
            INFO(c.name << " " << name_of(x_layout) << ", " << name_of(y_layout) << " to " << name_of(out_layout));
            if (!error.empty()) FAIL(error);
          }
    }
}

TEST_CASE("binary in place", "[elementwise]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::i32})
    for (const Layout layout : kOutputLayouts)
      for (const std::int64_t count : {1, 7, 64, 1001}) {
        TestTensor x(dtype, {count, 2}, layout), y(dtype, {count, 2});
        x.fill_random(5, 0, 9);
        y.fill_random(6, 0, 9);
        const TestTensor before = x;
        run(BinaryArgs{.op = BinaryOp::add, .x = x.in(), .y = y.in(), .out = x.out()});
        CHECK(mismatch(x, [&](std::int64_t i) { return before[i] + y[i]; }) == "");
        run(UnaryArgs{.op = UnaryOp::square, .in = y.in(), .out = y.out()});
      }
}

TEST_CASE("where picks elements of every dtype", "[elementwise]") {
  for (const DType dtype : kAllDTypes)
    for (const Shape& shape : kElementwiseShapes)
      for (const Layout c_layout : kInputLayouts)
        for (const Layout x_layout : kInputLayouts)
          for (const Layout out_layout : kOutputLayouts) {
            TestTensor condition(DType::boolean, shape, c_layout), x(dtype, shape, x_layout);
            TestTensor y(dtype, shape, Layout::slice), z(dtype, shape, out_layout);
            condition.fill_random(1);
            x.fill_random(2);
            y.fill_random(3);
            run(WhereArgs{.condition = condition.in(), .x = x.in(), .y = y.in(), .out = z.out()});
            const std::string error = mismatch(
                z, [&](std::int64_t i) { return condition[i] != 0 ? x[i] : y[i]; }, 0);
            if (!error.empty()) FAIL(error);
          }
}

TEST_CASE("short rows beside rows that repeat, in place too", "[elementwise]") {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    for (const std::int64_t columns : {1, 2, 3, 4, 7, 31, 32, 33, 300})
      for (const std::int64_t rows : {1, 5, 1100}) {
        TestTensor x(dtype, {rows, columns}), column(dtype, {rows, 1}), row(dtype, {1, columns});
        x.fill_random(1, 0, 9), column.fill_random(2, 0, 9), row.fill_random(3, 0, 9);
        const TestTensor before = x;
        INFO(to_string(dtype) << " " << rows << " x " << columns);
        for (const bool of_rows : {false, true}) {
          View repeated = of_rows ? row.view() : column.view();
          repeated.shape = x.shape();
          repeated.strides = of_rows ? Strides{0, 1} : Strides{1, 0};
          TestTensor gaps(dtype, {rows, columns}, Layout::slice);
          const auto want = [&](std::int64_t i) {
            const double product = before[i] * (of_rows ? row[i % columns] : column[i / columns]);
            return is_floating(dtype) ? product : static_cast<double>(wrap(dtype, static_cast<std::int64_t>(product)));
          };
          run(BinaryArgs{.op = BinaryOp::mul, .x = before.in(), .y = {repeated}, .out = gaps.out()});
          CHECK(mismatch(gaps, want, 1) == "");
          run(CastArgs{.in = {repeated}, .out = gaps.out()});
          CHECK(mismatch(
                    gaps, [&](std::int64_t i) { return of_rows ? row[i % columns] : column[i / columns]; }, 0) == "");
          x = before;
          run(BinaryArgs{.op = BinaryOp::mul, .x = x.in(), .y = {repeated}, .out = x.out()});
          CHECK(mismatch(x, want, 1) == "");
        }
      }
  }
}
