// Recurrent layers over sequences of different lengths: each sequence must come out as if it were alone.
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/counter.h"
#include "support/devices.h"
#include "support/gradcheck.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::difference;
using support::gradcheck;
using support::random_leaf;

namespace {

using Integers = std::vector<std::int64_t>;

// The same for every layer: output, then the states.
struct Packed {
  PackedSequence output;
  std::vector<Tensor> states;
};
Packed call(const LSTM& lstm, const PackedSequence& x, const std::vector<Tensor>& states) {
  const PackedLstmResult r = states.empty() ? lstm(x) : lstm(x, {states[0], states[1]});
  return {r.output, {r.h, r.c}};
}
Packed call(const auto& layer, const PackedSequence& x, const std::vector<Tensor>& states) {
  const PackedRnnResult r = states.empty() ? layer(x) : layer(x, states[0]);
  return {r.output, {r.h}};
}
// Of a sequence [T, I] alone, with its own states [layers * directions, H].
std::vector<Tensor> alone(const LSTM& lstm, const Tensor& x, const std::vector<Tensor>& states) {
  const LstmResult r = states.empty() ? lstm(x) : lstm(x, {states[0], states[1]});
  return {r.output, r.h, r.c};
}
std::vector<Tensor> alone(const auto& layer, const Tensor& x, const std::vector<Tensor>& states) {
  const RnnResult r = states.empty() ? layer(x) : layer(x, states[0]);
  return {r.output, r.h};
}

std::vector<Tensor> gradients_and_reset(ModuleBase& module, std::vector<Tensor> inputs) {
  std::vector<Tensor> all;
  for (const Parameter& p : module.parameters()) inputs.push_back(p.tensor());
  for (Tensor& input : inputs) {
    all.push_back(input.grad().clone());
    input.zero_grad();
  }
  return all;
}

// Outputs, states and all gradients, against the sequences one by one.
template <class M>
void compare(M layer, const Integers& lengths, bool with_states, int kinds_of_state) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  const std::int64_t slices = static_cast<std::int64_t>(layer.weights().size());
  std::vector<Tensor> sequences, states;
  for (std::size_t s = 0; s < lengths.size(); ++s) sequences.push_back(random_leaf({lengths[s], 2}, s + 1, -1, 1));
  for (int k = 0; k < kinds_of_state && with_states; ++k)
    states.push_back(random_leaf({slices, batch, 3}, 50 + static_cast<std::uint64_t>(k), -1, 1));
  std::vector<Tensor> leaves = sequences;
  leaves.insert(leaves.end(), states.begin(), states.end());

  const Packed got = call(layer, pack_sequence(sequences, false), states);
  CHECK(got.output.lengths() == lengths);
  const std::vector<Tensor> outputs = unpack_sequence(got.output);
  Tensor loss;
  const auto add = [&](const Tensor& result) {
    const Tensor weighted =
        (result * arange(1, result.count() + 1, 1, {.dtype = DType::f64}).reshape(result.shape())).sum();
    loss = loss.defined() ? loss + weighted : weighted;
  };
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    add(outputs[s]);
    for (const Tensor& state : got.states) add(state.select(1, static_cast<std::int64_t>(s)));
  }
  loss.backward();
  const std::vector<Tensor> got_gradients = gradients_and_reset(layer, leaves);

  loss = Tensor();
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    std::vector<Tensor> own;
    for (const Tensor& state : states) own.push_back(state.select(1, static_cast<std::int64_t>(s)));
    const std::vector<Tensor> want = alone(layer, sequences[s], own);
    CHECK(difference(outputs[s], want[0]) < 1e-13);
    for (std::size_t k = 0; k < got.states.size(); ++k)
      CHECK(difference(got.states[k].select(1, static_cast<std::int64_t>(s)), want[k + 1]) < 1e-13);
    for (const Tensor& result : want) add(result);
  }
  loss.backward();
  const std::vector<Tensor> want_gradients = gradients_and_reset(layer, leaves);
  for (std::size_t i = 0; i < want_gradients.size(); ++i)
    CHECK(difference(got_gradients[i], want_gradients[i]) < 1e-10);
}

}  // namespace

TEST_CASE("recurrent layers compute each packed sequence as if it were alone") {
  const DefaultDType f64(DType::f64);
  manual_seed(3);
  for (const Integers& lengths :
       {Integers{4, 2, 2, 1}, Integers{2, 5, 1, 3, 5}, Integers{1, 3}, Integers{3, 3}, Integers{2}})
    for (const int layers : {1, 2})
      for (const bool bidirectional : {false, true})
        for (const bool with_states : {false, true}) {
          const RnnOptions options{.layers = layers, .bias = layers == 1, .bidirectional = bidirectional};
          compare(RNN(2, 3, options), lengths, with_states, 1);
          compare(RNN(2, 3, options, RnnNonlinearity::relu), lengths, with_states, 1);
          compare(LSTM(2, 3, options), lengths, with_states, 2);
          compare(GRU(2, 3, options), lengths, with_states, 1);
        }
}

