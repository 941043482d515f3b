// Attention and the cells of recurrent networks: against the operations they stand for, their derivatives, what they
// refuse.
#include <cmath>
#include <limits>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/gradcheck.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::difference;
using support::Function;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check(const std::string& name, const Function& f, const std::vector<Tensor>& inputs) {
  INFO(name);
  CHECK(gradcheck(f, inputs) == "");
  CHECK(gradgradcheck(f, inputs) == "");
}

Tensor lower_triangle(std::int64_t rows, std::int64_t columns) { return arange(rows).unsqueeze(1) >= arange(columns); }

// The operations that attention stands for; every query sees a key.
Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  Tensor scores = matmul(q, k.transpose(-1, -2)) * o.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  if (o.mask.defined() && o.mask.dtype() == DType::boolean) scores = where(o.mask, scores, -kInfinity);
  if (o.mask.defined() && o.mask.dtype() != DType::boolean) scores = scores + o.mask;
  if (o.causal) scores = where(lower_triangle(q.size(-2), k.size(-2)), scores, -kInfinity);
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
  check("plain", with({}), inputs);
  check("causal", with({.causal = true}), inputs);
  check("keys allowed", with({.mask = from_data({true, false, true, true, false}, {5})}), inputs);
  check("a query without a key", with({.mask = from_data({true, false, true}, {3, 1})}), inputs);
  check("added, a query without a key",
        with({.mask = from_data({0.5, -kInfinity, -1.0}, {3, 1}, {.dtype = DType::f64})}), inputs);
  check("dropout", with({.scale = 0.3, .dropout = 0.5}), inputs);
  check("one head", with({.causal = true}),
        {random_leaf({2, 3, 4}, 1), random_leaf({2, 3, 4}, 2), random_leaf({2, 3, 2}, 3)});
  check("not contiguous", with({}),
        {random_transposed_leaf({1, 2, 3, 2}, 1), random_transposed_leaf({1, 2, 4, 2}, 2),
         random_transposed_leaf({1, 2, 4, 3}, 3)});
  check("the mask's own",
        [](const std::vector<Tensor>& in) {
          manual_seed(1);
          return scaled_dot_product_attention(in[0], in[1], in[2], {.mask = in[3], .causal = true, .dropout = 0.25});
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

TEST_CASE("cells compute what their names say") {
  const Tensor gates = random_leaf({3, 8}, 1), c = random_leaf({3, 2}, 2);
  const std::vector<Tensor> g = chunk(gates, 4, 1);
  const LstmState got = lstm_cell(gates, c);
  const Tensor want = sigmoid(g[1]) * c + sigmoid(g[0]) * tanh(g[2]);
  CHECK(difference(got.c, want) < 1e-14);
  CHECK(difference(got.h, sigmoid(g[3]) * tanh(want)) < 1e-14);

  const Tensor input = random_leaf({3, 6}, 3), hidden = random_leaf({3, 6}, 4);
  const std::vector<Tensor> x = chunk(input, 3, 1), y = chunk(hidden, 3, 1);
  const Tensor r = sigmoid(x[0] + y[0]), z = sigmoid(x[1] + y[1]), n = tanh(x[2] + r * y[2]);
  CHECK(difference(gru_cell(input, hidden, c), (1 - z) * n + z * c) < 1e-14);
}

TEST_CASE("derivatives of the cells of recurrent networks") {
  const std::vector<Tensor> lstm{random_leaf({2, 12}, 1), random_leaf({2, 3}, 2)};
  check(
      "lstm",
      [](const std::vector<Tensor>& in) {
        return cat({lstm_cell(in[0], in[1]).h, lstm_cell(in[0], in[1]).c});
      },
      lstm);
  check(
      "lstm, h and c of one step",
      [](const std::vector<Tensor>& in) {
        const LstmState s = lstm_cell(in[0], in[1]);
        return s.h * s.c;
      },
      lstm);
  check(
      "lstm, h alone", [](const std::vector<Tensor>& in) { return lstm_cell(in[0], in[1]).h; }, lstm);
  check(
      "lstm, c alone", [](const std::vector<Tensor>& in) { return lstm_cell(in[0], in[1]).c; }, lstm);
  const Tensor fixed = random_leaf({2, 3}, 2).detach();
  check("lstm, a fixed state", [&](const std::vector<Tensor>& in) { return lstm_cell(in[0], fixed).h; },
        {random_transposed_leaf({2, 12}, 1)});
  const Function gru = [](const std::vector<Tensor>& in) { return gru_cell(in[0], in[1], in[2]); };
  check("gru", gru, {random_leaf({2, 9}, 1), random_leaf({2, 9}, 2), random_leaf({2, 3}, 3)});
  check("gru, a fixed state", [&](const std::vector<Tensor>& in) { return gru_cell(in[0], in[1], fixed); },
        {random_transposed_leaf({2, 9}, 1), random_leaf({2, 9}, 2)});
}

TEST_CASE("cells refuse gates that do not fit the state") {
  CHECK_THROWS_WITH(lstm_cell(zeros({2, 8}), zeros({2, 3})), Contains("[N, 4 H]"));
  CHECK_THROWS_WITH(lstm_cell(zeros({3, 8}), zeros({2, 2})), Contains("[N, 4 H]"));
  CHECK_THROWS_WITH(gru_cell(zeros({2, 6}), zeros({2, 8}), zeros({2, 2})), Contains("[N, 3 H]"));
  CHECK_THROWS_WITH(gru_cell(zeros({2, 6}), zeros({2, 6}), zeros({2, 2}, {.dtype = DType::f64})),
                    Contains("one floating"));
}
