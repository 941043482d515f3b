#include "lockstep/parallel/tensor_parallel/parallel_linear.h"

#include <utility>

#include "lockstep/parallel/tensor_parallel/rank_ops.h"
#include "lockstep/parallel/tensor_parallel/same_draws.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

Shard even_shard(const char* what, const Communicator& ranks, int dim, std::vector<std::int64_t> sections) {
  for (const std::int64_t section : sections)
    LOCKSTEP_CHECK(section > 0 && section % ranks.size() == 0, "[", what, "] expected a size that ", ranks.size(),
                   " ranks divide evenly, got ", section);
  return {.dim = dim, .sections = std::move(sections), .rank = ranks.rank(), .ranks = ranks.size()};
}

ColumnParallelLinear::ColumnParallelLinear(Communicator& ranks, std::int64_t inputs, std::int64_t outputs,
                                           const ColumnParallelOptions& options)
    : ranks_(&ranks), activation_(options.activation), gather_output_(options.gather_output) {
  constexpr const char* kName = "ColumnParallelLinear";
  LOCKSTEP_CHECK(!gather_output_ || options.sections.size() < 2, "[", kName,
                 "] expected one section where the output is gathered, got ", options.sections.size());
  const Shard shard = even_shard(kName, ranks, 0, options.sections.empty() ? std::vector{outputs} : options.sections);
  LOCKSTEP_CHECK(shard.whole_size() == outputs, "[", kName, "] expected sections of ", outputs,
                 " outputs together, got ", shard.whole_size());
  const SameDraws draws(ranks);
  const Linear whole(inputs, outputs, {.bias = options.bias});
  weight = shard.take(whole.weight.tensor());
  if (options.bias) bias = shard.take(whole.bias.tensor());
}

Tensor ColumnParallelLinear::forward(const Tensor& x) const {
  const Tensor b = bias.defined() ? bias.on(x.device()) : Tensor();
  const Tensor y = linear(copy_to_ranks(x, *ranks_), weight.on(x.device()), b, activation_);
  return gather_output_ ? gather_from_ranks(y, *ranks_) : y;
}

RowParallelLinear::RowParallelLinear(Communicator& ranks, std::int64_t inputs, std::int64_t outputs,
                                     const RowParallelOptions& options)
    : ranks_(&ranks), split_input_(options.split_input) {
  const Shard shard = even_shard("RowParallelLinear", ranks, 1, {inputs});
  const SameDraws draws(ranks);
  Linear whole(inputs, outputs, {.bias = options.bias});
  weight = shard.take(whole.weight.tensor());
  bias = whole.bias;
}

Tensor RowParallelLinear::forward(const Tensor& x) const {
  const Tensor own = split_input_ ? split_to_ranks(x, *ranks_) : x;
  const Tensor y = sum_over_ranks(linear(own, weight.on(x.device())), *ranks_);
  return bias.defined() ? y + bias.on(x.device()) : y;
}

}  // namespace lockstep
