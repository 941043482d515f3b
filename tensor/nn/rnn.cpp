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

// The rows of x, and of the result, belong to batch_sizes[0] sequences at time 0, batch_sizes[1] at time 1 and so on.
// `states` become those after the last step of each sequence.
Tensor RecurrentLayers::run_direction(const Cell& cell, const Weights& w, const Tensor& x, Sizes batch_sizes,
                                      States& states, bool reverse) const {
  const Device device = x.device();
  const auto on = [&](const Parameter& p) { return p.defined() ? p.on(device) : Tensor(); };
  const Slots slots{on(w.weight_ih), on(w.weight_hh), on(w.bias_ih), on(w.bias_hh)};
  const std::int64_t batch = batch_sizes[0];
  if (cell.sequence && batch > 0 && batch_sizes.back() == batch) {
    Result result = cell.sequence(x, states, slots, {static_cast<std::int64_t>(batch_sizes.size()), batch, reverse});
    states = std::move(result.states);
    return result.output;
  }
  // One product for all times.
  const std::vector<Tensor> gates = split_lengths(linear(x, slots.weight_ih, cell.input_bias(slots)), batch_sizes);
  // Sequences that begin or end together, the longest first: each time another one has fewer or more of them running.
  std::vector<std::int64_t> together;
  for (std::size_t t = gates.size(); t-- > 0;) {
    const std::int64_t more = batch_sizes[t] - (t + 1 < gates.size() ? batch_sizes[t + 1] : 0);
    if (more > 0 || together.empty()) together.push_back(more);
  }
  std::vector<std::vector<Tensor>> waiting, ended(states.size());  // by kind of state
  for (Tensor& state : states) {
    waiting.push_back(reverse && together.size() > 1 ? split_lengths(state, together) : std::vector{state});
    state = waiting.back()[0];
  }
  std::vector<Tensor> outputs(gates.size());
  std::size_t groups = 1;  // in reverse: so many have begun
  for (std::size_t step = 0; step < gates.size(); ++step) {
    const std::size_t t = reverse ? gates.size() - 1 - step : step;
    const std::int64_t running = states[0].size(0), wanted = batch_sizes[t];
    for (std::size_t s = 0; s < states.size(); ++s) {
      if (running < wanted) states[s] = lockstep::cat({states[s], waiting[s][groups]});
      if (running <= wanted) continue;
      const std::vector<Tensor> parts = split_lengths(states[s], std::vector{wanted, running - wanted});
      states[s] = parts[0];
      ended[s].push_back(parts[1]);
    }
    groups += running < wanted;
    states = cell.step(gates[t], states, slots);
    outputs[t] = states[0];
  }
  for (std::size_t s = 0; s < states.size(); ++s) {
    if (ended[s].empty()) continue;
    ended[s].push_back(states[s]);
    std::reverse(ended[s].begin(), ended[s].end());
    states[s] = lockstep::cat(ended[s]);
  }
  return lockstep::cat(outputs);
}

// [layers * directions, batch, H] each.
RecurrentLayers::States RecurrentLayers::initial_states(const States& initial, std::int64_t batch, const Tensor& input,
                                                        bool batched) const {
  const Shape shape{options.layers * (options.bidirectional ? 2 : 1), batch, hidden_};
  States given;
  for (const Tensor& state : initial) {
    if (!state.defined()) {
      given.push_back(zeros(shape, {.dtype = input.dtype(), .device = input.device()}));
      continue;
    }
    const Tensor full = batched ? state : state.unsqueeze(1);
    LOCKSTEP_CHECK(full.shape() == shape, "[", name_, "] expected a state ", shape, " for the input ", input, ", got ",
                   state);
    given.push_back(full);
  }
  return given;
}

RecurrentLayers::Result RecurrentLayers::run_layers(const Cell& cell, Tensor x, Sizes batch_sizes,
                                                    const States& initial, bool training) const {
  const int directions = options.bidirectional ? 2 : 1;
  std::vector<std::vector<Tensor>> last(initial.size());  // by kind of state, then layer and direction
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    if (layer > 0) x = dropout(x, options.dropout, training);
    std::vector<Tensor> outputs;
    for (int direction = 0; direction < directions; ++direction) {
      const std::int64_t which = layer * directions + direction;
      States states;
      for (const Tensor& state : initial) states.push_back(state.select(0, which));
      outputs.push_back(
          run_direction(cell, weights[static_cast<std::size_t>(which)], x, batch_sizes, states, direction == 1));
      for (std::size_t s = 0; s < states.size(); ++s) last[s].push_back(states[s]);
    }
    x = directions == 1 ? outputs[0] : lockstep::cat(outputs, 1);
  }
  Result result{x, {}};
  for (const std::vector<Tensor>& states : last) result.states.push_back(stack(states));
  return result;
}

RecurrentLayers::Result RecurrentLayers::run(const Cell& cell, const Tensor& input, const States& initial,
                                             bool training) const {
  LOCKSTEP_CHECK(input.defined() && (input.rank() == 2 || input.rank() == 3) && input.size(-1) == inputs_, "[", name_,
                 "] expected an input [time, batch, ", inputs_, "] or [time, ", inputs_, "], got ", input);
  const bool batched = input.rank() == 3;
  const Tensor x = !batched ? input.unsqueeze(1) : options.batch_first ? input.transpose(0, 1) : input;
  const std::int64_t times = x.size(0), batch = x.size(1);
  LOCKSTEP_CHECK(times > 0, "[", name_, "] expected at least one step of time, got ", input);
  const std::vector<std::int64_t> batch_sizes(static_cast<std::size_t>(times), batch);
  Result result = run_layers(cell, x.reshape({times * batch, inputs_}), batch_sizes,
                             initial_states(initial, batch, input, batched), training);
  const Tensor output = result.output.reshape({times, batch, result.output.size(1)});
  result.output = !batched ? output.squeeze(1) : options.batch_first ? output.transpose(0, 1) : output;
  for (Tensor& states : result.states)
    if (!batched) states = states.squeeze(1);
  return result;
}

