// What language models do where ranks have parts of them. Without ranks, what they did anyway. Private to the library.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/tensor_parallel/vocabulary.h"

namespace lockstep::detail {

// The part of a weight that is divided evenly along `dim`; nothing without ranks.
std::optional<Shard> divided(const char* model, const Communicator* ranks, int dim, std::vector<std::int64_t> sections);

// x, which all ranks have alike, on its way into divided layers.
Tensor into(const Tensor& x, Communicator* ranks);
// Out of them: by a layer of whose inputs each rank has its part.
Tensor out_of(const Linear& layer, const Tensor& x, Communicator* ranks);

// InvalidArgument, with both numbers, for a size that the ranks do not divide.
void check_divides(const char* model, const char* name, std::int64_t size, const Communicator* ranks);

// The words that a model reads and predicts.
class DividedWords {
 public:
  DividedWords(Communicator* ranks, std::int64_t words);
  std::optional<Shard> shard() const { return range_ ? std::optional<Shard>(range_->shard) : std::nullopt; }
  Tensor embed(const Embedding& table, const Tensor& tokens) const;
  // x [N, size] -> the logits of this rank's words [N, rows]. `head` may be null: then the table is the head.
  Tensor own_logits(const Linear* head, const Embedding& table, const Tensor& x) const;
  // The logits of all words [N, words], on every rank.
  Tensor whole(const Tensor& own) const;

 private:
  Communicator* ranks_;
  std::int64_t words_;
  std::optional<VocabularyRange> range_;
};

}  // namespace lockstep::detail
