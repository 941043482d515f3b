// Arguments of the table's entries for models of sequences: attention and the cells of recurrent networks.
#pragma once

#include <cstdint>

#include "lockstep/kernels/view.h"

namespace lockstep {

// ---- attention: out = dropout(softmax(scale * q @ k^T, masked)) @ v, without a T x S matrix in memory
// (FlashAttention-2, Dao, 2023; online softmax, Milakov and Gimelshein, 2018).

// Probability [b, h, i, j] is kept, and divided by 1 - p, where RandomKind::bernoulli with probability 1 - p gives 1
// for that element of a contiguous [B, H, T, S].
struct AttentionDropout {
  double p = 0;
  std::uint64_t key = 0, stream = 0;
  const std::uint64_t* replayed = nullptr;  // device memory: key and stream, in the place of those above
};

// Where the diagonal of a causal attention begins when there are more keys than queries, or fewer.
enum class CausalVariant : std::uint8_t {
  upper_left,   // query i sees the keys 0 … i
  lower_right,  // the last query sees every key of its sequence, each one before it one key less
};

struct AttentionArgs {
  // [B, H, T, D], [B, G, S, D], [B, G, S, E], one floating dtype, any strides. H is a multiple of G: query head h goes
  // with head h / (H / G) of the keys and values.
  In q, k, v;
  In mask;       // [B, H, T, S], any strides: bool (true takes part) or the dtype of q (is added); or absent
  In seqlens_k;  // [B], i32 or i64, any strides: sequence b has the keys 0 … seqlens_k[b] - 1, the others are not read;
                 // absent: S
  // [B, M], i32 or i64, any strides, or absent. With it k and v are pools of pages, [P, G, page, D] and [P, G, page,
  // E], S is M * page, and key j of sequence b is row j % page of page block_table[b, j / page]. Entries behind the
  // pages that a sequence needs are not read.
  In block_table;
  Out out;  // [B, H, T, E], contiguous; zeros for a query without a key
  Out lse;  // [B, H, T], contiguous, f64 for f64, else f32: logarithm of the sum of the exponentials of the scores;
            // infinite for a query without a key
  double scale;
  bool causal;
  CausalVariant variant = CausalVariant::upper_left;  // of a causal one
  AttentionDropout dropout;
  static constexpr const char* kName = "attention";
  void views(auto&& f) const { f(q), f(k), f(v), f(mask), f(seqlens_k), f(block_table), f(out), f(lse); }
};
struct AttentionGradArgs {  // no block_table
  In dout;                  // [B, H, T, E], any strides
  In q, k, v, mask, seqlens_k, out, lse;
  Out dq, dk, dv;  // contiguous; each may be absent
  double scale;
  bool causal;
  CausalVariant variant = CausalVariant::upper_left;
  AttentionDropout dropout;
  static constexpr const char* kName = "attention_grad";
  void views(auto&& f) const { f(dout), f(q), f(k), f(v), f(mask), f(seqlens_k), f(out), f(lse), f(dq), f(dk), f(dv); }
};

// ---- cells: everything is contiguous and of one floating dtype

// gates [N, 4 H] = x @ w_ih^T + h @ w_hh^T + biases, in the order i f g o. With i, f, o = sigmoid and g = tanh of them:
// c = f * c_before + i * g, h = o * tanh(c).
struct LstmCellArgs {
  In gates, c_before;
  Out activated;  // [N, 4 H]: i f g o; absent when nothing will be differentiated
  Out h, c;       // [N, H]
  static constexpr const char* kName = "lstm_cell";
  void views(auto&& f) const { f(gates), f(c_before), f(activated), f(h), f(c); }
};
struct LstmCellGradArgs {
  In dh, dc;  // [N, H]; each may be absent: zeros
  In activated, c_before, c;
  Out dgates, dc_before;  // dc_before may be absent
  static constexpr const char* kName = "lstm_cell_grad";
  void views(auto&& f) const { f(dh), f(dc), f(activated), f(c_before), f(c), f(dgates), f(dc_before); }
};

// input [N, 3 H] = x @ w_ih^T + b_ih, hidden [N, 3 H] = h_before @ w_hh^T + b_hh, both in the order r z n. With
// r, z = sigmoid(input + hidden) and n = tanh(input + r * hidden): h = (1 - z) * n + z * h_before.
struct GruCellArgs {
  In input, hidden, h_before;
  Out activated;  // [N, 3 H]: r z n; absent when nothing will be differentiated
  Out h;          // [N, H]
  static constexpr const char* kName = "gru_cell";
  void views(auto&& f) const { f(input), f(hidden), f(h_before), f(activated), f(h); }
};
struct GruCellGradArgs {
  In dh, activated, hidden, h_before;
  Out dinput, dhidden;  // [N, 3 H]
  Out dh_before;        // [N, H]: of the last line above alone; or absent
  static constexpr const char* kName = "gru_cell_grad";
  void views(auto&& f) const { f(dh), f(activated), f(hidden), f(h_before), f(dinput), f(dhidden), f(dh_before); }
};

}  // namespace lockstep