TEST_CASE("packed sequences of one length give the bits of the padded batch") {
  const LSTM lstm(3, 4, {.layers = 2, .bidirectional = true});
  manual_seed(1);
  const Tensor x = randn({5, 3, 3});
  const LstmResult want = lstm(x);
  const PackedLstmResult got = lstm(pack_padded_sequence(x, Integers{5, 5, 5}));
  CHECK(difference(pad_packed_sequence(got.output).output, want.output) == 0);
  CHECK(difference(got.h, want.h) == 0);
  CHECK(difference(got.c, want.c) == 0);
}

TEST_CASE("what lies in the padding reaches no result and no gradient") {
  const DefaultDType f64(DType::f64);
  manual_seed(1);
  const GRU gru(2, 3, {.layers = 2, .bidirectional = true});
  Tensor values = randn({4, 3, 2});
  values[3].narrow(0, 1, 2).fill_(std::nan(""));
  values[2].narrow(0, 2, 1).fill_(std::nan(""));
  const Tensor x = values.clone().set_requires_grad();
  const PackedGruResult r = gru(pack_padded_sequence(x, Integers{4, 3, 2}));
  const Tensor output = pad_packed_sequence(r.output).output;
  (output.sum() + r.h.sum()).backward();
  for (const double value : output.to_vector<double>()) CHECK(std::isfinite(value));
  for (const double value : r.h.to_vector<double>()) CHECK(std::isfinite(value));
  for (const Parameter& p : gru.parameters())
    for (const double value : p.grad().to_vector<double>()) CHECK(std::isfinite(value));
  CHECK(x.grad()[3].narrow(0, 1, 2).to_vector<double>() == std::vector<double>(4, 0));
  CHECK(x.grad()[2].select(0, 1).to_vector<double>() != std::vector<double>(2, 0));
}

TEST_CASE("derivatives of recurrent layers over packed sequences") {
  const DefaultDType f64(DType::f64);
  manual_seed(2);
  const RnnOptions options{.layers = 2, .bidirectional = true};
  const LSTM lstm(2, 2, options);
  const Integers lengths{1, 3, 2};
  const Tensor x = random_leaf({3, 3, 2}, 1, -1, 1), h = random_leaf({4, 3, 2}, 2, -1, 1),
               c = random_leaf({4, 3, 2}, 3, -1, 1);
  const auto of = [&](const std::vector<Tensor>& in) {
    const PackedLstmResult r = lstm(pack_padded_sequence(in[0], lengths, {.enforce_sorted = false}), {in[1], in[2]});
    return cat({pad_packed_sequence(r.output).output.flatten(), r.h.flatten(), r.c.flatten()});
  };
  std::vector<Tensor> inputs{x, h, c};
  CHECK(support::gradgradcheck(of, inputs) == "");
  for (const Parameter& p : lstm.parameters()) inputs.push_back(p.tensor());
  CHECK(gradcheck(of, inputs) == "");
}

TEST_CASE("packed sequences have no batch dimension to put first") {
  const LSTM time_first(2, 3);
  LSTM batch_first(2, 3, {.batch_first = true});
  batch_first.load_state_dict(time_first.state_dict());
  manual_seed(1);
  const PackedSequence x = pack_sequence({randn({3, 2}), randn({1, 2})});
  CHECK(difference(batch_first(x).output.data, time_first(x).output.data) == 0);
  CHECK(difference(batch_first(x).h, time_first(x).h) == 0);
}

TEST_CASE("dropout lies between layers of packed sequences too, in training") {
  manual_seed(1);
  const PackedSequence x = pack_sequence({randn({4, 2}), randn({2, 2})});
  const GRU one(2, 3, {.dropout = 1});
  GRU two(2, 3, {.layers = 2, .dropout = 1});
  CHECK(difference(one(x).output.data, zeros({6, 3})) > 0);  // not of the last layer
  // The second layer sees zeros: all sequences begin alike.
  const PackedGruResult r = two(x);
  CHECK(difference(r.output.data[0], r.output.data[1]) == 0);
  CHECK(difference(r.h[0].select(0, 0), r.h[0].select(0, 1)) > 0);
  two.eval();
  CHECK(difference(two(x).output.data[0], two(x).output.data[1]) > 0);
}

