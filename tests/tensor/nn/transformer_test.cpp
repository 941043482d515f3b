// Attention with heads, and layers of transformers.
#include "lockstep/tensor/nn/transformer.h"

#include <cmath>
#include <limits>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/gradcheck.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::difference;
using support::gradcheck;
using support::random_leaf;
using support::random_values;
using support::state_names;

namespace {

using Names = std::vector<std::string>;

// Every parameter something else than zeros and ones.
template <class M>
M scrambled(M module) {
  std::uint64_t seed = 100;
  for (const Parameter& p : module.parameters()) p.assign(random_values(p.shape(), ++seed));
  return module;
}

// One head after the other, one batch after the other, from the formula. x [B, T, E].
Tensor naive_attention(const MultiheadAttention& module, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& hidden) {  // hidden [B, T, S]: what is not seen
  const std::int64_t size = q.size(2), heads = module.heads(), each = size / heads;
  const std::vector<Tensor> w = chunk(module.in_proj_weight.tensor(), 3, 0),
                            b = chunk(module.in_proj_bias.tensor(), 3, 0);
  std::vector<Tensor> batches;
  for (std::int64_t n = 0; n < q.size(0); ++n) {
    std::vector<Tensor> parts;
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto head = [&](const Tensor& x, int which) {
        const Tensor wh = w[static_cast<std::size_t>(which)].narrow(0, h * each, each);
        return matmul(x[n], wh.t()) + b[static_cast<std::size_t>(which)].narrow(0, h * each, each);
      };
      const Tensor scores = matmul(head(q, 0), head(k, 1).t()) / std::sqrt(static_cast<double>(each));
      parts.push_back(matmul(softmax(where(hidden[n], -1e30, scores), -1), head(v, 2)));
    }
    batches.push_back(cat(parts, 1));
  }
  return module.out_proj(stack(batches));
}

}  // namespace

TEST_CASE("attention and transformer layers have the names and shapes of PyTorch's") {
  CHECK(state_names(MultiheadAttention(4, 2)) ==
        Names{"in_proj_weight[12, 4]", "in_proj_bias[12]", "out_proj.weight[4, 4]", "out_proj.bias[4]"});
  CHECK(state_names(MultiheadAttention(4, 2, {.bias = false, .key_size = 3, .value_size = 5})) ==
        Names{"q_proj_weight[4, 4]", "k_proj_weight[4, 3]", "v_proj_weight[4, 5]", "out_proj.weight[4, 4]"});
  const TransformerEncoderLayer layer(4, 2, {.feedforward = 6});
  CHECK(state_names(layer) ==
        Names{"self_attn.in_proj_weight[12, 4]", "self_attn.in_proj_bias[12]", "self_attn.out_proj.weight[4, 4]",
              "self_attn.out_proj.bias[4]", "linear1.weight[6, 4]", "linear1.bias[6]", "linear2.weight[4, 6]",
              "linear2.bias[4]", "norm1.weight[4]", "norm1.bias[4]", "norm2.weight[4]", "norm2.bias[4]"});
  const TransformerEncoder encoder(layer, 2, LayerNorm(4));
  const Names names = state_names(encoder);
  CHECK(names.size() == 2 * 12 + 2);
  CHECK(names[12] == "layers.1.self_attn.in_proj_weight[12, 4]");
  CHECK(names[24] == "norm.weight[4]");
  CHECK(!(encoder.layers[0].linear1.weight == encoder.layers[1].linear1.weight));
  CHECK(difference(encoder.layers[0].linear1.weight.tensor(), encoder.layers[1].linear1.weight.tensor()) == 0);
  CHECK(MultiheadAttention(4, 2).out_proj.bias.tensor().to_vector<float>() == std::vector<float>(4, 0));
}

TEST_CASE("attention with heads is the formula for each head") {
  const DefaultDType f64(DType::f64);
  const auto module = scrambled(MultiheadAttention(6, 3, {.batch_first = true}));
  const Tensor x = random_values({2, 4, 6}, 1), memory = random_values({2, 5, 6}, 2),
               content = random_values({2, 5, 6}, 3);
  const Tensor nothing = zeros({2, 4, 4}, {.dtype = DType::boolean});
  CHECK(difference(module(x), naive_attention(module, x, x, x, nothing)) < 1e-12);
  CHECK(difference(module(x, memory, content),
                   naive_attention(module, x, memory, content, zeros({2, 4, 5}, {.dtype = DType::boolean}))) < 1e-12);

  const Tensor padding = from_data({false, false, true, true, false, false, false, true}, {2, 4});
  const Tensor future = arange(4).unsqueeze(1) < arange(4);
  const Tensor both = logical_or(padding.unsqueeze(1), future);
  const Tensor want = naive_attention(module, x, x, x, both);
  CHECK(difference(module(x, {.attention = future, .key_padding = padding}), want) < 1e-12);
  CHECK(difference(module(x, {.key_padding = padding, .causal = true}), want) < 1e-12);
  CHECK(difference(module(x, {.attention = future.expand({6, 4, 4}), .key_padding = padding}), want) < 1e-12);
  const Tensor added = where(future, zeros({}) - std::numeric_limits<double>::infinity(), zeros({}));
  CHECK(difference(module(x, {.attention = added, .key_padding = padding}), want) < 1e-12);

  MultiheadAttention sequence_first(6, 3);
  sequence_first.load_state_dict(module.state_dict());
  CHECK(difference(sequence_first(x.transpose(0, 1), {.key_padding = padding, .causal = true}).transpose(0, 1), want) <
        1e-12);
  CHECK(difference(module(x[1], {.key_padding = padding[1], .causal = true}), want[1]) < 1e-12);
}

