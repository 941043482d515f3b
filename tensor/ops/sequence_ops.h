// Functions of models of sequences: attention, and the cells of recurrent networks. The layers in nn/ hold the
// parameters and call these. See math_ops.h for what holds for all operations; here all floating tensors of a call must
// have one dtype.
#pragma once

#include <optional>
#include <utility>

#include "lockstep/kernels/sequence_args.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// (CausalVariant, upper_left or lower_right: kernels/sequence_args.h)
struct AttentionOptions {
  // Broadcasts to [B, H, T, S]. bool: true where a query sees a key; floating: added to the scores.
  Tensor mask = {};
  bool causal = false;                         // a query sees the keys up to its own place (together with the mask)
  std::optional<double> scale = std::nullopt;  // of the scores; 1 / sqrt(D)
  double dropout = 0;                          // of the probabilities, whatever the mode of any module
  // The place of query i in a causal one: upper_left: key i; lower_right: key i + L - T, where L is the length of the
  // sequence, so that the last query sees every key.
  CausalVariant variant = CausalVariant::upper_left;
  bool enable_gqa = false;  // k and v have G heads, H a multiple of G: query head h goes with their head h / (H / G)
  Tensor seqlens_k = {};    // [B], i32 or i64: sequence b has the keys 0 … seqlens_k[b] - 1, the others are not read
  // [B, M], i32 or i64: k and v are pools of pages, [P, G, page, D] and [P, G, page, E]; key j of sequence b is row
  // j % page of page block_table[b, j / page], and S is M * page. Entries behind a sequence's last page may be
  // anything.
  Tensor block_table = {};
};
// softmax(scale * q @ k^T + mask) @ v: q [B, H, T, D], k [B, H, S, D], v [B, H, S, E], any strides, result [B, H, T,
// E]; without H, one head. A query that sees no key gives zeros. Lengths are of keys alone: a query behind the end of
// its sequence is computed like any other, and its result is the caller's to ignore.
//
// One kernel, which keeps no T x S matrix, and whose backward has a fixed order of sums; a mask whose gradient is
// wanted and second derivatives take the way of the formula, with such matrices. The dropout is that of
// `dropout(probabilities, p)`, number for number. With a block_table there is no gradient: InvalidArgument where q, k
// or v want one. Host devices check lengths and pages before they compute: InvalidArgument; for what CUDA devices do,
// and what they have, see docs/sequence-models.md.
LOCKSTEP_API Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const AttentionOptions& options = {});

struct AttentionResult {
  Tensor output;   // [B, H, T, E]
  Tensor weights;  // [B, H, T, S]: what the values are multiplied with, after the dropout
  void fields(auto& f) { f(output, weights); }
};
// The same with the probabilities, computed by the formula: with T x S matrices. Not with a block_table.
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
