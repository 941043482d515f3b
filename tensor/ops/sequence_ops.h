// Functions of models of sequences: attention, and the cells of recurrent networks. The layers in nn/ hold the
// parameters and call these. See math_ops.h for what holds for all operations; here all floating tensors of a call must
// have one dtype.
#pragma once

#include <optional>
#include <utility>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct AttentionOptions {
  // Broadcasts to [B, H, T, S]. bool: true where a query sees a key; floating: added to the scores.
  Tensor mask = {};
  bool causal = false;                         // query i sees the keys 0 … i (together with the mask)
  std::optional<double> scale = std::nullopt;  // of the scores; 1 / sqrt(D)
  double dropout = 0;                          // of the probabilities, whatever the mode of any module
};
// softmax(scale * q @ k^T + mask) @ v: q [B, H, T, D], k [B, H, S, D], v [B, H, S, E], any strides, result [B, H, T,
// E]; without H, one head. A query that sees no key gives zeros.
//
// One kernel, which keeps no T x S matrix, and whose backward has a fixed order of sums; a mask whose gradient is
// wanted and second derivatives take the way of the formula, with such matrices. The dropout is that of
// `dropout(probabilities, p)`, number for number. CUDA devices have heads of up to 256 elements; throws NotSupported
// for larger ones.
LOCKSTEP_API Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const AttentionOptions& options = {});

struct AttentionResult {
  Tensor output;   // [B, H, T, E]
  Tensor weights;  // [B, H, T, S]: what the values are multiplied with, after the dropout
  void fields(auto& f) { f(output, weights); }
};
// The same with the probabilities, computed by the formula: with T x S matrices.
LOCKSTEP_API AttentionResult attention_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const AttentionOptions& options = {});

struct LstmState {
  Tensor h, c;
  void fields(auto& f) { f(h, c); }
};
// One step. gates [N, 4 H]: x @ w_ih^T + h @ w_hh^T + biases, in the order i f g o; c [N, H].
LOCKSTEP_API LstmState lstm_cell(const Tensor& gates, const Tensor& c);
// One step. input, hidden [N, 3 H]: x @ w_ih^T + b_ih and h @ w_hh^T + b_hh, in the order r z n; h [N, H]. The result
// is (1 - z) * n + z * h with n = tanh(input_n + r * hidden_n).
LOCKSTEP_API Tensor gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& h);

}  // namespace lockstep
