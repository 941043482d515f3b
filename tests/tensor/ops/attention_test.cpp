// Attention: against the operations it stands for, its derivatives, what it refuses, its weights.
#include <cmath>

#include "lockstep/tensor/nn/layers.h"
#include "support/compare.h"
#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;
using support::difference;

namespace {

Tensor lower_triangle(std::int64_t rows, std::int64_t columns) { return arange(rows).unsqueeze(1) >= arange(columns); }

// The operations that attention stands for; every query sees a key.
Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  Tensor scores = matmul(q, k.transpose(-1, -2)) * o.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  if (o.mask.defined() && o.mask.dtype() == DType::boolean) scores = where(o.mask, scores, -kInf);
  if (o.mask.defined() && o.mask.dtype() != DType::boolean) scores = scores + o.mask;
  if (o.causal) scores = where(lower_triangle(q.size(-2), k.size(-2)), scores, -kInf);
  return matmul(dropout(softmax(scores, -1), o.dropout, true), v);
}

}  // namespace

TEST_CASE("attention is softmax between two products, dropout included") {
  const Tensor q = random_leaf({2, 3, 5, 4}, 1), k = random_leaf({2, 3, 7, 4}, 2), v = random_leaf({2, 3, 7, 6}, 3);
  Tensor seen = random_leaf({2, 1, 5, 7}, 4).detach() > 0.0;
  seen = logical_or(seen, arange(7) == 0.0);
  const Tensor bias = random_leaf({3, 1, 7}, 5).detach();
  const std::vector<std::pair<std::string, AttentionOptions>> cases = {
      {"plain", {}},
      {"scaled", {.scale = 0.7}},
      {"causal", {.causal = true}},
      {"keys allowed", {.mask = seen}},
      {"added", {.mask = bias}},
      {"added and causal", {.mask = bias, .causal = true}},
      {"one row for all", {.mask = arange(7) < 4.0}},
      {"dropout", {.dropout = 0.4}},
      {"dropout, masked", {.mask = seen, .causal = true, .dropout = 0.2}},
      {"all dropped", {.dropout = 1}},
  };
  for (const auto& [name, options] : cases) {
    INFO(name);
    manual_seed(3);
    const Tensor got = scaled_dot_product_attention(q, k, v, options);
    manual_seed(3);
    const Tensor want = composed(q, k, v, options);
    CHECK(difference(got, want) < 1e-12);
    const Tensor direction = random_leaf(want.shape(), 9).detach();
    const std::vector<Tensor> inputs{q, k, v};
    const std::vector<Tensor> dgot = grad((got * direction).sum(), inputs);
    const std::vector<Tensor> dwant = grad((want * direction).sum(), inputs);
    for (std::size_t i = 0; i < 3; ++i) CHECK(difference(dgot[i], dwant[i]) < 1e-12);
  }
}

TEST_CASE("attention in single and half precision is close to the same in double") {
  const Tensor q = randn({1, 2, 100, 32}, {.dtype = DType::f64}), k = randn({1, 2, 300, 32}, {.dtype = DType::f64}),
               v = randn({1, 2, 300, 32}, {.dtype = DType::f64});
  const Tensor want = scaled_dot_product_attention(q, k, v, {.causal = true});
  for (const auto& [dtype, bound] :
       {std::pair{DType::f32, 2e-6}, std::pair{DType::f16, 4e-3}, std::pair{DType::bf16, 3e-2}}) {
    const Tensor got = scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype), {.causal = true});
    CHECK(got.dtype() == dtype);
    CHECK(difference(got.to(DType::f64), want) < bound);
  }
}

