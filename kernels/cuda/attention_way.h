// Which of the ways to compute attention a call takes: a function of its sizes and arguments alone, and of whether
// there is cuBLASLt; what is large may then go to cuDNN (cudnn_attention.h). A trace names the way.
#pragma once

#include "lockstep/kernels/common/attention.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::kernels::cuda {

enum class AttentionWay : std::uint8_t {
  tiles,     // one kernel that goes through tiles of keys: whatever the others do not take
  products,  // cuDNN's kernel where it takes the call, else cuBLASLt's products with a softmax between them
  few,       // a few queries for each head of keys, the keys divided among blocks: decoding
};

// Queries of a head of keys, those of all its query heads together, that count as few. Products of so few rows would
// leave most of a tensor core's tile unused, and read scores that a block can keep.
inline constexpr std::int64_t kFewQueries = 8;
// Less than that for a head of keys, and the launches of three kernels take longer than the tiles of one.
inline constexpr std::int64_t kProductKeys = 64, kProductScores = 4096;

inline AttentionWay attention_way(const AttentionSizes& s, bool drops, bool backward, bool has_products) {
  const std::int64_t rows = s.kv_heads > 0 ? s.heads / s.kv_heads * s.queries : 0;
  if (s.batch == 0 || rows == 0 || s.keys == 0 || s.key_size == 0 || s.value_size == 0) return AttentionWay::tiles;
  if (rows <= kFewQueries) return backward || drops ? AttentionWay::tiles : AttentionWay::few;
  const bool large = s.keys >= kProductKeys && rows * s.keys >= kProductScores;
  return large && s.page == 0 && has_products ? AttentionWay::products : AttentionWay::tiles;
}

void attention_by_products(const Stream& stream, const AttentionArgs& args);
void attention_grad_by_products(const Stream& stream, const AttentionGradArgs& args);
void attention_of_few(const Stream& stream, const AttentionArgs& args);

}  // namespace lockstep::kernels::cuda
