// binary at the edges of what dtypes hold: NaN, infinities, products beyond the range, integers over 0.
#include <limits>

#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

TEST_CASE("binary edges", "[elementwise]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kFloatingDTypes) {
    const auto apply = [&](BinaryOp op, double a, double b) {
      TestTensor x(dtype, {9}), y(dtype, {9}),
          z(op >= BinaryOp::eq && op <= BinaryOp::ge ? DType::boolean : dtype, {9});
      x.fill([&](std::int64_t) { return a; });
      y.fill([&](std::int64_t) { return b; });
      run(BinaryArgs{.op = op, .x = x.in(), .y = y.in(), .out = z.out()});
      return z[8];
    };
    CAPTURE(to_string(dtype));
    CHECK(std::isnan(apply(BinaryOp::maximum, nan, 1)));
    CHECK(std::isnan(apply(BinaryOp::maximum, 1, nan)));
    CHECK(std::isnan(apply(BinaryOp::minimum, nan, 1)));
    CHECK(std::isnan(apply(BinaryOp::minimum, 1, nan)));
    CHECK(apply(BinaryOp::eq, nan, nan) == 0);
    CHECK(apply(BinaryOp::ne, nan, nan) == 1);
    CHECK(apply(BinaryOp::le, nan, nan) == 0);
    CHECK(apply(BinaryOp::div, 1, 0) == std::numeric_limits<double>::infinity());
    CHECK(apply(BinaryOp::relu_grad, 5, 0) == 0);
    CHECK(apply(BinaryOp::relu_grad, nan, -1) == 0);
    CHECK(apply(BinaryOp::relu_grad, 5, nan) == 5);
    CHECK(apply(BinaryOp::hardswish_grad, 5, -3) == 0);
    CHECK(apply(BinaryOp::hardswish_grad, 5, 3) == 5);
    CHECK(apply(BinaryOp::hardswish_grad, 5, nan) == 5);
    CHECK(apply(BinaryOp::hardswish_grad, std::numeric_limits<double>::infinity(), -4) == 0);
    // Beyond the squares and cubes that the dtype can hold.
    const double large = dtype == DType::f64 ? 1e110 : 1e13, far = dtype == DType::f16 ? 6e4 : large;
    for (const BinaryOp op :
         {BinaryOp::gelu_grad, BinaryOp::gelu_tanh_grad, BinaryOp::silu_grad, BinaryOp::hardswish_grad}) {
      CHECK(apply(op, 3, far) == 3);
      CHECK(apply(op, 3, -far) == 0);
    }
  }
  SECTION("i64 keeps all 64 bits") {
    TestTensor x(DType::i64, {3}), y(DType::i64, {3}), z(DType::i64, {3});
    constexpr std::int64_t kBig = (std::int64_t{1} << 60) + 1;
    for (int i = 0; i < 3; ++i) x.set_integer(i, kBig), y.set_integer(i, 3);
    run(BinaryArgs{.op = BinaryOp::mul, .x = x.in(), .y = y.in(), .out = z.out()});
    CHECK(z.integer(2) == kBig * 3);
    run(BinaryArgs{.op = BinaryOp::add, .x = x.in(), .y = y.in(), .out = z.out(), .alpha = -1});
    CHECK(z.integer(2) == kBig - 3);
    run(BinaryArgs{.op = BinaryOp::pow, .x = y.in(), .y = y.in(), .out = z.out()});
    CHECK(z.integer(2) == 27);
  }
}

TEST_CASE("floor_div, remainder and smooth_l1", "[elementwise]") {
  const auto binary = [](BinaryOp op, DType dtype, std::vector<double> a, std::vector<double> b, double alpha = 1) {
    const auto count = static_cast<std::int64_t>(a.size());
    TestTensor x(dtype, {count}), y(dtype, {count}), z(dtype, {count});
    x.fill([&](std::int64_t i) { return a[static_cast<std::size_t>(i)]; });
    y.fill([&](std::int64_t i) { return b[static_cast<std::size_t>(i)]; });
    run(BinaryArgs{.op = op, .x = x.in(), .y = y.in(), .out = z.out(), .alpha = alpha});
    return z.values();
  };
  using Doubles = std::vector<double>;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64}) {
    INFO(to_string(dtype));
    CHECK(binary(BinaryOp::floor_div, dtype, {7, -7, 7, -7, 6, -6, 0}, {2, 2, -2, -2, 3, 3, 5}) ==
          Doubles{3, -4, -4, 3, 2, -2, 0});
    CHECK(binary(BinaryOp::remainder, dtype, {7, -7, 7, -7, 6, -6, 0}, {2, 2, -2, -2, 3, 3, 5}) ==
          Doubles{1, 1, -1, -1, 0, 0, 0});
  }
  CHECK(binary(BinaryOp::floor_div, DType::u8, {7, 255, 9}, {2, 16, 0}) == Doubles{3, 15, 0});
  CHECK(binary(BinaryOp::remainder, DType::u8, {7, 255, 9}, {2, 16, 0}) == Doubles{1, 15, 9});
  const double least = std::numeric_limits<std::int32_t>::min();
  CHECK(binary(BinaryOp::floor_div, DType::i32, {least, 5, -5}, {-1, 0, 0}) == Doubles{least, 0, 0});
  CHECK(binary(BinaryOp::remainder, DType::i32, {least, 5, -5}, {-1, 0, 0}) == Doubles{0, 5, -5});
  CHECK(binary(BinaryOp::floor_div, DType::f64, {1, -1, 0.7, std::numeric_limits<double>::infinity()},
               {0, 0, 0.1, 1})[0] == std::numeric_limits<double>::infinity());
  CHECK(binary(BinaryOp::floor_div, DType::f64, {-1}, {0})[0] == -std::numeric_limits<double>::infinity());
  // 0.7 / 0.1 rounds to 7, but 0.7 is less than 7 times 0.1: what is left of it is almost 0.1.
  CHECK(binary(BinaryOp::floor_div, DType::f64, {0.7}, {0.1})[0] == 6);
  CHECK(binary(BinaryOp::remainder, DType::f64, {0.7}, {0.1})[0] == Approx(0.1));
  CHECK(binary(BinaryOp::remainder, DType::f32, {5.5, -5.5}, {2, 2}) == Doubles{1.5, 0.5});
  for (const DType dtype : kFloatingDTypes) {
    CHECK(binary(BinaryOp::smooth_l1, dtype, {0, 1, 3, -3, 0.5}, {0, 0, 0, 0, 0}, 1) ==
          Doubles{0, 0.5, 2.5, 2.5, 0.125});
    CHECK(binary(BinaryOp::smooth_l1, dtype, {1, 4, -4}, {0, 1, 1}, 2) == Doubles{0.25, 2, 4});
    CHECK(binary(BinaryOp::smooth_l1, dtype, {0, 1, -3}, {0, 0, 0}, 0) == Doubles{0, 1, 3});
    CHECK(std::isnan(binary(BinaryOp::smooth_l1, dtype, {std::numeric_limits<double>::quiet_NaN()}, {0}, 1)[0]));
  }
}
