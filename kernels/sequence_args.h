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
};

struct AttentionArgs {
  In q, k, v;  // [B, H, T, D], [B, H, S, D], [B, H, S, E], one floating dtype, any strides
  In mask;     // [B, H, T, S], any strides: bool (true takes part) or the dtype of q (is added); or absent
  Out out;     // [B, H, T, E], contiguous; zeros for a query without a key
  Out lse;     // [B, H, T], contiguous, f64 for f64, else f32: logarithm of the sum of the exponentials of the scores;
               // infinite for a query without a key
  double scale;
  bool causal;  // key j is for the queries i >= j
  AttentionDropout dropout;
  static constexpr const char* kName = "attention";
  void views(auto&& f) const { f(q), f(k), f(v), f(mask), f(out), f(lse); }
};
struct AttentionGradArgs {
  In dout;  // [B, H, T, E], any strides
  In q, k, v, mask, out, lse;
  Out dq, dk, dv;  // contiguous; each may be absent
  double scale;
  bool causal;
  AttentionDropout dropout;
  static constexpr const char* kName = "attention_grad";
  void views(auto&& f) const { f(dout), f(q), f(k), f(v), f(mask), f(out), f(lse), f(dq), f(dk), f(dv); }
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
