// Recurrent layers: the state's names and shapes, the formulas, directions, layers, states.
#include "lockstep/tensor/nn/rnn.h"

#include <cmath>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
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

// One layer in one direction, from the formulas. x [T, B, I], h and c [B, H].
struct Naive {
  Tensor output, h, c;
};
Naive naive_lstm(const Tensor& x, Tensor h, Tensor c, const std::vector<Tensor>& p, bool reverse) {
  std::vector<Tensor> outputs(static_cast<std::size_t>(x.size(0)));
  for (std::int64_t step = 0; step < x.size(0); ++step) {
    const std::int64_t t = reverse ? x.size(0) - 1 - step : step;
    const std::vector<Tensor> g = chunk(matmul(x[t], p[0].t()) + p[2] + matmul(h, p[1].t()) + p[3], 4, 1);
    c = sigmoid(g[1]) * c + sigmoid(g[0]) * tanh(g[2]);
    h = sigmoid(g[3]) * tanh(c);
    outputs[static_cast<std::size_t>(t)] = h;
  }
  return {stack(outputs), h, c};
}
Naive naive_gru(const Tensor& x, Tensor h, const Tensor&, const std::vector<Tensor>& p, bool reverse) {
  std::vector<Tensor> outputs(static_cast<std::size_t>(x.size(0)));
  for (std::int64_t step = 0; step < x.size(0); ++step) {
    const std::int64_t t = reverse ? x.size(0) - 1 - step : step;
    const std::vector<Tensor> a = chunk(matmul(x[t], p[0].t()) + p[2], 3, 1),
                              b = chunk(matmul(h, p[1].t()) + p[3], 3, 1);
    const Tensor r = sigmoid(a[0] + b[0]), z = sigmoid(a[1] + b[1]), n = tanh(a[2] + r * b[2]);
    h = (1 - z) * n + z * h;
    outputs[static_cast<std::size_t>(t)] = h;
  }
  return {stack(outputs), h, h};
}

Naive naive_rnn(const Tensor& x, Tensor h, const Tensor&, const std::vector<Tensor>& p, bool reverse) {
  std::vector<Tensor> outputs(static_cast<std::size_t>(x.size(0)));
  for (std::int64_t step = 0; step < x.size(0); ++step) {
    const std::int64_t t = reverse ? x.size(0) - 1 - step : step;
    h = tanh(matmul(x[t], p[0].t()) + p[2] + matmul(h, p[1].t()) + p[3]);
    outputs[static_cast<std::size_t>(t)] = h;
  }
  return {stack(outputs), h, h};
}

template <class Step>
Naive naive(Step step, const ModuleBase& module, int layers, int directions, Tensor x, const Tensor& h,
            const Tensor& c) {
  std::vector<Tensor> p, last_h, last_c;
  for (const Parameter& parameter : module.parameters()) p.push_back(parameter.tensor());
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int d = 0; d < directions; ++d) {
      const int which = layer * directions + d;
      const Naive r = step(x, h[which], c[which], {p.begin() + 4 * which, p.begin() + 4 * which + 4}, d == 1);
      outputs.push_back(r.output), last_h.push_back(r.h), last_c.push_back(r.c);
    }
    x = cat(outputs, 2);
  }
  return {x, stack(last_h), stack(last_c)};
}

}  // namespace

