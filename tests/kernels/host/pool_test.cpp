#include <array>
#include <span>

#include "lockstep/runtime/host/compute_threads.h"
#include "support/catch.h"
#include "support/threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct PoolProblem {
  Shape x;
  Window2d window;
  PoolMean mean = {};
  bool ceil_mode = false;
};
const std::vector<PoolProblem> kPoolProblems = {
    {{1, 1, 1, 1}, {}},
    {{2, 3, 8, 8}, {.kernel = {2, 2}, .stride = {2, 2}}},
    {{2, 3, 7, 9}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}}},
    {{1, 2, 9, 9}, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}},
    {{1, 2, 10, 9}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 0}, .dilation = {2, 3}}},
    {{0, 2, 4, 4}, {.kernel = {2, 2}}},
    {{2, 2, 5, 5}, {.kernel = {5, 5}}},
    {{2, 3, 7, 9}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}}, {.padding = false}},
    {{1, 2, 6, 9}, {.kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 0}}, {}, true},
    {{1, 2, 6, 8}, {.kernel = {3, 5}, .stride = {2, 4}, .padding = {1, 2}}, {.padding = false}, true},
    {{1, 1, 4, 5}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, {.divisor = -5}, true},
    {{1, 2, 5, 35}, {.kernel = {2, 2}, .stride = {2, 2}}},
    {{1, 2, 5, 36}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, {.padding = false}},
    {{2, 1, 4, 33}, {.kernel = {2, 4}, .stride = {1, 2}, .padding = {0, 2}}},
    {{1, 1, 3, 19}, {.kernel = {1, 1}, .stride = {1, 2}}},                                         // a part of a stride
    {{1, 2, 9, 41}, {.kernel = {2, 2}, .stride = {3, 3}, .padding = {1, 1}}},                      // the same
    {{1, 2, 9, 41}, {.kernel = {2, 3}, .stride = {2, 3}, .padding = {1, 1}, .dilation = {3, 2}}},  // all of it
    {{1, 2, 9, 41}, {.kernel = {2, 2}, .stride = {2, 3}, .padding = {1, 1}, .dilation = {1, 2}}},
    {{1, 2, 3, 40}, {.kernel = {3, 3}, .stride = {1, 2}, .padding = {1, 1}, .dilation = {1, 3}}},
    {{1, 1, 2, 2}, {.kernel = {2, 2}, .padding = {5, 5}, .dilation = {4, 4}}},  // windows without taps
    {{1, 23, 61, 63}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, {.padding = false}},  // several pieces
};

std::vector<std::pair<DType, Layout>> in_all_layouts(std::span<const DType> dtypes) {
  std::vector<std::pair<DType, Layout>> all;
  for (const DType dtype : dtypes)
    for (const Layout images : image_layouts())
      if (dtype != DType::f64 || images == Layout::contiguous) all.emplace_back(dtype, images);
  return all;
}

Shape pooled(const PoolProblem& p) {
  Shape y = p.x;
  for (int d = 0; d < 2; ++d) {
    const std::int64_t room =
        p.x[2 + d] + 2 * p.window.padding[d] - p.window.dilation[d] * (p.window.kernel[d] - 1) - 1;
    y[2 + d] = (room + (p.ceil_mode ? p.window.stride[d] - 1 : 0)) / p.window.stride[d] + 1;
  }
  return y;
}

// Calls f(index of y, index of x, position in the plane) for every tap that is not padding.
template <class F>
void for_each_tap(const PoolProblem& p, const Shape& y, F&& f) {
  for (std::int64_t i = 0; i < element_count(y); ++i) {
    const std::int64_t plane = i / (y[2] * y[3]), oh = i / y[3] % y[2], ow = i % y[3];
    for (int r = 0; r < p.window.kernel[0]; ++r)
      for (int s = 0; s < p.window.kernel[1]; ++s) {
        const std::int64_t h = oh * p.window.stride[0] - p.window.padding[0] + r * p.window.dilation[0];
        const std::int64_t w = ow * p.window.stride[1] - p.window.padding[1] + s * p.window.dilation[1];
        if (h >= 0 && h < p.x[2] && w >= 0 && w < p.x[3])
          f(i, plane * p.x[2] * p.x[3] + h * p.x[3] + w, h * p.x[3] + w);
      }
  }
}

// What the sum over window `i` of y is divided by: the taps that lie in the input or, if that counts, in its padding.
double divisor(const PoolProblem& p, const Shape& y, std::int64_t i) {
  if (p.mean.divisor != 0) return p.mean.divisor;
  const std::int64_t at[2] = {i / y[3] % y[2], i % y[3]};
  double taps = 1;
  for (int d = 0; d < 2; ++d) {
    const std::int64_t outside = p.mean.padding ? p.window.padding[d] : 0;
    double inside = 0;
    for (int tap = 0; tap < p.window.kernel[d]; ++tap) {
      const std::int64_t position = at[d] * p.window.stride[d] - p.window.padding[d] + tap;
      inside += position >= -outside && position < p.x[2 + d] + outside ? 1 : 0;
    }
    taps *= inside;
  }
  return taps;
}

}  // namespace

