// Resampling, against the maps written out.
#include <algorithm>
#include <array>

#include "lockstep/runtime/host/compute_threads.h"
#include "support/catch.h"
#include "support/threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

// The weights of all source elements in element `at` of the result, by the definition of each map.
std::vector<double> weights_of(const Resample2dArgs& a, int axis, std::int64_t source, std::int64_t result,
                               std::int64_t at) {
  std::vector<double> weights(static_cast<std::size_t>(source));
  const auto add = [&](std::int64_t i, double weight) {
    weights[static_cast<std::size_t>(std::clamp<std::int64_t>(i, 0, source - 1))] += weight;
  };
  if (a.kind == ResampleKind::average) {
    const double begin = std::floor(static_cast<double>(at * source) / static_cast<double>(result));
    const double end = std::ceil(static_cast<double>((at + 1) * source) / static_cast<double>(result));
    for (double i = begin; i < end; ++i) add(static_cast<std::int64_t>(i), 1 / (end - begin));
  } else if (a.kind == ResampleKind::nearest) {
    add(static_cast<std::int64_t>(std::floor(static_cast<double>(at) * a.step[static_cast<std::size_t>(axis)])), 1);
  } else {
    const double step = a.step[static_cast<std::size_t>(axis)], position = static_cast<double>(at);
    const double from = std::max(0.0, a.align_corners ? step * position : step * (position + 0.5) - 0.5);
    const double low = std::min(std::floor(from), static_cast<double>(source - 1));
    add(static_cast<std::int64_t>(low), 1 - std::min(from - low, 1.0));
    add(static_cast<std::int64_t>(low) + 1, std::min(from - low, 1.0));
  }
  return weights;
}

}  // namespace

TEST_CASE("resample2d is the same for any number of threads", "[resample]") {
  using enum ResampleKind;
  for (const ResampleKind kind : {average, nearest, bilinear})
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      INFO(to_string(dtype) << " " << static_cast<int>(kind));
      for (const Layout images : image_layouts()) {
        if (dtype == DType::f64 && images == Layout::channels_last) continue;
        TestTensor x(dtype, {3, 67, 9, 11}, images), y(dtype, {3, 67, 14, 10}, images), dx(dtype, x.shape(), images);
        x.fill_random(1);
        const auto results = [&](int count) {
          const Threads threads(count);
          run(Resample2dArgs{x.in(), y.out(), kind, {9.0 / 14, 1.1}, false, false});
          run(Resample2dArgs{y.in(), dx.out(), kind, {9.0 / 14, 1.1}, false, true});
          return std::array{y.bytes(), dx.bytes()};
        };
        const auto one = results(1);
        for (const int count : kThreadCounts) CHECK((results(count) == one));
        CHECK(detail::compute_threads() > 0);
      }
    }
}

TEST_CASE("resample2d and its adjoint agree with the maps written out", "[resample]") {
  struct Problem {
    Shape source, result;
    ResampleKind kind;
    std::array<double, 2> step{};
    bool align_corners = false;
  };
  using enum ResampleKind;
  const std::vector<Problem> problems = {
      {{2, 2, 5, 7}, {2, 2, 3, 7}, average},
      {{1, 2, 4, 3}, {1, 2, 9, 1}, average},
      {{0, 2, 4, 4}, {0, 2, 2, 2}, average},
      {{1, 1, 40, 33}, {1, 1, 7, 6}, average},
      {{2, 1, 3, 4}, {2, 1, 6, 8}, nearest, {0.5, 0.5}},
      {{1, 2, 3, 21}, {1, 2, 6, 42}, nearest, {0.5, 0.5}},
      {{1, 1, 4, 20}, {1, 1, 8, 40}, nearest, {0.5, 0.45}},  // twice as wide, but not every element twice
      {{1, 2, 6, 5}, {1, 2, 2, 9}, nearest, {3, 5.0 / 9}},
      {{1, 1, 4, 4}, {1, 1, 10, 10}, nearest, {0.4, 0.3}},  // a step of one's own: the last elements count again
      {{2, 1, 3, 4}, {2, 1, 6, 8}, bilinear, {0.5, 0.5}},
      {{1, 2, 6, 5}, {1, 2, 4, 9}, bilinear, {1.5, 5.0 / 9}},
      {{1, 2, 6, 5}, {1, 2, 3, 9}, bilinear, {2.5, 0.5}, true},
      {{1, 1, 1, 5}, {1, 1, 4, 1}, bilinear, {0, 0}, true},
      {{1, 1, 5, 5}, {1, 1, 12, 12}, bilinear, {0.4, 0.5}},
      {{1, 1, 30, 31}, {1, 1, 4, 5}, bilinear, {7.5, 6.2}},
      {{2, 75, 8, 9}, {2, 75, 11, 7}, bilinear, {8.0 / 11, 9.0 / 7}},  // several pieces
      {{2, 75, 8, 9}, {2, 75, 11, 7}, average},
  };
  const std::vector<Layout> layouts = image_layouts();
  for (const Problem& p : problems)
    for (std::size_t each = 0; each < layouts.size() * std::size(kFloatingDTypes); ++each) {
      const DType dtype = kFloatingDTypes[each / layouts.size()];
      const Layout images = layouts[each % layouts.size()];
      if (dtype == DType::f64 && images == Layout::channels_last) continue;
      TestTensor x(dtype, p.source, images), y(dtype, p.result, images), dx(dtype, p.source, images);
      x.fill_random(1);
      Resample2dArgs args{x.in(), y.out(), p.kind, p.step, p.align_corners, false};
      run(args);
      std::vector<double> matrix[2];  // [result][source]
      for (int axis = 0; axis < 2; ++axis)
        for (std::int64_t i = 0; i < p.result[2 + axis]; ++i)
          for (const double w : weights_of(args, axis, p.source[2 + axis], p.result[2 + axis], i))
            matrix[axis].push_back(w);
      const auto weight = [&](int axis, std::int64_t to, std::int64_t from) {
        return matrix[axis][static_cast<std::size_t>(to * p.source[2 + axis] + from)];
      };
      INFO(to_string(dtype) << " " << to_string(p.source) << " " << to_string(p.result) << " " << name_of(images));
      const auto want = [&](std::int64_t i) {
        const std::int64_t w = i % p.result[3], h = i / p.result[3] % p.result[2],
                           plane = i / p.result[3] / p.result[2];
        double sum = 0;
        for (std::int64_t r = 0; r < p.source[2]; ++r)
          for (std::int64_t c = 0; c < p.source[3]; ++c)
            sum += weight(0, h, r) * weight(1, w, c) * x[(plane * p.source[2] + r) * p.source[3] + c];
        return sum;
      };
      CHECK(mismatch(y, want, 4, 16) == "");
      y.fill_random(2);
      args.x = y.in(), args.y = dx.out(), args.adjoint = true;
      run(args);
      const auto want_dx = [&](std::int64_t i) {
        const std::int64_t c = i % p.source[3], r = i / p.source[3] % p.source[2],
                           plane = i / p.source[3] / p.source[2];
        double sum = 0;
        for (std::int64_t h = 0; h < p.result[2]; ++h)
          for (std::int64_t w = 0; w < p.result[3]; ++w)
            sum += weight(0, h, r) * weight(1, w, c) * y[(plane * p.result[2] + h) * p.result[3] + w];
        return sum;
      };
      CHECK(mismatch(dx, want_dx, 4, 32) == "");
    }
}
