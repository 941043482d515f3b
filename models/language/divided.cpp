#include "lockstep/models/language/divided.h"

#include <utility>

#include "lockstep/parallel/tensor_parallel/parallel_linear.h"
#include "lockstep/parallel/tensor_parallel/rank_ops.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep::detail {

std::optional<Shard> divided(const char* model, const Communicator* ranks, int dim,
                             std::vector<std::int64_t> sections) {
  if (!ranks) return {};
  return even_shard(model, *ranks, dim, std::move(sections));
}

Tensor into(const Tensor& x, Communicator* ranks) { return ranks ? copy_to_ranks(x, *ranks) : x; }

Tensor out_of(const Linear& layer, const Tensor& x, Communicator* ranks) {
  if (!ranks || ranks->size() == 1) return layer(x);
  const auto& quantized = layer.quantized();
  const Parameter& bias = quantized ? quantized->bias : layer.bias;
  const Tensor y = sum_over_ranks(quantized ? quantized->product(x) : linear(x, layer.weight.on(x.device())), *ranks);
  return bias.defined() ? y + bias.on(x.device()) : y;
}

void check_divides(const char* model, const char* name, std::int64_t size, const Communicator* ranks) {
  LOCKSTEP_CHECK(!ranks || size % ranks->size() == 0, "[", model, "] expected ", ranks ? ranks->size() : 1,
                 " ranks to divide ", name, " evenly, got ", size);
}

DividedWords::DividedWords(Communicator* ranks, std::int64_t words) : ranks_(ranks), words_(words) {
  if (ranks) range_.emplace(*ranks, words);
}

Tensor DividedWords::embed(const Embedding& table, const Tensor& tokens) const {
  if (!ranks_) return table(tokens);
  return vocabulary_parallel_embedding(table.weight.on(tokens.device()), tokens, *ranks_, *range_);
}

Tensor DividedWords::own_logits(const Linear* head, const Embedding& table, const Tensor& x) const {
  const Tensor in = into(x, ranks_);
  return head ? (*head)(in) : linear(in, table.weight.on(x.device()));
}

Tensor DividedWords::whole(const Tensor& own) const {
  if (!ranks_) return own;
  const Tensor all = gather_from_ranks(own, *ranks_);
  return all.size(-1) == words_ ? all : all.narrow(-1, 0, words_).contiguous();
}

}  // namespace lockstep::detail
