// Batch normalisation.
#include "lockstep/tensor/nn/layers.h"
#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("normalisation") {
  manual_seed(2);
  const Tensor x = randn({3, 4, 5, 2}, kF64) * 3 + 1, weight = randn({4}, kF64), bias = randn({4}, kF64);
  const auto column = [](const Tensor& of_channels) { return of_channels.reshape({4, 1, 1}); };
  const Tensor plain = (x - mean(x, {0, 2, 3}, true)) / sqrt(var(x, {0, 2, 3}, 0, true) + 0.1);
  CHECK(allclose(batch_norm(x, weight, bias, {.running_mean = {}, .running_var = {}, .eps = 0.1}),
                 plain * column(weight) + column(bias), 1e-10, 1e-10));
  CHECK(allclose(batch_norm(x.transpose(2, 3).contiguous().transpose(2, 3), {}, {},
                            {.running_mean = {}, .running_var = {}, .eps = 0.1}),
                 plain, 1e-10, 1e-10));
  const Tensor middle = randn({4}, kF64), spread = rand({4}, kF64);
  CHECK(allclose(batch_norm(x, weight, bias, {.running_mean = middle, .running_var = spread, .training = false}),
                 (x - column(middle)) / sqrt(column(spread) + 1e-5) * column(weight) + column(bias), 1e-10, 1e-10));
  const Tensor scale = randn({5, 2}, kF64), shift = randn({5, 2}, kF64);
  CHECK(allclose(layer_norm(x, {5, 2}, scale, shift, 0.1),
                 (x - mean(x, {2, 3}, true)) / sqrt(var(x, {2, 3}, 0, true) + 0.1) * scale + shift, 1e-10, 1e-10));
  CHECK(layer_norm(zeros({0, 3}), {3}).shape() == Shape{0, 3});
  manual_seed(0);
}

TEST_CASE("batch norm without running statistics needs two values in evaluation too") {
  CHECK_THROWS_WITH(batch_norm(ones({1, 3}), {}, {}, {.training = false}),
                    Contains("[batch_norm]") && Contains("[1, 3]"));
  BatchNorm1d layer(3, {.track_running_stats = false});
  layer.eval();
  CHECK_THROWS_AS(layer(ones({1, 3})), InvalidArgument);
  CHECK(layer(zeros({2, 3})).shape() == Shape{2, 3});
}

TEST_CASE("batch norm learns nothing from an empty batch") {
  for (const std::optional<double> momentum : {std::optional(0.5), std::optional<double>()}) {
    BatchNorm2d layer(3, {.momentum = momentum});
    layer.running_mean.assign(full({3}, 2));
    const Tensor x = ones({0, 3, 2, 2}, {.requires_grad = true});
    layer(x).sum().backward();
    CHECK(x.grad().shape() == x.shape());
    CHECK(values(layer.running_mean.tensor()) == Doubles{2, 2, 2});
    CHECK(values(layer.running_var.tensor()) == Doubles{1, 1, 1});
    CHECK(values(layer.weight.grad()) == Doubles{0, 0, 0});
    CHECK(values(layer.bias.grad()) == Doubles{0, 0, 0});
  }
}
