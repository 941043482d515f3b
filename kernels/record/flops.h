// Floating-point operations of a kernel by its shapes: a multiplication and an addition are two. What only passes over
// memory counts one per element of its largest view.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/kernels/api.h"

namespace lockstep::kernels::record {

inline std::uint64_t elements(const View& view) {
  std::uint64_t count = 1;
  for (int d = 0; d < view.rank(); ++d) count *= static_cast<std::uint64_t>(view.shape[d]);
  return count;
}

inline std::uint64_t flops_of(const MatmulArgs& args) {
  return 2 * elements(args.out.view) * static_cast<std::uint64_t>(args.a.view.shape[2]);
}

// Every output element is a sum over the weights of its channel.
inline std::uint64_t convolution(const View& y, const View& w) {
  return 2 * elements(y) * (elements(w) / static_cast<std::uint64_t>(std::max<std::int64_t>(1, w.shape[0])));
}
inline std::uint64_t flops_of(const Conv2dArgs& args) { return convolution(args.y.view, args.w.view); }
inline std::uint64_t flops_of(const Conv2dGradInputArgs& args) { return convolution(args.dy.view, args.w.view); }
inline std::uint64_t flops_of(const Conv2dGradWeightArgs& args) { return convolution(args.dy.view, args.dw.view); }

// Two products in the forward, five in the backward, which forms the scores anew (FlashAttention-2, Dao, 2023); half
// of the pairs of a causal one.
inline std::uint64_t scores(const View& q, const View& k, bool causal) {
  const std::uint64_t pairs = elements(q) / static_cast<std::uint64_t>(std::max<std::int64_t>(1, q.shape[3])) *
                              static_cast<std::uint64_t>(k.shape[2]);
  return causal ? pairs / 2 : pairs;
}
inline std::uint64_t flops_of(const AttentionArgs& args) {
  const auto d = static_cast<std::uint64_t>(args.q.view.shape[3]), e = static_cast<std::uint64_t>(args.v.view.shape[3]);
  return 2 * scores(args.q.view, args.k.view, args.causal) * (d + e);
}
inline std::uint64_t flops_of(const AttentionGradArgs& args) {
  const auto d = static_cast<std::uint64_t>(args.q.view.shape[3]), e = static_cast<std::uint64_t>(args.v.view.shape[3]);
  return 2 * scores(args.q.view, args.k.view, args.causal) * (3 * d + 2 * e);
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
