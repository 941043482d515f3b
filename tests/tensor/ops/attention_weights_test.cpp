// The probabilities of attention, for those who ask for them.
#include <limits>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/gradcheck.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::difference;
using support::random_leaf;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("attention with weights gives what attention gives, dropout included") {
  const DefaultDType scope(DType::f64);
  const Tensor q = randn({2, 3, 5, 4}), k = randn({2, 3, 7, 4}), v = randn({2, 3, 7, 6});
  // The second query sees nothing.
  const Tensor seen = logical_and(arange(7) >= arange(5).unsqueeze(1), ne(arange(5).unsqueeze(1), 1));
  const Tensor added = where(seen, randn({5, 7}), -kInfinity);
  for (const AttentionOptions& options :
       {AttentionOptions{}, AttentionOptions{.mask = seen}, AttentionOptions{.mask = added},
        AttentionOptions{.causal = true, .scale = 0.3}, AttentionOptions{.mask = seen, .dropout = 0.4}}) {
    manual_seed(5);
    const Tensor want = scaled_dot_product_attention(q, k, v, options);
    manual_seed(5);
    const AttentionResult got = attention_with_weights(q, k, v, options);
    CHECK(difference(got.output, want) < 1e-12);
    CHECK(difference(matmul(got.weights, v), want) < 1e-12);
    if (options.mask.defined()) CHECK(got.weights.select(2, 1).to_vector<double>() == std::vector<double>(42, 0));
    if (options.dropout == 0 && !options.mask.defined())
      CHECK(difference(got.weights.sum({-1}), ones({2, 3, 5})) < 1e-12);
  }
  // One head.
  const AttentionResult single = attention_with_weights(q[0], k[0], v[0], {.causal = true});
  CHECK(single.weights.shape() == Shape{3, 5, 7});
  CHECK(difference(single.output, scaled_dot_product_attention(q[0], k[0], v[0], {.causal = true})) < 1e-12);
  CHECK_THROWS_WITH(attention_with_weights(q, v, v), Contains("f64[2, 3, 7, 6]"));
}

TEST_CASE("derivatives of the weights of attention") {
  const Tensor q = random_leaf({1, 2, 3, 2}, 1), k = random_leaf({1, 2, 4, 2}, 2), v = random_leaf({1, 2, 4, 3}, 3);
  const auto f = [](const std::vector<Tensor>& in) {
    const AttentionResult r = attention_with_weights(in[0], in[1], in[2], {.causal = true});
    return cat({r.output.flatten(), square(r.weights).flatten()});
  };
  CHECK(support::gradcheck(f, {q, k, v}) == "");
  CHECK(support::gradgradcheck(f, {q, k, v}) == "");
}

TEST_CASE("a layer's weights: shapes, means of heads, a layer that was never called") {
  const MultiheadAttention layer(6, 3, {.dropout = 0.5, .batch_first = true});
  const Tensor x = randn({2, 5, 6}), y = randn({2, 4, 6});
  const AttentionWithWeights mean = layer.forward_with_weights(x, y, y);
  CHECK(mean.weights.shape() == Shape{2, 5, 4});
  mean.weights.sum().backward();  // which needs the layer's members
  CHECK(layer.in_proj_weight.grad().defined());
  MultiheadAttention quiet = layer;
  quiet.eval();
  const AttentionWithWeights each = quiet.forward_with_weights(x, y, y, {}, false);
  CHECK(each.weights.shape() == Shape{2, 3, 5, 4});
  CHECK(difference(each.output, quiet(x, y, y)) < 1e-5);
  CHECK(difference(each.weights.mean({1}), quiet.forward_with_weights(x, y, y).weights) < 1e-6);
  CHECK(quiet.forward_with_weights(x[0], y[0], y[0]).weights.shape() == Shape{5, 4});
  CHECK(quiet.forward_with_weights(x[0], y[0], y[0], {}, false).weights.shape() == Shape{3, 5, 4});
  CHECK_THROWS_WITH(layer.forward_with_weights(x, randn({2, 4, 5}), y), Contains("[MultiheadAttention]"));
}