TEST_CASE("packed sequences keep their dtype, and go through autocast") {
  manual_seed(1);
  const std::vector<Tensor> list{randn({2, 3}), randn({4, 3}), randn({1, 3})};
  const LSTM lstm(3, 4, {.layers = 2, .bidirectional = true});
  const PackedSequence x = pack_sequence(list, false);
  const PackedLstmResult want = lstm(x);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    LSTM narrow = deep_copy(lstm);
    narrow.to(dtype);
    const PackedLstmResult r = narrow(x.to(dtype));
    CHECK(r.output.data.dtype() == dtype);
    CHECK(r.h.dtype() == dtype);
    CHECK(r.c.dtype() == dtype);
    CHECK(difference(r.output.data, want.output.data) < 0.02);
    {
      const Autocast scope(dtype);
      const PackedLstmResult cast = lstm(x);
      CHECK(cast.output.data.dtype() == dtype);
      CHECK(difference(cast.output.data, want.output.data) < 0.02);
      CHECK(difference(cast.h, want.h) < 0.02);
    }
    const PackedLstmResult kept = lstm(x);
    CHECK(kept.output.data.dtype() == DType::f32);
  }
}

TEST_CASE("packed sequences on a device are computed there") {
  const Device device = support::device_at(0);
  manual_seed(1);
  RNN rnn(2, 3, {.bidirectional = true});
  const PackedSequence x = pack_sequence({randn({2, 2}), randn({4, 2})}, false);
  const PackedRnnResult want = rnn(x);
  rnn.to(device);
  const PackedRnnResult got = rnn(x.to(device));
  CHECK(got.output.data.device() == device);
  CHECK(got.h.device() == device);
  CHECK(difference(got.output.data, want.output.data) < 1e-6);
  CHECK(difference(got.h, want.h) < 1e-6);
}

TEST_CASE("no step over packed sequences waits for the device") {
  const Device device = support::device_at(0);
  LSTM lstm(2, 3, {.layers = 2, .bidirectional = true});
  lstm.to(device);
  const PackedSequence x = pack_padded_sequence(randn({5, 3, 2}, {.device = device}), Integers{5, 3, 1});
  synchronize(device);
  const Stream stream = current_stream(device);
  const lockstep::test::Counter door;
  const auto opened = std::make_shared<bool>(true);  // else somebody waited in vain
  // Without a cache every free waits for the device.
  const char* cache = std::getenv("LOCKSTEP_CACHE");
  const bool frees = cache && std::string_view(cache) == "off";
  if (!stream.synchronous() && !frees) stream.enqueue([door, opened] { *opened = door.reaches(1); });
  const PackedLstmResult r = lstm(x);
  door.add();
  CHECK(r.output.data.to_vector<float>().size() == 9 * 6);
  CHECK(*opened);
}

TEST_CASE("each time of packed sequences is one step, and indices are few") {
  LSTM lstm(2, 3, {.layers = 2, .bidirectional = true});
  const Integers lengths{1, 5, 3};
  const Tensor x = randn({5, 3, 2});
  const Tensor state = zeros({4, 3, 3});
  trace::start();
  const PackedLstmResult r = lstm(pack_padded_sequence(x, lengths, {.enforce_sorted = false}), {state, state});
  pad_packed_sequence(r.output);
  trace::stop();
  std::map<std::string, int> kernels;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::kernel) ++kernels[span.work.name];
  CHECK(kernels["lstm_cell"] == 5 * 4);             // in each layer and direction
  CHECK(kernels["index_select"] == 1 + 2 + 2 + 1);  // to pack; h and c into the packed order and back; to pad
}

TEST_CASE("hooks of a recurrent layer see the data of packed sequences") {
  GRU gru(2, 3);
  const PackedSequence x = pack_sequence({zeros({3, 2}), zeros({1, 2})});
  std::vector<Shape> seen;
  gru.register_forward_hook([&](const ModuleBase&, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
    for (const Tensor& tensor : inputs) seen.push_back(tensor.shape());
    for (const Tensor& tensor : outputs) seen.push_back(tensor.shape());
  });
  gru(x);
  CHECK(seen == std::vector<Shape>{{4, 2}, {4, 3}, {1, 2, 3}});
}

TEST_CASE("recurrent layers refuse packed sequences that do not fit") {
  const LSTM lstm(3, 2, {.layers = 2});
  const PackedSequence x = pack_sequence({zeros({3, 3}), zeros({1, 3})});
  CHECK_THROWS_WITH(lstm(PackedSequence()), Contains("[LSTM] expected packed sequences"));
  CHECK_THROWS_WITH(GRU(2, 2)(x), Contains("[GRU]") && Contains("packed elements [2]") && Contains("f32[4, 3]"));
  CHECK_THROWS_WITH(RNN(3, 2)(x.with_data(zeros({4, 3, 1}))), Contains("[RNN]") && Contains("[4, 3, 1]"));
  CHECK_THROWS_WITH(lstm(x.with_data(zeros({5, 3}))), Contains("[LSTM]") && Contains("batch_sizes add up to"));
  CHECK_THROWS_WITH(lstm(x, {zeros({2, 4, 2}), zeros({2, 4, 2})}), Contains("a state [2, 2, 2]"));
  CHECK_THROWS_WITH(lstm(x, {zeros({2, 2, 2}), {}}), Contains("both h and c"));
}
