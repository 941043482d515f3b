#include "lockstep/parallel/tensor_parallel/parallel_attention.h"

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/sequence_ops.h"

namespace lockstep {

HeadsOfRank heads_of_rank(const char* what, std::int64_t heads, std::int64_t groups, int ranks) {
  LOCKSTEP_CHECK(heads > 0 && groups > 0 && heads % ranks == 0 && groups % ranks == 0, "[", what,
                 "] expected heads of queries and of keys and values that ", ranks, " ranks divide evenly, got ", heads,
                 " and ", groups);
  return {heads / ranks, groups / ranks};
}

ParallelAttention::ParallelAttention(Communicator& ranks, std::int64_t size, std::int64_t heads,
                                     const ParallelAttentionOptions& options)
    : heads_(heads_of_rank("ParallelAttention", heads, options.groups.value_or(heads), ranks.size())),
      head_size_(options.head_size.value_or(size / heads)),
      causal_(options.causal),
      qkv(ranks, size, (heads + 2 * options.groups.value_or(heads)) * head_size_,
          {.bias = options.bias,
           .sections = {heads * head_size_, options.groups.value_or(heads) * head_size_,
                        options.groups.value_or(heads) * head_size_}}),
      out(ranks, heads * head_size_, size, {.bias = options.bias}) {}

Tensor ParallelAttention::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.rank() == 3, "[ParallelAttention] expected x [B, T, size], got ", x);
  const std::int64_t batch = x.size(0), tokens = x.size(1), queries = heads_.queries, groups = heads_.groups;
  const Tensor all = qkv(x).reshape({batch, tokens, queries + 2 * groups, head_size_}).transpose(1, 2);
  const Tensor mixed = scaled_dot_product_attention(all.narrow(1, 0, queries), all.narrow(1, queries, groups),
                                                    all.narrow(1, queries + groups, groups),
                                                    {.causal = causal_, .enable_gqa = queries != groups});
  return out(mixed.transpose(1, 2).reshape({batch, tokens, queries * head_size_}));
}

}  // namespace lockstep
