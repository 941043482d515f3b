// Adaptive pooling and interpolation.
#include "lockstep/tensor/nn/layers.h"
#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("adaptive pooling and interpolation") {
  const Tensor x = f64({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {1, 1, 4, 4});
  CHECK(values(adaptive_avg_pool2d(x, 1)) == Doubles{7.5});
  CHECK(values(adaptive_avg_pool2d(x, 2)) == Doubles{2.5, 4.5, 10.5, 12.5});
  CHECK(equal(adaptive_avg_pool2d(x, 4), x));
  // Bins of two that overlap: [0, 2), [1, 3), [2, 4).
  CHECK(values(adaptive_avg_pool2d(x, {1, 3})) == Doubles{6.5, 7.5, 8.5});
  CHECK(adaptive_avg_pool2d(x, {0, 2}).shape() == Shape{1, 1, 0, 2});

  const Tensor row = f64({1, 2, 4}, {1, 1, 1, 3});
  const auto wide = [&](const InterpolateOptions& options) { return values(interpolate(row, options)); };
  using enum InterpolateMode;
  CHECK(wide({.size = Size2(1, 6)}) == Doubles{1, 1, 2, 2, 4, 4});
  CHECK(wide({.size = Size2(1, 2)}) == Doubles{1, 2});
  CHECK(wide({.scale_factor = Scale2(1, 1.7)}) == Doubles{1, 1, 2, 2, 4});
  CHECK(wide({.size = Size2(1, 6), .mode = bilinear}) == Doubles{1, 1.25, 1.75, 2.5, 3.5, 4});
  CHECK(wide({.size = Size2(1, 5), .mode = bilinear, .align_corners = true}) == Doubles{1, 1.5, 2, 3, 4});
  CHECK(wide({.size = Size2(1, 1), .mode = bilinear, .align_corners = true}) == Doubles{1});
  CHECK(interpolate(x, {.scale_factor = 2}).shape() == Shape{1, 1, 8, 8});
  CHECK(interpolate(x, {.scale_factor = Scale2(0.5, 1.3)}).shape() == Shape{1, 1, 2, 5});
  CHECK(interpolate(zeros({0, 1, 2, 2}), {.scale_factor = 2}).shape() == Shape{0, 1, 4, 4});
  CHECK(
      equal(Upsample({.scale_factor = 2, .mode = bilinear})(x), interpolate(x, {.scale_factor = 2, .mode = bilinear})));
  CHECK(equal(AdaptiveAvgPool2d({2, 3})(x), adaptive_avg_pool2d(x, {2, 3})));

  CHECK_THROWS_WITH(adaptive_avg_pool2d(row.squeeze(0), 2),
                    Contains("[adaptive_avg_pool2d]") && Contains("f64[1, 1, 3]"));
  CHECK_THROWS_WITH(adaptive_avg_pool2d(x, -1), Contains("-1x-1"));
  CHECK_THROWS_WITH(interpolate(x, {}), Contains("[interpolate]") && Contains("neither"));
  CHECK_THROWS_WITH(interpolate(x, {.size = 2, .scale_factor = 2}), Contains("both"));
  CHECK_THROWS_WITH(interpolate(x, {.size = 2, .align_corners = true}), Contains("align_corners"));
  CHECK_THROWS_WITH(interpolate(x, {.size = 0}), Contains("[1, 1, 0, 4]"));
  CHECK_THROWS_WITH(interpolate(x, {.scale_factor = 0.1}), Contains("at least 1x1"));
  CHECK_THROWS_WITH(interpolate(x, {.scale_factor = kNaN}), Contains("nan"));
  CHECK_THROWS_WITH(interpolate(zeros({1, 1, 0, 3}), {.size = 2}), Contains("[1, 1, 0, 3]"));
}

TEST_CASE("interpolate by a factor that leaves the size or doubles it") {
  const Tensor x = arange(5.0).to(DType::f64).reshape({1, 1, 1, 5});
  for (const InterpolateMode mode : {InterpolateMode::nearest, InterpolateMode::bilinear})
    CHECK(values(interpolate(x, {.scale_factor = Scale2(1, 1.13), .mode = mode})) == Doubles{0, 1, 2, 3, 4});
  CHECK(values(interpolate(x, {.scale_factor = Scale2(1, 2.15)})) == Doubles{0, 0, 1, 1, 2, 2, 3, 3, 4, 4});
}