TEST_CASE("derivatives of attention") {
  const auto with = [](const AttentionOptions& options) -> Function {
    return [options](const std::vector<Tensor>& in) {
      manual_seed(1);
      return scaled_dot_product_attention(in[0], in[1], in[2], options);
    };
  };
  const std::vector<Tensor> inputs{random_leaf({2, 2, 3, 4}, 1), random_leaf({2, 2, 5, 4}, 2),
                                   random_leaf({2, 2, 5, 3}, 3)};
  check_gradients("plain", with({}), inputs);
  check_gradients("causal", with({.causal = true}), inputs);
  check_gradients("keys allowed", with({.mask = from_data({true, false, true, true, false}, {5})}), inputs);
  check_gradients("a query without a key", with({.mask = from_data({true, false, true}, {3, 1})}), inputs);
  check_gradients("added, a query without a key",
                  with({.mask = from_data({0.5, -kInf, -1.0}, {3, 1}, {.dtype = DType::f64})}), inputs);
  check_gradients("dropout", with({.scale = 0.3, .dropout = 0.5}), inputs);
  check_gradients("one head", with({.causal = true}),
                  {random_leaf({2, 3, 4}, 1), random_leaf({2, 3, 4}, 2), random_leaf({2, 3, 2}, 3)});
  check_gradients("not contiguous", with({}),
                  {random_transposed_leaf({1, 2, 3, 2}, 1), random_transposed_leaf({1, 2, 4, 2}, 2),
                   random_transposed_leaf({1, 2, 4, 3}, 3)});
  check_gradients("the mask's own",
                  [](const std::vector<Tensor>& in) {
                    manual_seed(1);
                    return scaled_dot_product_attention(in[0], in[1], in[2],
                                                        {.mask = in[3], .causal = true, .dropout = 0.25});
                  },
                  {random_leaf({1, 2, 3, 2}, 1), random_leaf({1, 2, 4, 2}, 2), random_leaf({1, 2, 4, 2}, 3),
                   random_leaf({2, 1, 4}, 4)});
}

TEST_CASE("attention gives gradients to those who want one") {
  const Tensor x = random_leaf({1, 1, 4, 3}, 1), constant = random_leaf({1, 1, 4, 3}, 2).detach();
  for (int which = 0; which < 3; ++which) {
    const auto pick = [&](int i) { return i == which ? x : constant; };
    const Function f = [&](const std::vector<Tensor>&) {
      return scaled_dot_product_attention(pick(0), pick(1), pick(2), {.causal = true});
    };
    CHECK(gradcheck(f, {x}) == "");
  }
}

TEST_CASE("attention refuses what does not fit") {
  const Tensor q = zeros({2, 3, 4, 5}), v = zeros({2, 3, 4, 6});
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, zeros({2, 3, 4, 6}), v), Contains("[B, H, S, D]"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, zeros({2, 1, 4, 5}), v), Contains("[B, H, S, D]"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, zeros({2, 3, 7, 5}), v), Contains("[B, H, S, E]"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(zeros({4, 5}), zeros({4, 5}), zeros({4, 5})),
                    Contains("[B, H, T, D]"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, q.to(DType::f64), v), Contains("one floating dtype"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, {}, v), Contains("undefined"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, q, v, {.mask = zeros({4, 5})}),
                    Contains("broadcasts to [2, 3, 4, 4]"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, q, v, {.mask = zeros({1, 2, 3, 4, 4})}), Contains("broadcasts"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, q, v, {.mask = zeros({4, 4}, {.dtype = DType::i64})}),
                    Contains("mask of bool"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, q, v, {.dropout = 1.5}), Contains("probability"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, q, v, {.mask = zeros({4, 4}, {.device = device_at(0)})}),
                    Contains("one device"));
}

TEST_CASE("attention with weights gives what attention gives, dropout included") {
  const DefaultDType scope(DType::f64);
  const Tensor q = randn({2, 3, 5, 4}), k = randn({2, 3, 7, 4}), v = randn({2, 3, 7, 6});
  // The second query sees nothing.
  const Tensor seen = logical_and(arange(7) >= arange(5).unsqueeze(1), ne(arange(5).unsqueeze(1), 1));
  const Tensor added = where(seen, randn({5, 7}), -kInf);
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
