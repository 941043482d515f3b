#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

Tensor integers(const std::vector<std::int64_t>& values, Device device) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.device = device});
}
Results list_of(const GoldenCase& c) {
  Results sequences;
  for (std::size_t i = 0; i < c.operands(); ++i) sequences.push_back(c[i]);
  return sequences;
}

Results pack_and_pad(GoldenCase& c) {
  const bool batch_first = c.get<bool>("batch_first");
  const PackedSequence packed = pack_padded_sequence(
      c[0], c.integers("lengths"), {.batch_first = batch_first, .enforce_sorted = c.get<bool>("enforce_sorted")});
  PadOptions options{.batch_first = batch_first, .padding_value = c.get("padding_value")};
  if (c.has("total_length")) options.total_length = c.get<std::int64_t>("total_length");
  const PaddedSequences padded = pad_packed_sequence(packed, options);
  CHECK(padded.lengths.device() == Device::cpu());
  const Device device = c[0].device();
  return {packed.data, padded.output, padded.lengths.to(device), integers(packed.batch_sizes, device)};
}

RnnOptions options_of(const GoldenCase& c) {
  return {.layers = c.get("num_layers", 1),
          .bias = c.get("bias", true),
          .batch_first = c.get("batch_first", false),
          .bidirectional = c.get("bidirectional", false)};
}
template <class M>
const M& layer(GoldenCase& c) {
  return c.load(M(c.get<int>("input_size"), c.get<int>("hidden_size"), options_of(c)));
}
PackedSequence packed(const GoldenCase& c) {
  return pack_padded_sequence(c[0], c.integers("lengths"),
                              {.batch_first = c.get("batch_first", false), .enforce_sorted = false});
}
Tensor padded(const GoldenCase& c, const PackedSequence& output) {
  return pad_packed_sequence(output, {.batch_first = c.get("batch_first", false)}).output;
}
Tensor state(const GoldenCase& c) { return c.operands() > 1 ? c[1] : Tensor(); }

template <class M>
Results packed_layer(GoldenCase& c) {
  const auto r = layer<M>(c)(packed(c), state(c));
  return {padded(c, r.output), r.h};
}

}  // namespace

TEST_CASE("golden: packed sequences and the recurrent layer without gates") {
  test::check_golden(
      "packed", device_at(0),
      {{"pack_and_pad", pack_and_pad},
       {"pad_list",
        [](GoldenCase& c) {
          return Results{pad_sequence(
              list_of(c), {.batch_first = c.get<bool>("batch_first"), .padding_value = c.get("padding_value")})};
        }},
       {"pack_list",
        [](GoldenCase& c) {
          const PackedSequence packed = pack_sequence(list_of(c), false);
          const Device device = c[0].device();
          return Results{packed.data, integers(packed.batch_sizes, device), integers(packed.sorted_indices, device),
                         integers(packed.unsorted_indices, device)};
        }},
       {"RNN",
        [](GoldenCase& c) {
          const auto nonlinearity = c.text("nonlinearity") == "relu" ? RnnNonlinearity::relu : RnnNonlinearity::tanh;
          const RnnResult r = c.load(
              RNN(c.get<int>("input_size"), c.get<int>("hidden_size"), options_of(c), nonlinearity))(c[0], state(c));
          return Results{r.output, r.h};
        }},
       {"packed_RNN", packed_layer<RNN>},
       {"packed_GRU", packed_layer<GRU>},
       {"packed_LSTM", [](GoldenCase& c) {
          const PackedLstmResult r = layer<LSTM>(c)(packed(c), c.operands() > 1 ? LstmState{c[1], c[2]} : LstmState{});
          return Results{padded(c, r.output), r.h, r.c};
        }}});
}
