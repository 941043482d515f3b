#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

Results attention_of(GoldenCase& c) {
  AttentionOptions options{.causal = c.get<bool>("causal")};
  if (c.operands() > 3) options.mask = c[3];
  if (c.has("scale")) options.scale = c.get("scale");
  return {scaled_dot_product_attention(c[0], c[1], c[2], options)};
}

const MultiheadAttention& multihead(GoldenCase& c) {
  MultiheadAttentionOptions options{.bias = c.get("bias", true), .batch_first = c.get("batch_first", false)};
  if (c.has("kdim")) options.key_size = c.get<std::int64_t>("kdim"), options.value_size = c.get<std::int64_t>("vdim");
  return c.load(MultiheadAttention(c.get<int>("size"), c.get<int>("heads"), options));
}

TransformerEncoderLayer layer(const GoldenCase& c) {
  return {c.get<int>("size"),
          c.get<int>("heads"),
          {.feedforward = c.get<int>("feedforward"),
           .dropout = 0,
           .activation = c.text("activation") == "relu" ? TransformerActivation::relu : TransformerActivation::gelu,
           .batch_first = true,
           .norm_first = c.get<bool>("norm_first")}};
}

template <class M>
const M& recurrent(GoldenCase& c) {
  return c.load(M(c.get<int>("input_size"), c.get<int>("hidden_size"),
                  {.layers = c.get("num_layers", 1),
                   .bias = c.get("bias", true),
                   .batch_first = c.get("batch_first", false),
                   .bidirectional = c.get("bidirectional", false)}));
}
Results lstm_of(GoldenCase& c) {
  const LstmResult r = recurrent<LSTM>(c)(c[0], c.operands() > 1 ? LstmState{c[1], c[2]} : LstmState{});
  return {r.output, r.h, r.c};
}
Results gru_of(GoldenCase& c) {
  const GruResult r = recurrent<GRU>(c)(c[0], c.operands() > 1 ? c[1] : Tensor());
  return {r.output, r.h};
}

}  // namespace

TEST_CASE("golden: attention, transformers and recurrent layers") {
  test::check_golden("sequence", device_at(0),
                     {{"attention", attention_of},
                      {"MultiheadAttention",
                       [](GoldenCase& c) {
                         const MultiheadAttention& m = multihead(c);
                         return Results{c.operands() > 1 ? m(c[0], c[1], c[2]) : m(c[0])};
                       }},
                      {"MultiheadAttention_masked",
                       [](GoldenCase& c) {
                         return Results{multihead(c)(c[0], AttentionMasks{.attention = c[2], .key_padding = c[1]})};
                       }},
                      {"MultiheadAttention_weights",
                       [](GoldenCase& c) {
                         const AttentionWithWeights r = multihead(c).forward_with_weights(
                             c[0], c[1], c[2], {.attention = c[4], .key_padding = c[3]}, c.get<bool>("average"));
                         return Results{r.output, r.weights};
                       }},
                      {"TransformerEncoderLayer", [](GoldenCase& c) { return Results{c.load(layer(c))(c[0])}; }},
                      {"TransformerEncoder",
                       [](GoldenCase& c) {
                         const auto& net =
                             c.load(TransformerEncoder(layer(c), c.get<int>("layers"), LayerNorm(c.get<int>("size"))));
                         return Results{net(c[0], AttentionMasks{.attention = c[2], .key_padding = c[1]})};
                       }},
                      {"LSTM", lstm_of},
                      {"GRU", gru_of}});
}
