// Sparse gradients of the reducer.
#include <utility>

#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep::detail {

// All that is there, as for matrices, whether or not this backward has added to it; on the communicator's device.
SparseGradient Reducer::own_rows(const Variable& variable) const {
  const LeafNode& leaf = Reducer::leaf(variable);
  SparseGradient rows = leaf.sparse;
  if (!rows.defined() && leaf.grad.defined()) {  // a matrix after all: every row
    rows = {.indices = arange(leaf.grad.size(0), TensorOptions{.dtype = DType::i64, .device = leaf.grad.device()}),
            .values = leaf.grad.detach(),
            .shape = leaf.grad.shape()};
  }
  if (!rows.defined()) return rows;
  for (Tensor* each : {&rows.indices, &rows.values}) *each = each->to(communicator_.device());
  return rows;
}

// On the reducer's own streams.
void Reducer::prepare_rows(std::size_t bucket) {
  const Variable& variable = first_of(bucket);
  const SparseGradient mine = shadowing_ ? SparseGradient() : own_rows(variable);
  if (hooked()) {
    pending_[bucket].own_rows = mine;
  } else if (!alone()) {
    pending_[bucket].rows = GatheredRows(communicator_, mine, variable.parameter.shape(), variable.entry.dtype,
                                         divisor_, !shadowing_ && !variable.unused);
  }
}

void Reducer::put_rows(const Variable& variable, SparseGradient rows) {
  LeafNode& leaf = Reducer::leaf(variable);
  for (Tensor* each : {&rows.indices, &rows.values}) *each = each->to(variable.parameter.device());
  leaf.grad = Tensor();
  leaf.sparse = std::move(rows);
}

void Reducer::join_rows(std::size_t bucket) {
  const SparseGradient joined = std::exchange(pending_[bucket].rows, {}).join();
  if (joined.defined()) put_rows(first_of(bucket), joined);  // else what there is stays
}

}  // namespace lockstep::detail
