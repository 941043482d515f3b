// What attention means on every device: which keys a query sees, and where a paged key lies.
#pragma once

#include <algorithm>

#include "lockstep/kernels/hd.h"
#include "lockstep/kernels/sequence_args.h"

namespace lockstep::kernels {

// Query i of `queries` sees the keys 0 … seen_keys() - 1 of a sequence of `length` keys, as far as the mask lets it.
LOCKSTEP_HD inline std::int64_t seen_keys(bool causal, CausalVariant variant, std::int64_t i, std::int64_t queries,
                                          std::int64_t length) {
  if (!causal) return length;
  const std::int64_t seen = variant == CausalVariant::lower_right ? i + 1 + length - queries : i + 1;
  return seen < 0 ? 0 : seen < length ? seen : length;
}

// The first query that sees key j; `queries` or more if there is none.
LOCKSTEP_HD inline std::int64_t first_query(bool causal, CausalVariant variant, std::int64_t j, std::int64_t queries,
                                            std::int64_t length) {
  if (!causal) return 0;
  const std::int64_t first = variant == CausalVariant::lower_right ? j - length + queries : j;
  return first < 0 ? 0 : first;
}

// The sizes of a call. Keys: of the longest sequence that there may be.
struct AttentionSizes {
  std::int64_t batch, heads, kv_heads, queries, keys, key_size, value_size, page;  // page: 0 without a table
};
inline AttentionSizes attention_sizes(const View& q, const View& k, const View& v, const View& block_table) {
  const bool paged = block_table.present;
  return {.batch = q.shape[0],
          .heads = q.shape[1],
          .kv_heads = k.shape[1],
          .queries = q.shape[2],
          .keys = paged ? block_table.shape[1] * k.shape[2] : k.shape[2],
          .key_size = q.shape[3],
          .value_size = v.shape[3],
          .page = paged ? k.shape[2] : 0};
}

}  // namespace lockstep::kernels
