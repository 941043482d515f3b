// Running sums and sorting, against plain loops.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {}

TEST_CASE("cumsum", "[cumsum]") {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 10, 1}, Shape{9, 13, 1}, Shape{1, 5000, 1}, Shape{2, 33, 5},
                             Shape{1, 300, 40}, Shape{0, 3, 1}, Shape{2, 0, 2}})
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64})
      for (const bool reverse : {false, true}) {
        const std::int64_t size = shape[1], inner = shape[2];
        TestTensor x(dtype, shape), y(dtype, shape);
        x.fill_random(1, -1, 1);
        run(CumsumArgs{x.in(), y.out(), reverse});
        INFO(to_string(dtype) << " " << to_string(shape) << " " << reverse);
        const auto want = [&](std::int64_t i) {
          const std::int64_t at = i / inner % size, first = i - at * inner;
          long double sum = 0;
          for (std::int64_t k = reverse ? at : 0; k < (reverse ? size : at + 1); ++k) sum += x[first + k * inner];
          return static_cast<double>(sum);
        };
        CHECK(mismatch(y, want, 2, dtype == DType::f64 ? 64 : 0.01) == "");
      }
  TestTensor wrapping(DType::i64, {1, 2, 1}), y(DType::i64, {1, 2, 1});
  for (const std::int64_t i : {0, 1}) wrapping.set_integer(i, std::numeric_limits<std::int64_t>::max());
  run(CumsumArgs{wrapping.in(), y.out(), false});
  CHECK(y.integer(1) == -2);
}

TEST_CASE("argsort is stable, and NaN is greater than all numbers", "[argsort]") {
  for (const auto& [shape, wanted] :
       {std::pair{Shape{1, 1, 1}, 1}, std::pair{Shape{3, 40, 1}, 40}, std::pair{Shape{2, 33, 3}, 4},
        std::pair{Shape{1, 1500, 1}, 1500}, std::pair{Shape{2, 511, 1}, 511}, std::pair{Shape{2, 512, 3}, 512},
        std::pair{Shape{1, 600, 2}, 75}, std::pair{Shape{1, 40'003, 1}, 40'003}, std::pair{Shape{2, 1100, 2}, 7},
        std::pair{Shape{0, 3, 1}, 2}, std::pair{Shape{2, 3, 2}, 0}, std::pair{Shape{1, 3000, 1}, 10}})
    for (const DType dtype : kAllDTypes)
      for (const bool descending : {false, true}) {
        const std::int64_t size = shape[1], inner = shape[2];
        TestTensor x(dtype, shape), indices(DType::i64, {shape[0], wanted, inner});
        x.fill_random(1, -5, 5);
        // Equal ones, and all that is special.
        for (std::int64_t i = 0; i < x.count(); i += 3) x.set(i, std::floor(std::fabs(x[i])));
        if (is_floating(dtype))
          for (std::int64_t i = 0; i < x.count(); ++i) {
            const double special[] = {0.0, -0.0, kNaN, kInf, -kInf, -kNaN};
            if (i % 11 == 5) x.set(i, special[i % 6]);
          }
        run(ArgsortArgs{x.in(), indices.out(), descending});
        INFO(to_string(dtype) << " " << to_string(shape) << " " << descending);
        bool right = indices.guards_intact();
        for (std::int64_t line = 0; line < shape[0] * inner; ++line) {
          const auto value = [&](std::int64_t i) { return x[(line / inner * size + i) * inner + line % inner]; };
          std::vector<std::int64_t> order(static_cast<std::size_t>(size));
          std::iota(order.begin(), order.end(), std::int64_t{0});
          const auto less = [&](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
          std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
            return descending ? less(value(b), value(a)) : less(value(a), value(b));
          });
          for (std::int64_t k = 0; k < wanted; ++k)
            right &= indices.integer((line / inner * wanted + k) * inner + line % inner) ==
                     order[static_cast<std::size_t>(k)];
        }
        CHECK(right);
      }
}

TEST_CASE("argsort of the ends of the integers", "[argsort]") {
  TestTensor x(DType::i64, {1, 4, 1}), indices(DType::i64, {1, 4, 1});
  const std::int64_t values[] = {std::numeric_limits<std::int64_t>::max(), -1, 0,
                                 std::numeric_limits<std::int64_t>::min()};
  for (std::int64_t i = 0; i < 4; ++i) x.set_integer(i, values[i]);
  run(ArgsortArgs{x.in(), indices.out(), false});
  CHECK(indices.values() == std::vector<double>{3, 1, 2, 0});
  run(ArgsortArgs{x.in(), indices.out(), true});
  CHECK(indices.values() == std::vector<double>{0, 2, 1, 3});
}

