#include "lockstep/parallel/tensor_parallel/vocabulary.h"

#include <algorithm>
#include <limits>

#include "lockstep/parallel/tensor_parallel/rank_ops.h"
#include "lockstep/parallel/tensor_parallel/same_draws.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

VocabularyRange::VocabularyRange(const Communicator& ranks, std::int64_t count)
    : words(count),
      rows((count + ranks.size() - 1) / ranks.size()),
      begin(std::min(count, ranks.rank() * rows)),
      end(std::min(count, begin + rows)),
      shard{.dim = 0, .sections = {count}, .rank = ranks.rank(), .ranks = ranks.size()} {
  LOCKSTEP_CHECK(count > 0, "[VocabularyRange] expected at least one word, got ", count);
}

Tensor VocabularyRange::owns(const Tensor& asked) const {
  return logical_and(asked >= static_cast<double>(begin), asked < static_cast<double>(end));
}

Tensor VocabularyRange::rows_of(const Tensor& asked) const {
  const Tensor others = logical_and(asked >= 0, asked < static_cast<double>(words));
  return where(owns(asked), asked - static_cast<double>(begin), where(others, 0, asked));
}

Tensor vocabulary_parallel_embedding(const Tensor& weight, const Tensor& words, Communicator& ranks,
                                     const VocabularyRange& range) {
  if (ranks.size() == 1) return embedding(weight, words);
  const Tensor asked = detail::to_indices("vocabulary_parallel_embedding", words);
  const Tensor found = embedding(weight, range.rows_of(asked));
  return sum_over_ranks(where(range.owns(asked).unsqueeze(-1), found, 0), ranks);
}

VocabularyParallelEmbedding::VocabularyParallelEmbedding(Communicator& ranks, std::int64_t words, std::int64_t size)
    : ranks_(&ranks), range_(ranks, words) {
  const SameDraws draws(ranks);
  const Embedding whole(words, size);
  weight = range_.shard.take(whole.weight.tensor());
}

Tensor VocabularyParallelEmbedding::forward(const Tensor& words) const {
  return vocabulary_parallel_embedding(weight.on(words.device()), words, *ranks_, range_);
}

Tensor vocabulary_parallel_cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t words,
                                         Communicator& ranks, const VocabularyLossOptions& options) {
  constexpr const char* kName = "vocabulary_parallel_cross_entropy";
  const VocabularyRange range(ranks, words);
  detail::check_floating(kName, logits);
  detail::check_same_device(kName, logits, targets);
  LOCKSTEP_CHECK(logits.rank() >= 1 && logits.size(-1) == range.rows &&
                     logits.count() == targets.count() * range.rows && logits.rank() == targets.rank() + 1,
                 "[", kName, "] expected logits [.., ", range.rows, "], a share of ", words, " words for each of ",
                 ranks.size(), " ranks, and targets [..], got ", logits, " and ", targets);
  const double smoothing = options.label_smoothing;
  LOCKSTEP_CHECK(smoothing >= 0 && smoothing <= 1, "[", kName, "] expected label_smoothing in [0, 1], got ", smoothing);

  const std::int64_t count = targets.count();
  const Tensor flat = logits.reshape({count, range.rows});
  const Tensor wide = flat.dtype() == DType::f64 ? flat : flat.to(DType::f32);
  const Tensor own = wide.narrow(1, 0, range.end - range.begin);  // its words
  const Tensor asked = detail::to_indices(kName, targets).reshape({count});
  const Tensor counts = asked != static_cast<double>(options.ignore_index);
  const Tensor wanted = where(counts, asked, static_cast<double>(0));

  Tensor largest;
  {
    const NoGrad no_grad;
    largest = range.has_words() ? amax(own.detach(), {1}).contiguous()
                                : full({count}, -std::numeric_limits<double>::infinity(),
                                       {.dtype = wide.dtype(), .device = wide.device()});
    if (ranks.size() > 1) ranks.all_reduce(largest, RedOp::max);
  }
  // Of the logits less the largest: the target's, all exponentials, and all of them, which smoothing wants.
  const Tensor below = own - largest.unsqueeze(1);
  const Tensor row = range.rows_of(wanted).unsqueeze(1);
  const Tensor picked = gather(range.has_words() ? below : wide, 1, row).squeeze(1);
  std::vector<Tensor> sums{where(range.owns(wanted), picked, 0), sum(exp(below), {1})};
  if (smoothing > 0) sums.push_back(sum(below, {1}));
  const Tensor all = sum_over_ranks(stack(sums), ranks);
  Tensor losses = log(all[1]) - (1 - smoothing) * all[0];
  if (smoothing > 0) losses = losses - smoothing / static_cast<double>(words) * all[2];
  losses = where(counts, losses, 0);

  if (options.reduction == Reduction::none) return losses.reshape(targets.shape());
  const Tensor total = sum(losses);
  return options.reduction == Reduction::sum ? total : total / sum(counts.to(losses.dtype()));
}

}  // namespace lockstep
