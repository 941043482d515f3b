// Self-attention whose heads are divided among the ranks of a communicator.
#pragma once

#include <optional>

#include "lockstep/parallel/tensor_parallel/parallel_linear.h"

namespace lockstep {

struct HeadsOfRank {
  std::int64_t queries, groups;  // heads of queries, and of keys and values, that each rank has
};
// InvalidArgument, "[what] expected …" with both numbers, unless the ranks divide heads and groups evenly.
LOCKSTEP_API HeadsOfRank heads_of_rank(const char* what, std::int64_t heads, std::int64_t groups, int ranks);

struct ParallelAttentionOptions {
  std::optional<std::int64_t> groups = std::nullopt;     // heads of keys and values; as many as of queries
  std::optional<std::int64_t> head_size = std::nullopt;  // size / heads
  bool bias = true, causal = false;
};

// x [B, T, size], the same on all ranks -> [B, T, size], the same on all; one all-reduce. qkv is one matrix (queries,
// then keys, then values) of whose heads each rank has its share, out a RowParallelLinear.
class LOCKSTEP_API ParallelAttention : public Module<ParallelAttention> {
 public:
  ParallelAttention(Communicator& ranks, std::int64_t size, std::int64_t heads,
                    const ParallelAttentionOptions& options = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("qkv", qkv), m("out", out); }

 private:
  HeadsOfRank heads_;
  std::int64_t head_size_;
  bool causal_;

 public:
  ColumnParallelLinear qkv;
  RowParallelLinear out;
};

}  // namespace lockstep
