#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops.h"
#include "support/catch.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;

namespace {

Results attention(GoldenCase& c) {
  AttentionOptions options{.causal = c.get("causal", false)};
  if (c.operands() > 3) options.mask = c[3];
  if (c.has("scale")) options.scale = c.get("scale");
  return {scaled_dot_product_attention(c[0], c[1], c[2], options)};
}

template <class Layer>
const Layer& recurrent(GoldenCase& c) {
  return c.load(Layer(c.get<int>("input_size"), c.get<int>("hidden_size"),
                      {.layers = c.get("num_layers", 1),
                       .bias = c.get("bias", true),
                       .batch_first = c.get("batch_first", false),
                       .bidirectional = c.get("bidirectional", false)}));
}

Results multihead_attention(GoldenCase& c) {
  const auto& layer =
      c.load(MultiheadAttention(c.get<int>("size"), c.get<int>("heads"), {.batch_first = c.get<bool>("batch_first")}));
  return {c.operands() == 1 ? layer(c[0]) : layer(c[0], c[1], c[2])};
}

Results encoder_layer(GoldenCase& c) {
  const auto& layer = c.load(TransformerEncoderLayer(
      c.get<int>("size"), c.get<int>("heads"),
      {.feedforward = c.get<int>("feedforward"),
       .dropout = 0,
       .activation = c.text("activation") == "relu" ? TransformerActivation::relu : TransformerActivation::gelu,
       .batch_first = true,
       .norm_first = c.get<bool>("norm_first")}));
  return {layer(c[0])};
}

// A language model of causal transformer layers, whose head is the embedding.
struct Gpt : Module<Gpt> {
  Embedding tokens{11, 8}, positions{6, 8};
  TransformerEncoder encoder{TransformerEncoderLayer(8, 2,
                                                     {.feedforward = 16,
                                                      .dropout = 0,
                                                      .activation = TransformerActivation::gelu,
                                                      .batch_first = true,
                                                      .norm_first = true}),
                             2, LayerNorm(8)};
  Tensor forward(const Tensor& x) const {
    const Tensor at = arange(x.size(1), {.device = x.device()});
    return linear(encoder(tokens(x) + positions(at), {.causal = true}), tokens.weight.on(x.device()));
  }
  void members(Members& m) override { m("tokens", tokens), m("positions", positions), m("encoder", encoder); }
};

}  // namespace

TEST_CASE("golden: attention and recurrent layers") {
  test::check_golden("sequence", Device::host(0),
                     {{"attention", attention},
                      {"attention_masked", attention},
                      {"lstm_cell",
                       [](GoldenCase& c) {
                         const LstmState next = lstm_cell(c[0], c[1]);
                         return Results{next.h, next.c};
                       }},
                      {"gru_cell", [](GoldenCase& c) { return Results{gru_cell(c[0], c[1], c[2])}; }},
                      {"LSTM",
                       [](GoldenCase& c) {
                         const LstmResult result = recurrent<LSTM>(c)(c[0]);
                         return Results{result.output, result.h, result.c};
                       }},
                      {"GRU",
                       [](GoldenCase& c) {
                         const GruResult result = recurrent<GRU>(c)(c[0]);
                         return Results{result.output, result.h};
                       }},
                      {"MultiheadAttention", multihead_attention},
                      {"TransformerEncoderLayer", encoder_layer},
                      {"Gpt", [](GoldenCase& c) { return Results{c.load(Gpt())(c[0])}; }},
                      {"file_gpt", [](GoldenCase& c) {
                         return Results{test::model_from_file<Gpt>("model_gpt", c[0].device())(c[0])};
                       }}});
}
