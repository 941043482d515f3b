// Embeddings and losses over a vocabulary that is divided among ranks.
#pragma once

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/nn/shard.h"

namespace lockstep {

// Which words are whose: rank r has the ceil(words / p) from r times that on. Of the last ranks some may have fewer
// words than rows, or none; what is left of their rows is no word.
struct LOCKSTEP_API VocabularyRange {
  VocabularyRange(const Communicator& ranks, std::int64_t words);
  std::int64_t words, rows;  // of all ranks; of each rank
  std::int64_t begin, end;   // this rank's words
  Shard shard;               // of a matrix [words, ..]

  bool has_words() const { return begin < end; }
  // [..] i64: for this rank's words their rows, 0 for others'; what is no word stays out of range.
  Tensor rows_of(const Tensor& words_asked) const;
  // [..] bool
  Tensor owns(const Tensor& words_asked) const;
};

// The rows of this rank's words, zeros for those of others, summed over the ranks: [..] -> [.., size]. `weight` [rows,
// size]. As operations of rank_ops.h. InvalidArgument, as index_select has it, for what is no word.
LOCKSTEP_API Tensor vocabulary_parallel_embedding(const Tensor& weight, const Tensor& words, Communicator& ranks,
                                                  const VocabularyRange& range);

// Embedding with its words divided among the ranks; any number of words. Name and weights are Embedding's; see
// parallel_linear.h. weight [ceil(words / p), size].
class LOCKSTEP_API VocabularyParallelEmbedding : public Module<VocabularyParallelEmbedding> {
 public:
  VocabularyParallelEmbedding(Communicator& ranks, std::int64_t words, std::int64_t size);
  Tensor forward(const Tensor& words) const;
  void members(Members& m) override { m("weight", weight); }
  const VocabularyRange& range() const { return range_; }

  Parameter weight;

 private:
  Communicator* ranks_;
  VocabularyRange range_;
};

struct VocabularyLossOptions {
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;  // in [0, 1], over all words
};

// cross_entropy of logits [.., rows] of each rank's words (what a ColumnParallelLinear, or the divided embedding,
// gives) and targets [..], which all ranks have alike. The result is the same on all ranks. Computed in f32, or f64 for
// f64, with two reductions of a few numbers for each target: the logits are never gathered. Columns that are no words
// are passed over. InvalidArgument, as gather has it, for a target that is no word and not ignore_index. Besides the
// logits their exponentials are kept for backward.
LOCKSTEP_API Tensor vocabulary_parallel_cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t words,
                                                      Communicator& ranks, const VocabularyLossOptions& options = {});

}  // namespace lockstep
