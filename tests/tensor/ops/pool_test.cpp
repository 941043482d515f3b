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

TEST_CASE("max_pool2d keeps positions only where a backward may ask for them", "[pool]") {
  const Device device = accelerators().front();
  const Tensor x = randn({4, 8, 32, 32}, {.device = device});
  const auto peak = [&](bool gradients) {
    const Tensor in = x.clone().set_requires_grad(gradients);
    synchronize(current_stream(device));
    reset_peak(device);
    const std::size_t before = memory_stats(device).peak_in_use_bytes;
    const Tensor y = max_pool2d(in, 2);
    CHECK(y.to_vector<float>() == max_pool2d(in.detach(), 2).to_vector<float>());
    return memory_stats(device).peak_in_use_bytes - before;
  };
  const std::size_t result = 4 * 8 * 16 * 16 * sizeof(float);
  CHECK(peak(false) <= 4 * result);  // two results, and what it costs to round them up
  CHECK(peak(true) >= 4 * result);   // one of i64 beside them
}
