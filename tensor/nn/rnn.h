// Recurrent layers. Parameters begin on cpu, in DefaultDType, uniform in ±1 / sqrt(hidden size), with PyTorch's names
// and layouts: weight_ih_l0 [gates * H, I], weight_hh_l0 [gates * H, H], bias_ih_l0, bias_hh_l0 [gates * H], then the
// same with _reverse for the other direction, then the next layer (whose input is the output of the one before).
//
// Sequences of different lengths come and go as a PackedSequence, and no step computes padding. Each sequence's states
// are those after its own last element (of the reverse direction: its first), in the caller's order, as the initial
// states are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/nn/packed_sequence.h"
#include "lockstep/tensor/ops/recurrent.h"
#include "lockstep/tensor/ops/sequence_ops.h"

namespace lockstep {

struct RnnOptions {
  std::int64_t layers = 1;
  bool bias = true;
  bool batch_first = false;  // inputs and outputs are [batch, time, ..] instead of [time, batch, ..], unless packed
  double dropout = 0;        // of the output of each layer but the last, in training
  bool bidirectional = false;
};

// `output` [T, B, directions * H]: the last layer's h at every time, forward then reverse; `h` and `c`
// [layers * directions, B, H]: the states after the last step (of the reverse direction: after time 0). These keep the
// batch in dimension 1, so a DataParallel that returns them must gather there.
struct LstmResult {
  Tensor output, h, c;
  void fields(auto& f) { f(output, h, c); }
};
struct GruResult {
  Tensor output, h;
  void fields(auto& f) { f(output, h); }
};
using RnnResult = GruResult;
// `output` has the order and the lengths of the input.
struct PackedLstmResult {
  PackedSequence output;
  Tensor h, c;
  void fields(auto& f) { f(output, h, c); }
};
struct PackedGruResult {
  PackedSequence output;
  Tensor h;
  void fields(auto& f) { f(output, h); }
};
using PackedRnnResult = PackedGruResult;

namespace detail {

// What RNN, LSTM and GRU share: parameters, and the walk over layers, directions and time.
class LOCKSTEP_API RecurrentLayers {
 public:
  RecurrentLayers(const char* name, int gates, std::int64_t inputs, std::int64_t hidden, const RnnOptions& options);
  void members(Members& m);

  // The parameters of one layer and direction; the biases may be absent.
  struct Weights {
    std::string suffix;  // "_l0", "_l0_reverse"
    Parameter weight_ih, weight_hh, bias_ih, bias_hh;
  };
  using Slots = RecurrentWeights;      // of Weights, on the input's device
  using States = std::vector<Tensor>;  // h, and c where there is one
  struct Result {
    Tensor output;
    States states;  // [layers * directions, B, H] each
  };
  struct Cell {
    // What of the biases is added for all times at once.
    Tensor (*input_bias)(const Slots& slots);
    // From what the input contributes to the gates of one step [B, gates * H] and the states [B, H] to the next states.
    States (*step)(const Tensor& input_gates, const States& states, const Slots& slots);
    // All steps at once, for sequences of one length; or null. The states are [B, H] each.
    Result (*sequence)(const Tensor& x, const States& states, const Slots& slots, const RecurrentWalk& walk);
  };
  // `initial` has as many states as the cell; those that are undefined begin as zeros.
  Result run(const Cell& cell, const Tensor& x, const States& initial, bool training) const;
  // The output is the data of the packed sequences.
  Result run(const Cell& cell, const PackedSequence& x, const States& initial, bool training) const;

  // In the order of the states: layer 0 forward, layer 0 reverse, layer 1 forward, …
  std::vector<Weights> weights;
  RnnOptions options;

 private:
  using Sizes = std::span<const std::int64_t>;
  States initial_states(const States& initial, std::int64_t batch, const Tensor& input, bool batched) const;
  Result run_layers(const Cell& cell, Tensor x, Sizes batch_sizes, const States& initial, bool training) const;
  Tensor run_direction(const Cell& cell, const Weights& weights, const Tensor& x, Sizes batch_sizes, States& states,
                       bool reverse) const;
  const char* name_;
  std::int64_t inputs_, hidden_;
};

}  // namespace detail

enum class RnnNonlinearity { tanh, relu };

// h' = tanh or relu of W_ih x + b_ih + W_hh h + b_hh (Elman, 1990).
class LOCKSTEP_API RNN : public Module<RNN> {
 public:
  RNN(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options = {},
      RnnNonlinearity nonlinearity = RnnNonlinearity::tanh);
  // x [T, B, I] or, without a batch, [T, I] (the states are then [layers * directions, H]). The states begin as zeros.
  RnnResult forward(const Tensor& x, const Tensor& state = {}) const;
  PackedRnnResult forward(const PackedSequence& x, const Tensor& state = {}) const;
  void members(Members& m) override { layers_.members(m); }
  const RnnOptions& options() const { return layers_.options; }
  RnnNonlinearity nonlinearity() const { return nonlinearity_; }
  const std::vector<detail::RecurrentLayers::Weights>& weights() const { return layers_.weights; }

 private:
  const detail::RecurrentLayers::Cell& cell() const;

  detail::RecurrentLayers layers_;
  RnnNonlinearity nonlinearity_;
};

// i, f, o = sigmoid, g = tanh of W_ih x + b_ih + W_hh h + b_hh (rows in the order i f g o); c' = f * c + i * g,
// h' = o * tanh(c') (Hochreiter and Schmidhuber, 1997).
class LOCKSTEP_API LSTM : public Module<LSTM> {
 public:
  LSTM(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options = {});
  // x [T, B, I] or, without a batch, [T, I] (the states are then [layers * directions, H]). The states begin as zeros.
  LstmResult forward(const Tensor& x, const LstmState& state = {}) const;
  PackedLstmResult forward(const PackedSequence& x, const LstmState& state = {}) const;
  using Module::operator();
  LstmResult operator()(const Tensor& x, const LstmState& state) const { return Module::operator()(x, state); }
  PackedLstmResult operator()(const PackedSequence& x, const LstmState& state) const {
    return Module::operator()(x, state);
  }
  void members(Members& m) override { layers_.members(m); }
  const RnnOptions& options() const { return layers_.options; }
  const std::vector<detail::RecurrentLayers::Weights>& weights() const { return layers_.weights; }

 private:
  detail::RecurrentLayers layers_;
};

// r, z = sigmoid of W_ih x + b_ih + W_hh h + b_hh, n = tanh(W_in x + b_in + r * (W_hn h + b_hn)) (rows in the order
// r z n); h' = (1 - z) * n + z * h (Cho et al., 2014).
class LOCKSTEP_API GRU : public Module<GRU> {
 public:
  GRU(std::int64_t inputs, std::int64_t hidden, const RnnOptions& options = {});
  GruResult forward(const Tensor& x, const Tensor& state = {}) const;
  PackedGruResult forward(const PackedSequence& x, const Tensor& state = {}) const;
  void members(Members& m) override { layers_.members(m); }
  const RnnOptions& options() const { return layers_.options; }
  const std::vector<detail::RecurrentLayers::Weights>& weights() const { return layers_.weights; }

 private:
  detail::RecurrentLayers layers_;
};

}  // namespace lockstep
