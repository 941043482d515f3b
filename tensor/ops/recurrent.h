// One layer and direction of a recurrent network over all times of sequences of one length, as one node of the graph.
// The steps lie together in memory, so what may be computed for all times at once (the products with the input, and in
// the backward those that give the gradients of the weights) is. For the library alone: LSTM and GRU are the program's.
#pragma once

#include <cstdint>
#include <utility>

#include "lockstep/tensor/ops/sequence_ops.h"

namespace lockstep::detail {

// On the input's device; the biases may be undefined.
struct RecurrentWeights {
  Tensor weight_ih, weight_hh, bias_ih, bias_hh;
};
// The rows of its input: `times` times `batch`, the time outermost; with `reverse` the last time comes first.
struct RecurrentWalk {
  std::int64_t times, batch;
  bool reverse;
};

// `output` [times * batch, H]: h after each time; h and c [batch, H]: those after the last step.
struct LstmOutputs {
  Tensor output, h, c;
};
struct GruOutputs {
  Tensor output, h;
};
// x [times * batch, I], h and c [batch, H], which fit the weights; times and batch are at least 1.
LstmOutputs lstm_sequence(const Tensor& x, const LstmState& state, const RecurrentWeights& weights,
                          const RecurrentWalk& walk);
GruOutputs gru_sequence(const Tensor& x, const Tensor& h, const RecurrentWeights& weights, const RecurrentWalk& walk);

// One step, from what the input contributes to the gates.
LstmState lstm_step(const Tensor& input_gates, const LstmState& state, const RecurrentWeights& weights);
Tensor gru_step(const Tensor& input_gates, const Tensor& h, const RecurrentWeights& weights);
// What of an LSTM's biases is added for all times at once: both are added to the same sums.
Tensor lstm_bias(const RecurrentWeights& weights);

// The derivatives of lstm_cell and gru_cell made of differentiable operations; dh and dc are defined.
struct LstmCellDerivative {
  Tensor gates, c_before;
};
LstmCellDerivative lstm_cell_derivative(const Tensor& gates, const Tensor& c_before, const Tensor& dh,
                                        const Tensor& dc);
struct GruCellDerivative {
  Tensor input, hidden, h_before;  // of h_before: of the last line of the formula alone
};
GruCellDerivative gru_cell_derivative(const Tensor& input, const Tensor& hidden, const Tensor& h_before,
                                      const Tensor& dh);

}  // namespace lockstep::detail