TEST_CASE("pooling is the same for any number of threads", "[pool]") {
  const PoolProblem p = kPoolProblems.back();
  for (const auto& [dtype, images] : in_all_layouts(std::array{DType::f32, DType::f64, DType::bf16})) {
    INFO(to_string(dtype) << " " << name_of(images));
    TestTensor x(dtype, p.x, images), y(dtype, pooled(p), images), mean(dtype, pooled(p), images),
        indices(DType::i64, pooled(p), images), dx(dtype, p.x, images), unpooled(dtype, p.x, images);
    x.fill_random(1);
    const auto results = [&](int count) {
      const Threads threads(count);
      run(MaxPool2dArgs{.x = x.in(), .y = y.out(), .indices = indices.out(), .window = p.window});
      run(AvgPool2dArgs{.x = x.in(), .y = mean.out(), .window = p.window, .mean = p.mean});
      run(AvgPool2dGradArgs{.dy = y.in(), .dx = dx.out(), .window = p.window, .mean = p.mean});
      run(MaxUnpool2dArgs{.in = y.in(), .indices = indices.in(), .out = unpooled.out()});
      return std::array{y.bytes(), indices.bytes(), mean.bytes(), dx.bytes(), unpooled.bytes()};
    };
    const auto one = results(1);
    for (const int count : kThreadCounts) CHECK((results(count) == one));
    CHECK(detail::compute_threads() > 0);
  }
}

