// Group and layer normalisation.
#include "lockstep/tensor/nn/layers.h"
#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("group normalisation") {
  manual_seed(2);
  const Tensor x = randn({3, 6, 5, 2}, kF64) * 3 + 1, weight = randn({6}, kF64), bias = randn({6}, kF64);
  for (const std::int64_t groups : {1, 2, 3, 6}) {
    const Tensor grouped = x.reshape({3, groups, -1});
    const Tensor plain =
        ((grouped - mean(grouped, {2}, true)) / sqrt(var(grouped, {2}, 0, true) + 0.1)).reshape(x.shape());
    CHECK(allclose(group_norm(x, groups, weight, bias, 0.1),
                   plain * weight.reshape({6, 1, 1}) + bias.reshape({6, 1, 1}), 1e-10, 1e-10));
    CHECK(
        allclose(group_norm(x.transpose(2, 3).contiguous().transpose(2, 3), groups, {}, {}, 0.1), plain, 1e-10, 1e-10));
  }
  // 16-bit elements are normalised by statistics in f32.
  const Tensor half = (randn({4, 64}, kF64) + 30).to(DType::f16);
  const Tensor wide = layer_norm(half.to(DType::f64), {64});
  CHECK(allclose(layer_norm(half, {64}).to(DType::f64), wide, 2e-3, 2e-3));
  CHECK(group_norm(zeros({0, 4, 3}), 2).shape() == Shape{0, 4, 3});
  CHECK(group_norm(zeros({2, 4, 0}), 2).shape() == Shape{2, 4, 0});
  CHECK_THROWS_WITH(group_norm(x, 4), Contains("[group_norm]") && Contains("4 groups") && Contains("f64[3, 6, 5, 2]"));
  CHECK_THROWS_WITH(group_norm(x, 2, weight.narrow(0, 0, 3)), Contains("[6]") && Contains("[3]"));
  CHECK_THROWS_WITH(group_norm(zeros({3}), 1), Contains("f32[3]"));

  GroupNorm layer(2, 6);
  CHECK(equal(layer(x.to(DType::f32)), group_norm(x.to(DType::f32), 2)));
  CHECK(layer.state_dict().size() == 2);
  CHECK(GroupNorm(2, 6, {.affine = false}).state_dict().empty());
  CHECK_THROWS_WITH(layer(zeros({1, 4})), Contains("[GroupNorm]") && Contains("[1, 4]"));
  CHECK_THROWS_WITH(GroupNorm(4, 6), Contains("4 groups") && Contains("6"));
  manual_seed(0);
}
