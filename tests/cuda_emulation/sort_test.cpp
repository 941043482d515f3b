// Sorting by the three ways of argsort, and additions by sorted indices: CUB's parts are stood in for.
#include <algorithm>
#include <cmath>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <limits>
#include <numeric>
#include <utility>

#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct Counted {  // calls since this object was made
  std::int64_t sorts = cub::DeviceRadixSort::sorted, scans = cub::DeviceScan::scanned;
  std::int64_t sorted() const { return cub::DeviceRadixSort::sorted - sorts; }
  std::int64_t scanned() const { return cub::DeviceScan::scanned - scans; }
};

// What is first of the ends of the dtype, of numbers that are equal, and of any.
double special(DType dtype, std::int64_t i) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  if (is_floating(dtype)) {
    const double tiny = dtype == DType::f16 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-133 : 0x1p-149;
    const double values[] = {nan, inf, -inf, 0.0, -0.0, tiny, -tiny, 2 * tiny, 65504, -65504, 1, -1};
    return values[i % 12];
  }
  if (dtype == DType::boolean) return static_cast<double>(i % 2);
  if (dtype == DType::u8) return static_cast<double>(i % 3 == 0 ? 255 : i % 256);
  if (dtype == DType::i8) return static_cast<double>(i % 3 == 0 ? 127 : i % 256 - 128);
  return static_cast<double>(i % 5 - 2);
}

bool sorted_right(const TestTensor& x, const TestTensor& indices, const Shape& shape, std::int64_t wanted,
                  bool descending) {
  const std::int64_t size = shape[1], inner = shape[2];
  const auto less = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
  for (std::int64_t line = 0; line < shape[0] * inner; ++line) {
    const auto value = [&](std::int64_t i) { return x[(line / inner * size + i) * inner + line % inner]; };
    std::vector<std::int64_t> order(static_cast<std::size_t>(size));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return descending ? less(value(b), value(a)) : less(value(a), value(b));
    });
    for (std::int64_t k = 0; k < wanted; ++k)
      if (indices.integer((line / inner * wanted + k) * inner + line % inner) != order[static_cast<std::size_t>(k)])
        return false;
  }
  return indices.guards_intact();
}

}  // namespace

TEST_CASE("lines are sorted by ranks, by blocks and all together", "[argsort][sort]") {
  for (const auto& [shape, wanted, together] :
       {std::tuple{Shape{1, 256, 1}, 256, false}, std::tuple{Shape{3, 257, 1}, 257, false},
        std::tuple{Shape{2, 511, 2}, 511, false}, std::tuple{Shape{1, 512, 1}, 3, false},
        std::tuple{Shape{1, 513, 3}, 513, false}, std::tuple{Shape{2, 2047, 1}, 2047, false},
        std::tuple{Shape{1, 2048, 1}, 2048, false}, std::tuple{Shape{2, 700, 1}, 0, false},
        std::tuple{Shape{1, 2049, 1}, 2049, true}, std::tuple{Shape{3, 2100, 1}, 50, true},
        std::tuple{Shape{2, 2050, 3}, 2050, true}})
    for (const DType dtype : kAllDTypes)
      for (const bool descending : {false, true}) {
        CAPTURE(to_string(dtype), to_string(shape), wanted, descending);
        TestTensor x(dtype, shape), indices(DType::i64, {shape[0], wanted, shape[2]});
        x.fill([&](std::int64_t i) { return special(dtype, i * 7919 % 10007); });
        const Counted calls;
        run(ArgsortArgs{x.in(), indices.out(), descending});
        CHECK(sorted_right(x, indices, shape, wanted, descending));
        const std::int64_t pieces = size_of(dtype) == 8 ? 2 : 1;  // 64 bits of a value beside those of its position
        CHECK(calls.sorted() == (together ? pieces : 0));
      }
}

// Lines in more bits than fit beside 64 of a value, and numbers that differ in one bit only, wherever it is.
TEST_CASE("all bits of an element and of its line count", "[argsort][sort]") {
  constexpr std::int64_t kSize = 2049;
  for (const int bit : {0, 1, 7, 8, 15, 31, 32, 48, 49, 50, 51, 52, 53, 62, 63}) {
    CAPTURE(bit);
    TestTensor x(DType::i64, {5, kSize, 1}), indices(DType::i64, {5, kSize, 1});
    for (std::int64_t i = 0; i < x.count(); ++i)
      x.set_integer(i, static_cast<std::int64_t>(static_cast<std::uint64_t>(i * 31 % 7 < 3) << bit));
    run(ArgsortArgs{x.in(), indices.out(), false});
    bool right = true;
    for (std::int64_t line = 0; line < 5; ++line) {
      std::vector<std::int64_t> order(kSize);
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return x.integer(line * kSize + a) < x.integer(line * kSize + b);
      });
      for (std::int64_t k = 0; k < kSize; ++k)
        right &= indices.integer(line * kSize + k) == order[static_cast<std::size_t>(k)];
    }
    CHECK(right);
  }
}

