#include "lockstep/parallel/ddp/gathered_rows.h"

#include <algorithm>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep::detail {

GatheredRows::GatheredRows(Communicator& communicator, const SparseGradient& mine, const Shape& shape, DType dtype,
                           int divisor, bool used)
    : shape_(shape) {
  const Device device = communicator.device();
  const std::int64_t count = mine.defined() ? mine.indices.count() : 0;
  bool used_anywhere = false;
  for (const std::string& text : communicator.all_gather_bytes(cat(used ? '+' : '-', count))) {
    used_anywhere = used_anywhere || text.starts_with('+');
    counts_.push_back(std::stoll(text.substr(1)));
  }
  const std::int64_t most = *std::max_element(counts_.begin(), counts_.end());
  if (!used_anywhere || most == 0) return;
  Shape part = shape, all = shape;
  part[0] = most, all[0] = most * communicator.size();
  const TensorOptions numbers{.dtype = DType::i64, .device = device}, like{.dtype = dtype, .device = device};
  my_indices_ = zeros({most}, numbers);
  my_values_ = zeros(part, like);
  if (count > 0) {
    for (const Tensor& own : {mine.indices, mine.values})
      LOCKSTEP_EDGE(own.storage()->record_use(current_stream(own.device())));
    my_indices_.narrow(0, 0, count).copy_(mine.indices);
    my_values_.narrow(0, 0, count).copy_(mine.values);
    my_values_.mul_(1.0 / divisor);
  }
  indices_ = empty({all[0]}, numbers);
  values_ = empty(all, like);
}

void GatheredRows::gather(Communicator& communicator) const {
  if (!any()) return;
  communicator.all_gather(my_indices_, indices_);
  communicator.all_gather(my_values_, values_);
}

SparseGradient GatheredRows::join() const {
  if (!any()) return {};
  for (const Tensor& read : {indices_, values_})
    LOCKSTEP_EDGE(read.storage()->record_use(current_stream(read.device())));
  const std::int64_t most = my_indices_.count();
  std::vector<SparseGradient> pieces;
  for (std::size_t r = 0; r < counts_.size(); ++r) {
    const auto begin = static_cast<std::int64_t>(r) * most;
    if (const std::int64_t count = counts_[r]; count > 0)
      pieces.push_back({indices_.narrow(0, begin, count), values_.narrow(0, begin, count), shape_});
  }
  return join_rows(pieces);
}

}  // namespace lockstep::detail