TEST_CASE("attention with inputs of other sizes projects each") {
  const DefaultDType f64(DType::f64);
  const auto module = scrambled(MultiheadAttention(4, 2, {.key_size = 3, .value_size = 5, .batch_first = true}));
  MultiheadAttention same(4, 2, {.batch_first = true});
  const Tensor q = random_values({1, 2, 4}, 1), k = random_values({1, 6, 3}, 2), v = random_values({1, 6, 5}, 3);
  same.in_proj_weight.assign(cat({module.q_proj_weight.tensor(), eye(4), eye(4)}));
  same.in_proj_bias.assign(module.in_proj_bias.tensor());
  same.out_proj = module.out_proj;
  const Tensor want =
      same(q, matmul(k, module.k_proj_weight.tensor().t()), matmul(v, module.v_proj_weight.tensor().t()));
  CHECK(difference(module(q, k, v), want) < 1e-12);
}

TEST_CASE("a transformer layer puts its parts together, with the norm after or before") {
  const DefaultDType f64(DType::f64);
  const Tensor x = random_values({2, 3, 4}, 1);
  for (const bool first : {false, true})
    for (const TransformerActivation activation : {TransformerActivation::relu, TransformerActivation::gelu}) {
      auto layer = scrambled(TransformerEncoderLayer(
          4, 2, {.feedforward = 5, .activation = activation, .batch_first = true, .norm_first = first}));
      layer.eval();
      const auto feed = [&](const Tensor& y) {
        const Tensor wide = layer.linear1(y);
        return layer.linear2(activation == TransformerActivation::relu ? relu(wide) : gelu(wide));
      };
      Tensor want;
      if (first) {
        want = x + layer.self_attn(layer.norm1(x), {.causal = true});
        want = want + feed(layer.norm2(want));
      } else {
        want = layer.norm1(x + layer.self_attn(x, {.causal = true}));
        want = layer.norm2(want + feed(want));
      }
      CHECK(difference(layer(x, {.causal = true}), want) == 0);
      const TransformerEncoder encoder(layer, 2, layer.norm1);
      CHECK(difference(encoder(x, {.causal = true}), layer.norm1(layer(want, {.causal = true}))) < 1e-12);
    }
}

TEST_CASE("dropout in transformers follows the mode and the seed") {
  TransformerEncoderLayer layer(8, 2, {.feedforward = 16, .dropout = 0.5});
  const Tensor x = randn({3, 2, 8});
  manual_seed(1);
  const Tensor once = layer(x), other = layer(x);
  manual_seed(1);
  CHECK(difference(layer(x), once) == 0);
  CHECK(difference(once, other) > 0.01);
  layer.eval();
  CHECK(difference(layer(x), layer(x)) == 0);
}

TEST_CASE("derivatives of a transformer layer") {
  const DefaultDType f64(DType::f64);
  const auto layer = scrambled(TransformerEncoderLayer(4, 2, {.feedforward = 5, .dropout = 0, .norm_first = true}));
  std::vector<Tensor> inputs{random_leaf({3, 2, 4}, 1)};
  for (const Parameter& p : layer.parameters()) inputs.push_back(p.tensor());
  CHECK(gradcheck([&](const std::vector<Tensor>& in) { return layer(in[0], {.causal = true}); }, inputs,
                  {.tolerance = 1e-5}) == "");
}

TEST_CASE("a small transformer learns to repeat what it saw one step ago") {
  struct Repeater : Module<Repeater> {
    Embedding tokens{5, 16}, positions{6, 16};
    TransformerEncoder encoder{
        TransformerEncoderLayer(16, 2, {.feedforward = 32, .dropout = 0, .batch_first = true, .norm_first = true}), 1};
    Linear head{16, 5};
    Tensor forward(const Tensor& ids) const {
      return head(encoder(tokens(ids) + positions(arange(6)), {.causal = true}));
    }
    void members(Members& m) override {
      m("tokens", tokens), m("positions", positions), m("encoder", encoder), m("head", head);
    }
  };
  manual_seed(0);
  const Repeater net;
  AdamW optimizer(net.parameters(), {.lr = 1e-2});
  double loss = 0;
  for (int step = 0; step < 150; ++step) {
    const Tensor ids = randint(0, 5, {16, 6});
    const Tensor wanted = cat({zeros({16, 1}, {.dtype = DType::i64}), ids.narrow(1, 0, 5)}, 1);
    const Tensor error = cross_entropy(net(ids).reshape({96, 5}), wanted.reshape({96}));
    optimizer.zero_grad();
    error.backward();
    optimizer.step();
    loss = error.item<double>();
  }
  CHECK(loss < 0.1);
}

TEST_CASE("attention with heads refuses what does not fit") {
  CHECK_THROWS_WITH(MultiheadAttention(5, 2), Contains("multiple of the number of heads"));
  CHECK_THROWS_WITH(MultiheadAttention(4, 2, {.dropout = 2}), Contains("probability"));
  const MultiheadAttention module(4, 2, {.batch_first = true});
  const Tensor x = zeros({2, 3, 4});
  CHECK_THROWS_WITH(module(zeros({2, 3, 5})), Contains("a query of size 4"));
  CHECK_THROWS_WITH(module(x, zeros({3, 4}), x), Contains("rank 2 or 3"));
  CHECK_THROWS_WITH(module(x, {.attention = zeros({3, 3, 3})}), Contains("[4, 3, 3]"));
  CHECK_THROWS_WITH(module(x, {.key_padding = zeros({2, 4})}), Contains("padding mask [2, 3]"));
  CHECK_THROWS_WITH(module(x, {.attention = zeros({3, 3}, {.dtype = DType::i64})}), Contains("floating dtype"));
  CHECK_THROWS_WITH(TransformerEncoder(TransformerEncoderLayer(4, 2), -1), Contains("number of layers"));
}