TEST_CASE("pooling agrees with loops over every tap", "[pool]") {
  for (const PoolProblem& p : kPoolProblems)
    for (const auto& [dtype, images] : in_all_layouts(kFloatingDTypes)) {
      INFO(to_string(dtype) << " " << to_string(p.x) << " " << name_of(images));
      const Shape y_shape = pooled(p);
      const auto count = static_cast<std::size_t>(element_count(y_shape));
      TestTensor x(dtype, p.x, images), y(dtype, y_shape, images), indices(DType::i64, y_shape, images);
      // Negative numbers alone: padding must not win with its zero. Whole ones, so that there are ties.
      x.fill([](std::int64_t i) { return -1.0 - static_cast<double>(i * 7919 % 5); });
      std::vector<double> best(count, -kInf), where(count), mean(count);
      for_each_tap(p, y_shape, [&](std::int64_t i, std::int64_t at, std::int64_t position) {
        const auto o = static_cast<std::size_t>(i);
        if (x[at] > best[o]) best[o] = x[at], where[o] = static_cast<double>(position);
        mean[o] += x[at] / divisor(p, y_shape, i);
      });
      const auto element = [](const std::vector<double>& v) {
        return [&v](std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
      };
      run(MaxPool2dArgs{.x = x.in(), .y = y.out(), .indices = indices.out(), .window = p.window});
      CHECK(mismatch(y, element(best), 0) == "");
      CHECK(mismatch(indices, element(where), 0) == "");
      TestTensor alone(dtype, y_shape, images);
      run(MaxPool2dArgs{.x = x.in(), .y = alone.out(), .indices = {}, .window = p.window});
      CHECK(alone.bytes() == y.bytes());
      run(AvgPool2dArgs{.x = x.in(), .y = y.out(), .window = p.window, .mean = p.mean});
      CHECK(mismatch(y, element(mean), 8) == "");

      TestTensor dy(dtype, y_shape, images), dx(dtype, p.x, images);
      dy.fill([](std::int64_t i) { return static_cast<double>(i % 9) / 8; });
      std::vector<double> want(static_cast<std::size_t>(x.count()));
      for_each_tap(p, y_shape, [&](std::int64_t i, std::int64_t at, std::int64_t) {
        want[static_cast<std::size_t>(at)] += dy[i] / divisor(p, y_shape, i);
      });
      run(AvgPool2dGradArgs{.dy = dy.in(), .dx = dx.out(), .window = p.window, .mean = p.mean});
      CHECK(mismatch(dx, element(want), 16, 8) == "");

      std::fill(want.begin(), want.end(), 0.0);
      const std::int64_t plane = p.x[2] * p.x[3], out_plane = y_shape[2] * y_shape[3];
      for (std::int64_t i = 0; i < dy.count(); ++i)
        want[static_cast<std::size_t>(i / out_plane * plane + indices.integer(i))] += dy[i];
      run(MaxUnpool2dArgs{.in = dy.in(), .indices = indices.in(), .out = dx.out()});
      CHECK(mismatch(dx, element(want), 2) == "");
    }
}

TEST_CASE("max_pool2d propagates NaN", "[pool]") {
  for (const Layout images : image_layouts()) {
    TestTensor x(DType::f32, {1, 2, 4, 4}, images), y(DType::f32, {1, 2, 2, 2}, images),
        indices(DType::i64, {1, 2, 2, 2}, images);
    x.fill_random(1);
    x.set(5, std::numeric_limits<double>::quiet_NaN());
    run(MaxPool2dArgs{
        .x = x.in(), .y = y.out(), .indices = indices.out(), .window = {.kernel = {2, 2}, .stride = {2, 2}}});
    CHECK(std::isnan(y[0]));
    CHECK(indices.integer(0) == 5);
    CHECK_FALSE(std::isnan(y[1]));
  }
}

TEST_CASE("the first of equal elements wins in max_pool2d, also of -infinity, and the first NaN before all", "[pool]") {
  for (const PoolProblem& p : kPoolProblems)
    for (const DType dtype : {DType::f32, DType::f64}) {
      INFO(to_string(dtype) << " " << to_string(p.x));
      const Shape y_shape = pooled(p);
      const auto count = static_cast<std::size_t>(element_count(y_shape));
      TestTensor x(dtype, p.x), y(dtype, y_shape), indices(DType::i64, y_shape);
      for (const std::int64_t every : {1, 3, 5, 19}) {  // element is NaN; with 1: none is
        x.fill([&](std::int64_t i) { return every > 1 && i * 31 % every == 0 ? kNaN : i % 4 > 0 ? -kInf : -2.0; });
        if (every == 1) x.fill([](std::int64_t) { return -kInf; });
        std::vector<double> best(count, -kInf), where(count, -1);
        for_each_tap(p, y_shape, [&](std::int64_t i, std::int64_t at, std::int64_t position) {
          const auto o = static_cast<std::size_t>(i);
          const bool wins = where[o] < 0 || (!std::isnan(best[o]) && (std::isnan(x[at]) || x[at] > best[o]));
          if (wins) best[o] = x[at], where[o] = static_cast<double>(position);
        });
        TestTensor alone(dtype, y_shape);
        run(MaxPool2dArgs{.x = x.in(), .y = alone.out(), .indices = {}, .window = p.window});
        CHECK(mismatch(
                  alone, [&](std::int64_t i) { return best[static_cast<std::size_t>(i)]; }, 0) == "");
        run(MaxPool2dArgs{.x = x.in(), .y = y.out(), .indices = indices.out(), .window = p.window});
        CHECK(mismatch(
                  y, [&](std::int64_t i) { return best[static_cast<std::size_t>(i)]; }, 0) == "");
        CHECK(mismatch(
                  indices, [&](std::int64_t i) { return std::max(where[static_cast<std::size_t>(i)], 0.0); }, 0) == "");
      }
    }
}

TEST_CASE("a mean is of its own window: infinity and NaN elsewhere do not matter", "[pool]") {
  for (const PoolProblem& p : kPoolProblems)
    for (const DType dtype : {DType::f32, DType::f64}) {
      INFO(to_string(dtype) << " " << to_string(p.x));
      const Shape y_shape = pooled(p);
      TestTensor x(dtype, p.x), y(dtype, y_shape);
      std::vector<double> sums(static_cast<std::size_t>(y.count()));
      x.fill([](std::int64_t i) { return i % 29 == 28 ? kNaN : i % 13 == 12 ? kInf : 1.0; });
      for_each_tap(p, y_shape,
                   [&](std::int64_t i, std::int64_t at, std::int64_t) { sums[static_cast<std::size_t>(i)] += x[at]; });
      run(AvgPool2dArgs{.x = x.in(), .y = y.out(), .window = p.window, .mean = {.divisor = 4}});
      CHECK(mismatch(
                y, [&](std::int64_t i) { return sums[static_cast<std::size_t>(i)] / 4; }, 0) == "");
    }
}

TEST_CASE("max_unpool2d refuses indices beyond the plane and writes nothing", "[pool]") {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{16}}) {
    TestTensor x(DType::f32, {1, 2, 2, 2}), indices(DType::i64, {1, 2, 2, 2}), out(DType::f32, {1, 2, 4, 4});
    x.fill_random(1);
    indices.fill([](std::int64_t i) { return static_cast<double>(i); });
    indices.set_integer(6, bad);
    const auto before = out.bytes();
    CHECK_THROWS_WITH(run(MaxUnpool2dArgs{.in = x.in(), .indices = indices.in(), .out = out.out()}),
                      "[max_unpool2d] expected indices in [0, 16), got " + std::to_string(bad) + " at position 6");
    CHECK(out.bytes() == before);
  }
}

TEST_CASE("max_unpool2d names the first bad index, whichever thread finds it", "[pool]") {
  const Threads threads(3);
  TestTensor x(DType::f32, {4, 25, 20, 20}), indices(DType::i64, {4, 25, 20, 20}), out(DType::f32, {4, 25, 20, 20});
  x.fill_random(1);
  indices.fill([](std::int64_t i) { return static_cast<double>(i % 400); });
  for (const std::int64_t position : {39999, 31234, 21234}) {
    indices.set_integer(position, 400);
    CHECK_THROWS_WITH(run(MaxUnpool2dArgs{.in = x.in(), .indices = indices.in(), .out = out.out()}),
                      "[max_unpool2d] expected indices in [0, 400), got 400 at position " + std::to_string(position));
  }
}
