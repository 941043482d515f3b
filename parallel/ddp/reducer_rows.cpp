// Sparse gradients of the reducer: the rows of all ranks instead of a sum of matrices.
#include <algorithm>
#include <utility>

#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/tensor/engine/leaf_node.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {

// Room for the rows of all ranks, as many for each as the one has that has most, and this rank's rows, divided by the
// number of ranks. All of it belongs to the current stream, which is the bucket's writer.
void Reducer::gather_counts(std::size_t bucket) {
  const Bucket::Slot& slot = buckets_[bucket].slots()[0];
  const Variable& variable = variables_[static_cast<std::size_t>(slot.parameter)];
  const LeafNode& leaf = Reducer::leaf(variable);
  const Device device = communicator_.device();
  // All that is there, as for matrices, whether or not this backward has added to it.
  SparseGradient mine;
  if (leaf.sparse.defined()) {
    mine = leaf.sparse;
  } else if (leaf.grad.defined()) {  // a matrix after all: every row
    mine.indices = arange(slot.shape[0], TensorOptions{.dtype = DType::i64, .device = device});
    mine.values = leaf.grad.detach();
  }
  const std::int64_t count = mine.defined() ? mine.indices.count() : 0;
  GatheredRows& rows = pending_[bucket].rows;
  bool used = false;
  for (const std::string& text : communicator_.all_gather_bytes(cat(variable.unused ? '-' : '+', count))) {
    used = used || text.starts_with('+');
    rows.counts.push_back(std::stoll(text.substr(1)));
  }
  const std::int64_t most = *std::max_element(rows.counts.begin(), rows.counts.end());
  if (!used || most == 0) return;  // what there is stays
  Shape part = slot.shape, all = slot.shape;
  part[0] = most, all[0] = most * communicator_.size();
  const TensorOptions numbers{.dtype = DType::i64, .device = device},
      like{.dtype = variable.entry.dtype, .device = device};
  rows.my_indices = zeros({most}, numbers);
  rows.my_values = zeros(part, like);
  if (count > 0) {
    rows.my_indices.narrow(0, 0, count).copy_(mine.indices);
    rows.my_values.narrow(0, 0, count).copy_(mine.values);
    rows.my_values.mul_(1.0 / communicator_.size());
  }
  rows.indices = empty({all[0]}, numbers);
  rows.values = empty(all, like);
}

// The rows of all ranks, in the order of the ranks.
void Reducer::join_gathered(std::size_t bucket) {
  const GatheredRows rows = std::exchange(pending_[bucket].rows, {});
  if (!rows.values.defined()) return;
  const Bucket::Slot& slot = buckets_[bucket].slots()[0];
  const std::int64_t most = rows.my_indices.count();
  std::vector<SparseGradient> pieces;
  for (std::size_t r = 0; r < rows.counts.size(); ++r) {
    const auto begin = static_cast<std::int64_t>(r) * most;
    if (const std::int64_t count = rows.counts[r]; count > 0)
      pieces.push_back({rows.indices.narrow(0, begin, count), rows.values.narrow(0, begin, count), slot.shape});
  }
  LeafNode& leaf = Reducer::leaf(variables_[static_cast<std::size_t>(slot.parameter)]);
  leaf.grad = Tensor();
  leaf.sparse = join_rows(pieces);
}

}  // namespace lockstep::detail