RecurrentLayers::Result RecurrentLayers::run(const Cell& cell, const PackedSequence& x, const States& initial,
                                             bool training) const {
  x.check(name_);
  LOCKSTEP_CHECK(x.data.rank() == 2 && x.data.size(1) == inputs_, "[", name_, "] expected packed elements [", inputs_,
                 "], got rows ", x.data);
  // States come and go in the caller's order.
  const auto reordered = [&](States& states, const std::vector<std::int64_t>& order) {
    if (order.empty()) return;
    const Tensor indices = from_data(order, {x.sample_count()}, {.device = x.data.device()});
    for (Tensor& state : states) state = index_select(state, 1, indices);
  };
  States begin = initial_states(initial, x.sample_count(), x.data, true);
  reordered(begin, x.sorted_indices);
  Result result = run_layers(cell, x.data, x.batch_sizes, begin, training);
  reordered(result.states, x.unsorted_indices);
  return result;
}

}  // namespace detail

namespace {

using detail::RecurrentLayers;

constexpr RecurrentLayers::Cell kLstm{
    detail::lstm_bias,
    [](const Tensor& gates, const RecurrentLayers::States& s, const RecurrentLayers::Slots& w) {
      const LstmState next = detail::lstm_step(gates, {s[0], s[1]}, w);
      return RecurrentLayers::States{next.h, next.c};
    },
    [](const Tensor& x, const RecurrentLayers::States& s, const RecurrentLayers::Slots& w,
       const detail::RecurrentWalk& walk) {
      const detail::LstmOutputs all = detail::lstm_sequence(x, {s[0], s[1]}, w, walk);
      return RecurrentLayers::Result{all.output, {all.h, all.c}};
    }};
constexpr RecurrentLayers::Cell kGru{
    [](const RecurrentLayers::Slots& w) { return w.bias_ih; },
    [](const Tensor& gates, const RecurrentLayers::States& s, const RecurrentLayers::Slots& w) {
      return RecurrentLayers::States{detail::gru_step(gates, s[0], w)};
    },
    [](const Tensor& x, const RecurrentLayers::States& s, const RecurrentLayers::Slots& w,
       const detail::RecurrentWalk& walk) {
      const detail::GruOutputs all = detail::gru_sequence(x, s[0], w, walk);
      return RecurrentLayers::Result{all.output, {all.h}};
    }};

template <Tensor (*activation)(const Tensor&)>
constexpr RecurrentLayers::Cell kRnn{
    detail::lstm_bias,
    [](const Tensor& gates, const RecurrentLayers::States& s, const RecurrentLayers::Slots& w) {
      return RecurrentLayers::States{activation(gates + linear(s[0], w.weight_hh))};
    },
    nullptr};

RecurrentLayers::States states_of(const LstmState& state) {
  LOCKSTEP_CHECK(state.h.defined() == state.c.defined(), "[LSTM] expected both h and c or neither, got ", state.h,
                 " and ", state.c);
  return {state.h, state.c};
}

}  // namespace

RNN::RNN(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options, RnnNonlinearity nonlinearity)
    : layers_("RNN", 1, inputs, hidden, options), nonlinearity_(nonlinearity) {}

const RecurrentLayers::Cell& RNN::cell() const {
  return nonlinearity_ == RnnNonlinearity::relu ? kRnn<relu> : kRnn<tanh>;
}

RnnResult RNN::forward(const Tensor& x, const Tensor& state) const {
  const RecurrentLayers::Result result = layers_.run(cell(), x, {state}, is_training());
  return {result.output, result.states[0]};
}

PackedRnnResult RNN::forward(const PackedSequence& x, const Tensor& state) const {
  const RecurrentLayers::Result result = layers_.run(cell(), x, {state}, is_training());
  return {x.with_data(result.output), result.states[0]};
}

LSTM::LSTM(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options)
    : layers_("LSTM", 4, inputs, hidden, options) {}

LstmResult LSTM::forward(const Tensor& x, const LstmState& state) const {
  const RecurrentLayers::Result result = layers_.run(kLstm, x, states_of(state), is_training());
  return {result.output, result.states[0], result.states[1]};
}

PackedLstmResult LSTM::forward(const PackedSequence& x, const LstmState& state) const {
  const RecurrentLayers::Result result = layers_.run(kLstm, x, states_of(state), is_training());
  return {x.with_data(result.output), result.states[0], result.states[1]};
}

GRU::GRU(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options)
    : layers_("GRU", 3, inputs, hidden, options) {}

GruResult GRU::forward(const Tensor& x, const Tensor& state) const {
  const RecurrentLayers::Result result = layers_.run(kGru, x, {state}, is_training());
  return {result.output, result.states[0]};
}

PackedGruResult GRU::forward(const PackedSequence& x, const Tensor& state) const {
  const RecurrentLayers::Result result = layers_.run(kGru, x, {state}, is_training());
  return {x.with_data(result.output), result.states[0]};
}

}  // namespace lockstep