TEST_CASE("argsort keeps the order of elements that are alike, however many", "[argsort]") {
  constexpr std::int64_t kCount = 70'001, kOther = 51;  // one of so many is less
  for (const DType dtype : {DType::boolean, DType::i32, DType::f64}) {
    TestTensor x(dtype, {1, kCount, 1}), indices(DType::i64, {1, kCount, 1});
    for (std::int64_t i = 0; i < kCount; ++i) x.set(i, i % kOther != 7);
    run(ArgsortArgs{x.in(), indices.out(), false});
    std::vector<double> order;
    for (std::int64_t i = 7; i < kCount; i += kOther) order.push_back(static_cast<double>(i));
    for (std::int64_t i = 0; i < kCount; ++i)
      if (i % kOther != 7) order.push_back(static_cast<double>(i));
    INFO(to_string(dtype));
    CHECK(indices.values() == order);
  }
}

TEST_CASE("argsort divides parts again that are too large for the cache, stably", "[argsort]") {
  constexpr std::int64_t kCount = 150'001;
  // Most have one exponent; bits in the middle that are alike; two digits, which are not worth a division.
  const std::function<double(std::int64_t)> elements[] = {
      [](std::int64_t i) {
        return i % 10 == 0 ? std::ldexp(1.0, static_cast<int>(i % 100)) : 1 + i * 7919 % 65'537 / 65'537.0;
      },
      [](std::int64_t i) { return static_cast<double>(i * 7919 % 2 * 16'777'216 + i * 31 % 199); },
      [](std::int64_t i) { return static_cast<double>(i * 7919 % 10'007); },
  };
  for (const auto& element : elements)
    for (const DType dtype : {DType::f32, DType::f64, DType::i32}) {
      if (dtype == DType::i32 && &element == &elements[0]) continue;
      TestTensor x(dtype, {1, kCount, 1}), indices(DType::i64, {1, kCount, 1});
      x.fill(element);
      const std::vector<double> values = x.values();
      std::vector<double> order(values.size());
      std::iota(order.begin(), order.end(), 0.0);
      std::stable_sort(order.begin(), order.end(), [&](double a, double b) {
        return values[static_cast<std::size_t>(a)] < values[static_cast<std::size_t>(b)];
      });
      run(ArgsortArgs{x.in(), indices.out(), false});
      INFO(&element - &elements[0] << " " << to_string(dtype));
      CHECK(indices.values() == order);
    }
}

TEST_CASE("argsort of 64-bit elements tells all bits apart, wherever they are", "[argsort]") {
  // Bits from `shift` on, of `groups` numbers that are far apart: equal in the upper bits, in the lower ones, in none.
  for (const auto& [shift, groups, apart] : {std::tuple{0, 1, 8},
                                             {7, 3, 15},
                                             {31, 90, 39},
                                             {32, 600, 40},
                                             {33, 3, 41},
                                             {44, 90, 52},
                                             {55, 1, 60},
                                             {0, 3, 58},
                                             {7, 3, 58},
                                             {12, 13, 58},
                                             {20, 3, 50},
                                             {24, 1, 58},
                                             {31, 3, 60}})
    // Few, and more than are sorted in the cache: these are divided by their first digits.
    for (const auto& [count, descending] : {std::pair{1'700, false}, {1'700, true}, {33'001, false}, {33'001, true}}) {
      TestTensor x(DType::i64, {1, count, 1}), indices(DType::i64, {1, count, 1});
      std::vector<std::int64_t> values, order(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint64_t low = static_cast<std::uint64_t>(i * 7919 % 251 / (i % 3 + 1));
        const std::uint64_t high = static_cast<std::uint64_t>(i % groups) << apart;
        values.push_back(static_cast<std::int64_t>((low << shift) + high - (std::uint64_t{1} << 62)));
        x.set_integer(i, values.back());
      }
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        const std::int64_t left = values[static_cast<std::size_t>(a)], right = values[static_cast<std::size_t>(b)];
        return descending ? left > right : left < right;
      });
      run(ArgsortArgs{x.in(), indices.out(), descending});
      INFO(shift << " " << groups << " " << apart << " " << count << " " << descending);
      CHECK(mismatch(
                indices, [&](std::int64_t i) { return static_cast<double>(order[static_cast<std::size_t>(i)]); }, 0) ==
            "");
    }
}