TEST_CASE("elements of 32 bits take two sorts where their lines and positions leave too little room",
          "[argsort][sort]") {
  const Shape shape{3000, 2049, 1};  // 32 bits of a value, 12 of a line, 23 of a position
  TestTensor x(DType::i32, shape), indices(DType::i64, {3000, 2, 1});
  x.fill([](std::int64_t i) {
    return static_cast<double>(static_cast<std::int32_t>(static_cast<std::uint32_t>(i * 2654435761) & 0xff00000fu));
  });
  const Counted calls;
  run(ArgsortArgs{x.in(), indices.out(), false});
  CHECK(calls.sorted() == 2);
  bool right = true;
  for (std::int64_t line = 0; line < 3000; ++line) {
    const auto value = [&](std::int64_t i) { return x[line * 2049 + i]; };
    std::int64_t first = 0, second = -1;
    for (std::int64_t i = 1; i < 2049; ++i)
      if (value(i) < value(first))
        second = first, first = i;
      else if (second < 0 || value(i) < value(second))
        second = i;
    right &= indices.integer(2 * line) == first && indices.integer(2 * line + 1) == second;
  }
  CHECK(right);
}

// Sums of numbers whose order shows, as on the host: in the order of the indices, for each target.
TEST_CASE("additions by sorted indices are in index order", "[index][sort]") {
  constexpr std::int64_t kCount = 3000;
  for (const std::int64_t targets : {std::int64_t{1}, std::int64_t{2}, std::int64_t{300}, std::int64_t{40000}})
    for (const std::int64_t width : {1, 3}) {
      CAPTURE(targets, width);
      TestTensor in(DType::f32, {kCount, width}), index(DType::i64, {kCount}), out(DType::f32, {targets, width});
      in.fill_random(1, -1, 1);
      index.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % 10007 * 7 % targets); });
      out.fill([](std::int64_t i) { return static_cast<double>(i % 3); });
      std::vector<float> expected(static_cast<std::size_t>(targets * width));
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = static_cast<float>(out[static_cast<std::int64_t>(i)]);
      for (std::int64_t i = 0; i < kCount * width; ++i)
        expected[static_cast<std::size_t>(index.integer(i / width) * width + i % width)] += static_cast<float>(in[i]);
      const Counted calls;
      run(IndexAddArgs{.in = in.in(), .index = index.in(), .out = out.inout(), .dim = 0});
      CHECK(calls.sorted() == 1);
      CHECK(mismatch(
                out, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 0, 0) == "");

      TestTensor scattered(DType::f32, {targets, width}), indices(DType::i64, {kCount, width});
      scattered.fill([](std::int64_t i) { return static_cast<double>(i % 3); });
      indices.fill([&](std::int64_t i) { return static_cast<double>(index.integer(i / width)); });
      run(ScatterAddArgs{.in = in.in(), .index = indices.in(), .out = scattered.inout(), .dim = 0});
      CHECK(calls.sorted() == 2);
      CHECK(mismatch(
                scattered, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 0, 0) == "");
    }
}

TEST_CASE("a line of integers that are summed forwards goes to CUB, and nothing else does", "[cumsum][sort]") {
  for (const auto& [shape, dtype, reverse, scans] :
       {std::tuple{Shape{1, 5000, 1}, DType::i64, false, 1}, std::tuple{Shape{1, 1, 1}, DType::i64, false, 1},
        std::tuple{Shape{1, 5000, 1}, DType::i64, true, 0}, std::tuple{Shape{2, 500, 1}, DType::i64, false, 0},
        std::tuple{Shape{1, 500, 2}, DType::i64, false, 0}, std::tuple{Shape{1, 5000, 1}, DType::f64, false, 0},
        std::tuple{Shape{1, 0, 1}, DType::i64, false, 0}}) {
    CAPTURE(to_string(shape), to_string(dtype), reverse);
    TestTensor x(dtype, shape), y(dtype, shape);
    x.fill([](std::int64_t i) { return static_cast<double>(i * 31 % 17 - 8); });
    const Counted calls;
    run(CumsumArgs{x.in(), y.out(), reverse});
    CHECK(calls.scanned() == scans);
    const std::int64_t size = shape[1], inner = shape[2];
    bool right = y.guards_intact();
    for (std::int64_t line = 0; line < shape[0] * inner; ++line) {
      double sum = 0;
      for (std::int64_t k = 0; k < size; ++k) {
        const std::int64_t at = (line / inner * size + (reverse ? size - 1 - k : k)) * inner + line % inner;
        right &= y[at] == (sum += x[at]);
      }
    }
    CHECK(right);
  }
}
