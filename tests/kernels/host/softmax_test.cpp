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
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const Shape& shape : {Shape{1, 4, 1}, Shape{1, 4, 2}})
    for (const bool log : {false, true}) {
      TestTensor x(DType::f32, shape), y(DType::f32, shape);
      x.fill([&](std::int64_t i) { return i / shape[2] == 1 ? -kInf : 1e30; });
      run(SoftmaxArgs{.x = x.in(), .y = y.out(), .log = log});
      CHECK(y[0] == Approx(log ? -std::log(3.0) : 1 / 3.0));
      CHECK(y[shape[2]] == (log ? -kInf : 0));
    }
}
