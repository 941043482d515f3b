// Pooling.
#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("pooling in ceil mode") {
  const Tensor x = arange(5.0).to(DType::f64).reshape({1, 1, 1, 5});
  CHECK(values(max_pool2d(x, {1, 2}, {.ceil_mode = true})) == Doubles{1, 3, 4});
  CHECK(values(avg_pool2d(x, {1, 2}, {.ceil_mode = true})) == Doubles{0.5, 2.5, 4});
  // A window would begin in the padding behind the input: there is none.
  CHECK(max_pool2d(x, {1, 2}, {.stride = Size2{1, 3}, .padding = {0, 1}, .ceil_mode = true}).shape() ==
        Shape{1, 1, 1, 2});
  // Larger than the input.
  CHECK(values(max_pool2d(x, {2, 7}, {.stride = 3, .ceil_mode = true})) == Doubles{4});
  CHECK(values(avg_pool2d(x, {2, 7}, {.stride = 3, .ceil_mode = true})) == Doubles{2});
  CHECK_THROWS_WITH(max_pool2d(x, {2, 7}, {.stride = 2, .ceil_mode = true}), Contains("kernel 2x7"));
  CHECK_THROWS_WITH(max_pool2d(x, {2, 7}, {.stride = 3}), Contains("kernel 2x7"));
}

TEST_CASE("what the sums of average pooling are divided by") {
  const Tensor x = ones({1, 1, 2, 2}, {.dtype = DType::f64});
  const PoolGeometry padded{.stride = 2, .padding = 1};
  CHECK(values(avg_pool2d(x, 2, padded)) == Doubles{0.25, 0.25, 0.25, 0.25});
  PoolGeometry inside = padded, by_three = padded, by_nothing = padded;
  inside.count_include_pad = false;
  CHECK(values(avg_pool2d(x, 2, inside)) == Doubles{1, 1, 1, 1});
  by_three.divisor = -2;
  CHECK(values(avg_pool2d(x, 2, by_three)) == Doubles{-0.5, -0.5, -0.5, -0.5});
  by_nothing.divisor = 0;
  CHECK_THROWS_WITH(avg_pool2d(x, 2, by_nothing), Contains("[avg_pool2d]") && Contains("divisor"));
  CHECK_THROWS_WITH(max_pool2d(x, 2, inside), Contains("[max_pool2d]") && Contains("count_include_pad"));
}
