// Floating-point operations of a kernel by its shapes: a multiplication and an addition are two. What only passes over
// memory counts one per element of its largest view.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/kernels/api.h"
#include "lockstep/kernels/common/attention.h"

namespace lockstep::kernels::record {

inline std::uint64_t elements(const View& view) {
  std::uint64_t count = 1;
  for (int d = 0; d < view.rank(); ++d) count *= static_cast<std::uint64_t>(view.shape[d]);
  return count;
}

inline std::uint64_t flops_of(const MatmulArgs& args) {
  return 2 * elements(args.out.view) * static_cast<std::uint64_t>(args.a.view.shape[2]);
}

inline std::uint64_t flops_of(const QuantizedMatmulArgs& args) {
  return 2 * elements(args.out.view) * static_cast<std::uint64_t>(args.weight.columns);
}

// Every output element is a sum over the weights of its channel.
inline std::uint64_t convolution(const View& y, const View& w) {
  return 2 * elements(y) * (elements(w) / static_cast<std::uint64_t>(std::max<std::int64_t>(1, w.shape[0])));
}
inline std::uint64_t flops_of(const Conv2dArgs& args) { return convolution(args.y.view, args.w.view); }
inline std::uint64_t flops_of(const Conv2dGradInputArgs& args) { return convolution(args.dy.view, args.w.view); }
inline std::uint64_t flops_of(const Conv2dGradWeightArgs& args) { return convolution(args.dy.view, args.dw.view); }

// Two products in the forward, five in the backward, which forms the scores anew (FlashAttention-2, Dao, 2023), of the
// pairs that a causal one leaves: half of the square at its diagonal. Lengths are not known here: all sequences count
// as long.
inline std::uint64_t pairs(const AttentionSizes& s, bool causal, CausalVariant variant) {
  const std::int64_t square = std::min(s.queries, s.keys);
  const std::int64_t beside =
      variant == CausalVariant::lower_right ? square * (s.keys - square) : (s.queries - square) * s.keys;
  const std::int64_t seen = causal ? (square * square + 1) / 2 + beside : s.queries * s.keys;
  return static_cast<std::uint64_t>(s.batch * s.heads * seen);
}
inline std::uint64_t flops_of(const AttentionArgs& args) {
  const AttentionSizes s = attention_sizes(args.q.view, args.k.view, args.v.view, args.block_table.view);
  return 2 * pairs(s, args.causal, args.variant) * static_cast<std::uint64_t>(s.key_size + s.value_size);
}
inline std::uint64_t flops_of(const AttentionGradArgs& args) {
  const AttentionSizes s = attention_sizes(args.q.view, args.k.view, args.v.view, View());
  return 2 * pairs(s, args.causal, args.variant) * static_cast<std::uint64_t>(3 * s.key_size + 2 * s.value_size);
}

template <class Args>
std::uint64_t flops_of(const Args& args) {
  std::uint64_t most = 0;
  args.views([&](const auto& use) {
    if (use.view.present) most = std::max(most, elements(use.view));
  });
  return most;
}

}  // namespace lockstep::kernels::record
