#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

Results attention(GoldenCase& c) {
  AttentionOptions options{.causal = c.get("causal", false)};
  if (c.has("scale")) options.scale = c.get("scale");
  return {scaled_dot_product_attention(c[0], c[1], c[2], options)};
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

TEST_CASE("golden: a language model and its parts") {
  test::check_golden("text", device_at(0),
                     {{"attention", attention},
                      {"lstm_cell",
                       [](GoldenCase& c) {
                         const LstmState next = lstm_cell(c[0], c[1]);
                         return Results{next.h, next.c};
                       }},
                      {"gru_cell", [](GoldenCase& c) { return Results{gru_cell(c[0], c[1], c[2])}; }},
                      {"Gpt", [](GoldenCase& c) { return Results{c.load(Gpt())(c[0])}; }},
                      {"file_gpt", [](GoldenCase& c) {
                         return Results{test::model_from_file<Gpt>("model_gpt", c[0].device())(c[0])};
                       }}});
}
