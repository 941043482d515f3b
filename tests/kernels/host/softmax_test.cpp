// Softmax.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

TEST_CASE("softmax and its gradient", "[softmax]") {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 10, 1}, Shape{2, 1027, 1}, Shape{2, 5, 3}, Shape{1, 33, 40},
                             Shape{0, 5, 1}, Shape{4, 5, 0}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool log : {false, true}) {
        const std::int64_t size = shape[1], inner = shape[2];
        TestTensor x(dtype, shape), y(dtype, shape), dy(dtype, shape), dx(dtype, shape);
        x.fill_random(1, -8, 8), dy.fill_random(2, -1, 1);
        // Calls f(position of every element that is normalised together with position i).
        const auto peers = [&](std::int64_t i, auto&& f) {
          const std::int64_t first = i / (size * inner) * size * inner + i % inner;
          for (std::int64_t k = 0; k < size; ++k) f(first + k * inner);
        };
        INFO(to_string(dtype) << " " << to_string(shape) << (log ? " log" : ""));
        run(SoftmaxArgs{.x = x.in(), .y = y.out(), .log = log});
        const auto want = [&](std::int64_t i) {
          double sum = 0;
          peers(i, [&](std::int64_t j) { sum += std::exp(x[j]); });
          return log ? x[i] - std::log(sum) : std::exp(x[i]) / sum;
        };
        CHECK(mismatch(y, want, 8, log ? 8 : 0) == "");
        run(SoftmaxGradArgs{.dy = dy.in(), .y = y.in(), .dx = dx.out(), .log = log});
        const auto want_dx = [&](std::int64_t i) {
          double sum = 0;
          peers(i, [&](std::int64_t j) { sum += log ? dy[j] : dy[j] * y[j]; });
          return log ? dy[i] - std::exp(y[i]) * sum : y[i] * (dy[i] - sum);
        };
        CHECK(mismatch(dx, want_dx, 16, 8) == "");
      }
}

TEST_CASE("softmax of large and infinite numbers", "[softmax]") {
  for (const Shape& shape : {Shape{1, 4, 1}, Shape{1, 4, 2}})
    for (const bool log : {false, true}) {
      TestTensor x(DType::f32, shape), y(DType::f32, shape);
      x.fill([&](std::int64_t i) { return i / shape[2] == 1 ? -kInf : 1e30; });
      run(SoftmaxArgs{.x = x.in(), .y = y.out(), .log = log});
      CHECK(y[0] == Approx(log ? -std::log(3.0) : 1 / 3.0));
      CHECK(y[shape[2]] == (log ? -kInf : 0));
      x.fill([&](std::int64_t i) { return i / shape[2] == 1 ? kInf : 0; });
      run(SoftmaxArgs{.x = x.in(), .y = y.out(), .log = log});
      for (std::int64_t i = 0; i < x.count(); ++i) CHECK(std::isnan(y[i]));
    }
}

TEST_CASE("short rows that are computed side by side have the bits of each by itself", "[softmax]") {
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t size : {1, 2, 7, 15, 16, 17, 31, 32, 33})
      for (const bool log : {false, true}) {
        constexpr std::int64_t kRows = 131;
        TestTensor x(dtype, {kRows, size, 1}), y(dtype, {kRows, size, 1});
        x.fill_random(static_cast<std::uint64_t>(size), -8, 8);
        for (std::int64_t i = 0; i < size; ++i) x.set(i, -kInf), x.set(size + i, i % 2 ? 0.0 : -0.0);
        x.set(2 * size, kNaN), x.set(3 * size, kInf), x.set(4 * size, -kInf);
        run(SoftmaxArgs{.x = x.in(), .y = y.out(), .log = log});
        std::int64_t different = 0;
        for (std::int64_t row = 0; row < kRows; ++row) {
          TestTensor one(dtype, {1, size, 1}), alone(dtype, {1, size, 1}), its(dtype, {1, size, 1});
          for (std::int64_t i = 0; i < size; ++i) one.set(i, x[row * size + i]), its.set(i, y[row * size + i]);
          run(SoftmaxArgs{.x = one.in(), .y = alone.out(), .log = log});
          different += its.bytes() != alone.bytes();
        }
        INFO(to_string(dtype) << ", " << size << (log ? " log" : ""));
        CHECK(different == 0);
      }
}
