// cast, fill and arange.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

TEST_CASE("cast converts between every pair of dtypes and layouts", "[cast]") {
  const std::vector<Shape> shapes = {{}, {0}, {1}, {35}, {3, 5}, {2, 3, 4}, {2, 700}, {3, 4, 8}, {2, 3, 16}, {30, 75}};
  for (const DType from : kAllDTypes)
    for (const DType to : kAllDTypes)
      for (const Shape& shape : shapes)
        for (const Layout in_layout : kInputLayouts)
          for (const Layout out_layout : kOutputLayouts) {
            TestTensor x(from, shape, in_layout), y(to, shape, out_layout);
            x.fill_random(9, 0, 100);
            run(CastArgs{.in = x.in(), .out = y.out()});
            const auto want = [&](std::int64_t i) {
              if (to == DType::boolean) return x[i] != 0 ? 1.0 : 0.0;
              return is_floating(to) ? x[i] : std::trunc(x[i]);
            };
            const std::string error = mismatch(y, want, 0);
            INFO(to_string(from) << " " << name_of(in_layout) << " to " << name_of(out_layout));
            if (!error.empty()) FAIL(error);
          }
}

TEST_CASE("cast of numbers that do not fit", "[cast]") {
  TestTensor x(DType::f32, {20}), narrow(DType::i32, {20}), half(DType::f16, {20}), flag(DType::boolean, {20});
  x.fill([](std::int64_t i) { return i % 2 ? 1e20 : std::numeric_limits<double>::quiet_NaN(); });
  run(CastArgs{.in = x.in(), .out = narrow.out()});
  CHECK(narrow[18] == 0);
  CHECK(narrow[19] == std::numeric_limits<std::int32_t>::max());
  run(CastArgs{.in = x.in(), .out = half.out()});
  CHECK(std::isnan(half[18]));
  CHECK(std::isinf(half[19]));
  run(CastArgs{.in = x.in(), .out = flag.out()});
  CHECK(flag[18] == 1);
  // Most fit into 32 bits, a few do not, on both sides of a block of those that are converted together.
  TestTensor mixed(DType::f32, {600}), wide(DType::i64, {600});
  mixed.fill([](std::int64_t i) { return i == 255 ? 0x1p31 : i == 599 ? -0x1p40 : i % 2 ? -1.75 : 2147483520.0; });
  run(CastArgs{.in = mixed.in(), .out = wide.out()});
  for (std::int64_t i = 0; i < 600; ++i) CHECK(wide.integer(i) == static_cast<std::int64_t>(mixed[i]));
  TestTensor big(DType::i64, {2}), copy(DType::i64, {2}), wrapped(DType::i32, {2});
  big.set_integer(0, (std::int64_t{1} << 62) + 1);
  big.set_integer(1, -5);
  run(CastArgs{.in = big.in(), .out = copy.out()});
  CHECK(copy.integer(0) == (std::int64_t{1} << 62) + 1);
  run(CastArgs{.in = big.in(), .out = wrapped.out()});
  CHECK(wrapped.values() == std::vector<double>{1, -5});
}

TEST_CASE("fill writes every element and nothing else", "[fill]") {
  for (const DType dtype : kAllDTypes)
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{1001}, Shape{3, 5, 2}})
      for (const Layout layout : kOutputLayouts) {
        TestTensor y(dtype, shape, layout);
        run(FillArgs{.out = y.out(), .value = 3.5, .integer = 3});
        const double want = is_floating(dtype) ? 3.5 : dtype == DType::boolean ? 1 : 3;
        CHECK(mismatch(
                  y, [&](std::int64_t) { return want; }, 0) == "");
      }
  TestTensor big(DType::i64, {3});
  run(FillArgs{.out = big.out(), .value = 0, .integer = (std::int64_t{1} << 62) + 1});
  CHECK(big.integer(2) == (std::int64_t{1} << 62) + 1);
}

TEST_CASE("arange", "[arange]") {
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::boolean) continue;
    for (const Layout layout : {Layout::contiguous, Layout::slice}) {
      TestTensor y(dtype, {50}, layout);
      run(ArangeArgs{.out = y.out(), .start = 3, .step = 2});
      CHECK(mismatch(
                y, [](std::int64_t i) { return 3.0 + 2.0 * i; }, 0) == "");
    }
  }
  TestTensor y(DType::f64, {4}), empty(DType::f32, {0}), exact(DType::i64, {3});
  run(ArangeArgs{.out = y.out(), .start = 1, .step = -0.25});
  CHECK(y.values() == std::vector<double>{1, 0.75, 0.5, 0.25});
  run(ArangeArgs{.out = empty.out(), .start = 1, .step = 1});
  run(ArangeArgs{.out = exact.out(), .start = 0x1p60, .step = 1});
  CHECK(exact.integer(2) == (std::int64_t{1} << 60) + 2);
}