TEST_CASE("recurrent layers have the names and shapes of PyTorch's") {
  CHECK(state_names(LSTM(3, 5, {.layers = 2, .bidirectional = true})) ==
        Names{"weight_ih_l0[20, 3]", "weight_hh_l0[20, 5]", "bias_ih_l0[20]", "bias_hh_l0[20]",
              "weight_ih_l0_reverse[20, 3]", "weight_hh_l0_reverse[20, 5]", "bias_ih_l0_reverse[20]",
              "bias_hh_l0_reverse[20]", "weight_ih_l1[20, 10]", "weight_hh_l1[20, 5]", "bias_ih_l1[20]",
              "bias_hh_l1[20]", "weight_ih_l1_reverse[20, 10]", "weight_hh_l1_reverse[20, 5]", "bias_ih_l1_reverse[20]",
              "bias_hh_l1_reverse[20]"});
  CHECK(state_names(RNN(3, 5, {.bidirectional = true})) ==
        Names{"weight_ih_l0[5, 3]", "weight_hh_l0[5, 5]", "bias_ih_l0[5]", "bias_hh_l0[5]",
              "weight_ih_l0_reverse[5, 3]", "weight_hh_l0_reverse[5, 5]", "bias_ih_l0_reverse[5]",
              "bias_hh_l0_reverse[5]"});
  CHECK(state_names(GRU(3, 5, {.bias = false})) == Names{"weight_ih_l0[15, 3]", "weight_hh_l0[15, 5]"});
  manual_seed(0);
  double largest = 0;
  for (const Parameter& p : LSTM(10, 16).parameters())
    for (const float value : p.tensor().to_vector<float>()) largest = std::max<double>(largest, std::fabs(value));
  CHECK(largest <= 0.25);
  CHECK(largest > 0.24);
}

TEST_CASE("recurrent layers compute their formulas, over layers and directions") {
  const DefaultDType f64(DType::f64);
  const Tensor x = random_values({4, 3, 2}, 1);
  for (const int layers : {1, 2})
    for (const int directions : {1, 2}) {
      const RnnOptions options{.layers = layers, .bidirectional = directions == 2};
      const Tensor h = random_values({layers * directions, 3, 5}, 2), c = random_values({layers * directions, 3, 5}, 3);
      {
        const LSTM lstm(2, 5, options);
        const Naive want = naive(naive_lstm, lstm, layers, directions, x, h, c);
        const LstmResult got = lstm(x, {h, c});
        CHECK(difference(got.output, want.output) < 1e-13);
        CHECK(difference(got.h, want.h) < 1e-13);
        CHECK(difference(got.c, want.c) < 1e-13);
        const Tensor zero = zeros_like(h);
        CHECK(difference(lstm(x).output, lstm(x, {zero, zero}).output) == 0);
      }
      const auto check = [&](const auto& cell, const auto& layer) {
        const Naive want = naive(cell, layer, layers, directions, x, h, h);
        const auto got = layer(x, h);
        CHECK(difference(got.output, want.output) < 1e-13);
        CHECK(difference(got.h, want.h) < 1e-13);
        CHECK(difference(layer(x).output, layer(x, zeros_like(h)).output) == 0);
      };
      check(naive_rnn, RNN(2, 5, options));
      check(naive_gru, GRU(2, 5, options));
    }
}

TEST_CASE("recurrent layers take the batch first, or none") {
  const DefaultDType f64(DType::f64);
  const LSTM time_first(2, 3, {.layers = 2});
  LSTM batch_first(2, 3, {.layers = 2, .batch_first = true});
  batch_first.load_state_dict(time_first.state_dict());
  const Tensor x = random_values({5, 4, 2}, 1), h = random_values({2, 4, 3}, 2), c = random_values({2, 4, 3}, 3);
  const LstmResult want = time_first(x, {h, c}), got = batch_first(x.transpose(0, 1), {h, c});
  CHECK(difference(got.output, want.output.transpose(0, 1)) == 0);
  CHECK(difference(got.h, want.h) == 0);
  for (const LSTM* lstm : {&time_first, static_cast<const LSTM*>(&batch_first)}) {
    const LstmResult one = (*lstm)(x.select(1, 2), {h.select(1, 2), c.select(1, 2)});
    CHECK(difference(one.output, want.output.select(1, 2)) < 1e-14);
    CHECK(difference(one.c, want.c.select(1, 2)) < 1e-14);
  }
}

