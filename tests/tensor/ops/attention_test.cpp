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

// The operations that attention stands for; every query sees a key.
Tensor composed(const Tensor& q, const Tensor& k_, const Tensor& v_, const AttentionOptions& o) {
  const std::int64_t group = q.size(1) / k_.size(1);
  const Tensor k = repeat_interleave(k_, group, 1), v = repeat_interleave(v_, group, 1);
  Tensor scores = matmul(q, k.transpose(-1, -2)) * o.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  if (o.mask.defined() && o.mask.dtype() == DType::boolean) scores = where(o.mask, scores, -kInf);
  if (o.mask.defined() && o.mask.dtype() != DType::boolean) scores = scores + o.mask;
  const Tensor keys = arange(k.size(-2));
  const Tensor ends = o.seqlens_k.defined() ? o.seqlens_k.reshape({-1, 1, 1, 1}) : full({1}, k.size(-2));
  scores = where(keys < ends, scores, -kInf);
  const bool lower = o.variant == CausalVariant::lower_right;
  if (o.causal) {
    const Tensor places = arange(q.size(-2)).unsqueeze(1);
    scores = where(keys <= (lower ? places + ends - q.size(-2) : places), scores, -kInf);
  }
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
      {"causal, lower right", {.causal = true, .variant = CausalVariant::lower_right}},
      {"lengths", {.seqlens_k = from_data({7, 2}, {2})}},
      {"lengths of i32, causal, lower right",
       {.mask = bias,
        .causal = true,
        .variant = CausalVariant::lower_right,
        .seqlens_k = from_data({7, 5}, {2}).to(DType::i32)}},
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

TEST_CASE("attention with fewer heads of keys and values is that of repeated ones") {
  const Tensor q = random_leaf({2, 6, 5, 4}, 1), k = random_leaf({2, 2, 7, 4}, 2), v = random_leaf({2, 2, 7, 6}, 3);
  for (const AttentionOptions& options : {AttentionOptions{.enable_gqa = true}, AttentionOptions{.causal = true,
                                                                                .dropout = 0.3,
                                                                                .variant = CausalVariant::lower_right,
                                                                                .enable_gqa = true,
                                                                                .seqlens_k = from_data({6, 7}, {2})}}) {
    manual_seed(3);
    const Tensor got = scaled_dot_product_attention(q, k, v, options);
    manual_seed(3);
    const Tensor want = composed(q, k, v, options);
    manual_seed(3);
    CHECK(difference(attention_with_weights(q, k, v, options).output, want) < 1e-12);
    CHECK(difference(got, want) < 1e-12);
    const Tensor direction = random_leaf(want.shape(), 9).detach();
    const std::vector<Tensor> dgot = grad((got * direction).sum(), {q, k, v});
    const std::vector<Tensor> dwant = grad((want * direction).sum(), {q, k, v});
    for (std::size_t i = 0; i < 3; ++i) CHECK(difference(dgot[i], dwant[i]) < 1e-12);
  }
}

TEST_CASE("attention reads no key behind the end of a sequence, by the kernel or by the formula") {
  const Tensor lengths = from_data({3, 0}, {2}), there = arange(5).unsqueeze(1) < lengths.reshape({2, 1, 1, 1});
  const auto make = [&](const Shape& shape, int seed, double hidden) {
    return where(there, random_leaf(shape, seed).detach(), hidden).set_requires_grad(true);
  };
  for (const bool causal : {false, true}) {
    const AttentionOptions options{.causal = causal, .variant = CausalVariant::lower_right, .seqlens_k = lengths};
    const Tensor q = random_leaf({2, 2, 4, 3}, 1);
    std::vector<std::vector<Tensor>> results;
    for (const double hidden : {0.0, std::nan("")}) {
      const Tensor k = make({2, 2, 5, 3}, 2, hidden), v = make({2, 2, 5, 3}, 3, hidden);
      const Tensor y = scaled_dot_product_attention(q, k, v, options);
      const AttentionResult r = attention_with_weights(q, k, v, options);
      std::vector<Tensor> all{y, r.output, r.weights};
      for (const Tensor& result : {y, r.output})
        for (const Tensor& g : grad(square(result).sum(), {q, k, v}, {.retain_graph = true})) all.push_back(g);
      for (const Tensor& g : grad(square(y).sum(), {q, k, v}, {.create_graph = true})) all.push_back(g);
      results.push_back(all);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      INFO(i);
      CHECK(results[0][i].to_vector<double>() == results[1][i].to_vector<double>());
    }
    CHECK(results[1][0][1].to_vector<double>() == std::vector<double>(24, 0));  // the second sequence has no key
  }
}

TEST_CASE("attention over pages is that over the keys they hold") {
  const std::int64_t page = 4;
  // Two sequences of three pages; a pool of eight, in an order of its own.
  const Tensor table = from_data({5, 0, 3, 7, 2, 6}, {2, 3}), lengths = from_data({11, 5}, {2});
  const auto pool_of = [&](const Tensor& x) {  // [2, G, 12, D] -> [8, G, page, D]
    const Tensor pages =
        x.reshape({2, x.size(1), 3, page, x.size(3)}).transpose(1, 2).reshape({6, x.size(1), page, x.size(3)});
    return index_add(zeros({8, x.size(1), page, x.size(3)}, {.dtype = x.dtype()}), 0, table.reshape({6}), pages);
  };
  for (const std::int64_t queries : {1, 3, 20})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Tensor q = randn({2, 4, queries, 16}, {.dtype = dtype}), k = randn({2, 2, 12, 16}, {.dtype = dtype}),
                   v = randn({2, 2, 12, 6}, {.dtype = dtype});
      AttentionOptions options{
          .causal = true, .variant = CausalVariant::lower_right, .enable_gqa = true, .seqlens_k = lengths};
      const Tensor want = scaled_dot_product_attention(q, k, v, options);
      for (const DType integers : {DType::i32, DType::i64}) {
        options.block_table = table.to(integers);
        CHECK(difference(scaled_dot_product_attention(q, pool_of(k), pool_of(v), options), want) == 0);
        // A pool with the heads inside, as other libraries lay it out.
        const Tensor other = pool_of(k).transpose(1, 2).contiguous().transpose(1, 2);
        CHECK(difference(scaled_dot_product_attention(q, other, pool_of(v), options), want) == 0);
      }
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
  check_gradients("lower right", with({.causal = true, .variant = CausalVariant::lower_right}), inputs);
  check_gradients("lengths",
                  with({.causal = true, .variant = CausalVariant::lower_right, .seqlens_k = from_data({2, 5}, {2})}),
                  inputs);
  check_gradients("fewer heads of keys and values",
                  with({.causal = true, .dropout = 0.3, .enable_gqa = true, .seqlens_k = from_data({4, 1}, {2})}),
                  {random_leaf({2, 4, 3, 4}, 1), random_leaf({2, 2, 5, 4}, 2), random_leaf({2, 2, 5, 3}, 3)});
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

TEST_CASE("attention refuses options that do not fit") {
  const Tensor q = zeros({2, 6, 4, 5}), k = zeros({2, 4, 7, 5});
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, k, k), Contains("enable_gqa") && Contains("[2, 4, 7, 5]"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, k, k, {.enable_gqa = true}),
                    Contains("multiple") && Contains("6 of") && Contains("4 of"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, k.slice(1, 0, 3), k.slice(1, 0, 2), {.enable_gqa = true}),
                    Contains("[B, G, S, E]"));
  CHECK_THROWS_WITH(scaled_dot_product_attention(q, k.slice(1, 0, 0), k.slice(1, 0, 0), {.enable_gqa = true}),
                    Contains("multiple"));
  const Tensor one = zeros({2, 6, 7, 5});
  const auto with_lengths = [&](const Tensor& lengths) {
    return [&, lengths] { (void)scaled_dot_product_attention(q, one, one, {.seqlens_k = lengths}); };
  };
  CHECK_THROWS_WITH(with_lengths(zeros({2}))(), Contains("seqlens_k of i32 or i64"));
  CHECK_THROWS_WITH(with_lengths(from_data({1, 2, 3}, {3}))(), Contains("seqlens_k [B]") && Contains("i64[3]"));
  CHECK_THROWS_WITH(with_lengths(from_data({1, 2}, {2, 1}))(), Contains("seqlens_k [B]"));
  CHECK_THROWS_WITH(with_lengths(from_data({1, 2}, {2}).to(device_at(0)))(), Contains("one device"));
  CHECK_THROWS_WITH(with_lengths(from_data({1, 8}, {2}))(), Contains("[0, 7], got 8"));
  for (const int wrong : {8, -1})
    CHECK_THROWS_WITH(attention_with_weights(q, one, one, {.seqlens_k = from_data({1, wrong}, {2})}),
                      Contains("[0, 8), got " + std::to_string(wrong)));
  const Tensor pool = zeros({9, 6, 4, 5}), table = from_data({1, 2, 3, 4}, {2, 2});
  const auto with_pages = [&](const Tensor& p, const Tensor& t) {
    return scaled_dot_product_attention(q, p, p, {.block_table = t});
  };
  CHECK(with_pages(pool, table).shape() == Shape{2, 6, 4, 5});
  CHECK_THROWS_WITH(with_pages(pool, zeros({2, 2})), Contains("block_table of i32 or i64"));
  CHECK_THROWS_WITH(with_pages(pool, from_data({1, 2}, {2})), Contains("block_table [B, pages"));
  CHECK_THROWS_WITH(with_pages(pool, from_data({1, 2, 3}, {3, 1})),
                    Contains("block_table [B, pages") && Contains("i64[3, 1]"));
  CHECK_THROWS_WITH(with_pages(pool, from_data({1, 2, 3, 9}, {2, 2})),
                    Contains("[0, 9), got 9 at position 1 of sequence 1"));
  CHECK_THROWS_WITH(with_pages(pool.slice(2, 0, 0), table), Contains("at least one row"));
  CHECK_THROWS_WITH(with_pages(zeros({9, 6, 5}), table), Contains("[P, H, page, D]"));
  CHECK_THROWS_WITH(with_pages(random_leaf({9, 6, 4, 5}, 1).to(DType::f32), table), Contains("no gradient"));
  CHECK_THROWS_WITH(
      scaled_dot_product_attention(q, pool, pool, {.mask = random_leaf({8}, 1).to(DType::f32), .block_table = table}),
      Contains("no gradient"));
  CHECK_THROWS_WITH(attention_with_weights(q, pool, pool, {.block_table = table}), Contains("without a block_table"));
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
