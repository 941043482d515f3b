#include "lockstep/tensor/nn/rnn.h"

#include <algorithm>
#include <cmath>

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep {
namespace detail {

RecurrentLayers::RecurrentLayers(const char* name, int gates, std::int64_t inputs, std::int64_t hidden,
                                 const RnnOptions& wanted)
    : options(wanted), name_(name), inputs_(inputs), hidden_(hidden) {
  LOCKSTEP_CHECK(inputs >= 0 && hidden > 0 && options.layers > 0, "[", name,
                 "] expected a hidden size and at least one layer, got sizes ", inputs, " and ", hidden, " and ",
                 options.layers, " layers");
  LOCKSTEP_CHECK(options.dropout >= 0 && options.dropout <= 1, "[", name, "] expected a probability, got ",
                 options.dropout);
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  const auto uniform = [&](const Shape& shape) {
    const Tensor value = empty(shape);
    init::uniform(value, -bound, bound);
    return Parameter(value);
  };
  const int directions = options.bidirectional ? 2 : 1;
  for (std::int64_t layer = 0; layer < options.layers; ++layer)
    for (int direction = 0; direction < directions; ++direction) {
      Weights w;
      w.suffix = lockstep::cat("_l", layer, direction == 1 ? "_reverse" : "");
      w.weight_ih = uniform({gates * hidden, layer == 0 ? inputs : directions * hidden});
      w.weight_hh = uniform({gates * hidden, hidden});
      if (options.bias) {
        w.bias_ih = uniform({gates * hidden});
        w.bias_hh = uniform({gates * hidden});
      }
      weights.push_back(std::move(w));
    }
}

void RecurrentLayers::members(Members& m) {
  for (Weights& w : weights) {
    m("weight_ih" + w.suffix, w.weight_ih);
    m("weight_hh" + w.suffix, w.weight_hh);
    m("bias_ih" + w.suffix, w.bias_ih);
    m("bias_hh" + w.suffix, w.bias_hh);
  }
}

// x [T, B, I]; `states` become those after the last step. Returns [T, B, H].
Tensor RecurrentLayers::run_direction(const Cell& cell, const Weights& w, const Tensor& x, States& states,
                                      bool reverse) const {
  const Device device = x.device();
  const auto on = [&](const Parameter& p) { return p.defined() ? p.on(device) : Tensor(); };
  const Slots slots{on(w.weight_ih), on(w.weight_hh), on(w.bias_ih), on(w.bias_hh)};
  // One product for all times.
  const std::vector<Tensor> gates = split(linear(x, slots.weight_ih, cell.input_bias(slots)), 1, 0);
  std::vector<Tensor> outputs(gates.size());
  for (std::size_t step = 0; step < gates.size(); ++step) {
    const std::size_t t = reverse ? gates.size() - 1 - step : step;
    states = cell.step(gates[t].squeeze(0), states, slots);
    outputs[t] = states[0];
  }
  return stack(outputs);
}

RecurrentLayers::Result RecurrentLayers::run(const Cell& cell, const Tensor& input, const States& initial,
                                             bool training) const {
  LOCKSTEP_CHECK(input.defined() && (input.rank() == 2 || input.rank() == 3) && input.size(-1) == inputs_, "[", name_,
                 "] expected an input [time, batch, ", inputs_, "] or [time, ", inputs_, "], got ", input);
  const bool batched = input.rank() == 3;
  Tensor x = !batched ? input.unsqueeze(1) : options.batch_first ? input.transpose(0, 1) : input;
  LOCKSTEP_CHECK(x.size(0) > 0, "[", name_, "] expected at least one step of time, got ", input);
  const int directions = options.bidirectional ? 2 : 1;
  const Shape state_shape{options.layers * directions, x.size(1), hidden_};
  States given;
  for (const Tensor& state : initial) {
    if (!state.defined()) {
      given.push_back(zeros(state_shape, {.dtype = x.dtype(), .device = x.device()}));
      continue;
    }
    const Tensor full = batched ? state : state.unsqueeze(1);
    LOCKSTEP_CHECK(full.shape() == state_shape, "[", name_, "] expected a state ", state_shape, " for the input ",
                   input, ", got ", state);
    given.push_back(full);
  }
  std::vector<std::vector<Tensor>> last(given.size());  // by kind of state, then layer and direction
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    if (layer > 0) x = dropout(x, options.dropout, training);
    std::vector<Tensor> outputs;
    for (int direction = 0; direction < directions; ++direction) {
      const std::int64_t which = layer * directions + direction;
      States states;
      for (const Tensor& state : given) states.push_back(state.select(0, which));
      outputs.push_back(run_direction(cell, weights[static_cast<std::size_t>(which)], x, states, direction == 1));
      for (std::size_t s = 0; s < states.size(); ++s) last[s].push_back(states[s]);
    }
    x = directions == 1 ? outputs[0] : lockstep::cat(outputs, 2);
  }
  Result result{!batched ? x.squeeze(1) : options.batch_first ? x.transpose(0, 1) : x, {}};
  for (const std::vector<Tensor>& states : last)
    result.states.push_back(batched ? stack(states) : stack(states).squeeze(1));
  return result;
}

}  // namespace detail

namespace {

using detail::RecurrentLayers;

constexpr RecurrentLayers::Cell kLstm{
    // Both biases are added to the same sums.
    [](const RecurrentLayers::Slots& w) { return w.bias_ih.defined() ? w.bias_ih + w.bias_hh : Tensor(); },
    [](const Tensor& gates, const RecurrentLayers::States& s, const RecurrentLayers::Slots& w) {
      const LstmState next = lstm_cell(gates + linear(s[0], w.weight_hh), s[1]);
      return RecurrentLayers::States{next.h, next.c};
    }};
constexpr RecurrentLayers::Cell kGru{
    [](const RecurrentLayers::Slots& w) { return w.bias_ih; },
    [](const Tensor& gates, const RecurrentLayers::States& s, const RecurrentLayers::Slots& w) {
      return RecurrentLayers::States{gru_cell(gates, linear(s[0], w.weight_hh, w.bias_hh), s[0])};
    }};

}  // namespace

LSTM::LSTM(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options)
    : layers_("LSTM", 4, inputs, hidden, options) {}

LstmResult LSTM::forward(const Tensor& x, const LstmState& state) const {
  LOCKSTEP_CHECK(state.h.defined() == state.c.defined(), "[LSTM] expected both h and c or neither, got ", state.h,
                 " and ", state.c);
  RecurrentLayers::Result result = layers_.run(kLstm, x, {state.h, state.c}, is_training());
  return {result.output, result.states[0], result.states[1]};
}

GRU::GRU(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options)
    : layers_("GRU", 3, inputs, hidden, options) {}

GruResult GRU::forward(const Tensor& x, const Tensor& state) const {
  RecurrentLayers::Result result = layers_.run(kGru, x, {state}, is_training());
  return {result.output, result.states[0]};
}

}  // namespace lockstep