TEST_CASE("dropout in recurrent layers lies between layers, in training") {
  const LSTM one(2, 3, {.dropout = 0.5});
  LSTM two(2, 3, {.layers = 2, .dropout = 0.5});
  const Tensor x = randn({5, 4, 2});
  CHECK(difference(one(x).output, one(x).output) == 0);
  CHECK(difference(two(x).output, two(x).output) > 0);
  CHECK(difference(two(x).h[0], two(x).h[0]) == 0);  // of the first layer
  two.eval();
  CHECK(difference(two(x).output, two(x).output) == 0);
}

TEST_CASE("derivatives of recurrent layers") {
  const DefaultDType f64(DType::f64);
  const RnnOptions options{.layers = 2, .bidirectional = true};
  const LSTM lstm(2, 2, options);
  const GRU gru(2, 2, options);
  const auto with = [](const ModuleBase& module, std::vector<Tensor> inputs) {
    for (const Parameter& p : module.parameters()) inputs.push_back(p.tensor());
    return inputs;
  };
  const RNN rnn(2, 2, options), rectified(2, 2, options, RnnNonlinearity::relu);
  const Tensor x = random_leaf({3, 2, 2}, 1, -1, 1), h = random_leaf({4, 2, 2}, 2, -1, 1),
               c = random_leaf({4, 2, 2}, 3, -1, 1);
  CHECK(gradcheck(
            [&](const std::vector<Tensor>& in) {
              const LstmResult r = lstm(in[0], {in[1], in[2]});
              return cat({r.output.flatten(), r.h.flatten(), r.c.flatten()});
            },
            with(lstm, {x, h, c})) == "");
  CHECK(gradcheck(
            [&](const std::vector<Tensor>& in) {
              const GruResult r = gru(in[0], in[1]);
              return cat({r.output.flatten(), r.h.flatten()});
            },
            with(gru, {x, h})) == "");
  for (const RNN* plain : {&rnn, &rectified})
    CHECK(gradcheck(
              [&](const std::vector<Tensor>& in) {
                const RnnResult r = (*plain)(in[0], in[1]);
                return cat({r.output.flatten(), r.h.flatten()});
              },
              with(*plain, {x, h})) == "");
}

TEST_CASE("a recurrent layer without gates is rectified when it is told to") {
  RNN rnn(1, 1, {}, RnnNonlinearity::relu);
  CHECK(rnn.nonlinearity() == RnnNonlinearity::relu);
  CHECK(RNN(1, 1).nonlinearity() == RnnNonlinearity::tanh);
  for (const Parameter& p : rnn.parameters()) p.tensor().detach().fill_(0.5);
  const Tensor x = from_data({2.0, -8.0, 1.0}, {3, 1, 1}, {.dtype = DType::f32});
  // 1 + 1, then less than 0, then 0.5 + 1
  CHECK(rnn(x).output.to_vector<double>() == std::vector<double>{2, 0, 1.5});
}

TEST_CASE("recurrent layers refuse what does not fit") {
  CHECK_THROWS_WITH(LSTM(3, 0), Contains("[LSTM]") && Contains("hidden size"));
  CHECK_THROWS_WITH(GRU(3, 2, {.layers = 0}), Contains("[GRU]") && Contains("0 layers"));
  CHECK_THROWS_WITH(LSTM(3, 2, {.dropout = -1}), Contains("probability"));
  CHECK_THROWS_WITH(RNN(3, 2)(zeros({4, 5, 2})), Contains("[RNN]") && Contains("[time, batch, 3]"));
  const LSTM lstm(3, 2);
  const Tensor x = zeros({4, 5, 3});
  CHECK_THROWS_WITH(lstm(zeros({4, 5, 2})), Contains("[time, batch, 3]"));
  CHECK_THROWS_WITH(lstm(zeros({0, 5, 3})), Contains("one step of time"));
  CHECK_THROWS_WITH(lstm(x, {zeros({1, 4, 2}), zeros({1, 4, 2})}), Contains("a state [1, 5, 2]"));
  CHECK_THROWS_WITH(lstm(x, {zeros({1, 5, 2}), {}}), Contains("both h and c"));
}
