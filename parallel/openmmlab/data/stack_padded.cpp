#include "lockstep/parallel/openmmlab/data/stack_padded.h"

#include <algorithm>
#include <vector>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {
namespace {

// Writes all elements of `slot`, each once.
void fill_slot(Tensor slot, const Tensor& x, double value) {
  for (int dim = 0; dim < x.rank(); ++dim) {
    const std::int64_t own = x.shape()[dim], rest = slot.shape()[dim] - own;
    if (rest == 0) continue;
    slot.narrow(dim, own, rest).fill_(value);
    slot = slot.narrow(dim, 0, own);
  }
  slot.copy_(x);
}

}  // namespace

Tensor pad_end(const Tensor& x, const Shape& whole, double value) {
  if (x.shape() == whole) return x;
  if (!wants_graph({&x})) {
    const NoGrad off;  // written in place
    Tensor result = empty(whole, {.dtype = x.dtype(), .device = x.device()});
    fill_slot(result, x, value);
    return result;
  }
  Tensor result = x;
  for (int dim = 0; dim < x.rank(); ++dim) {
    Shape missing = result.shape();
    missing[dim] = whole[dim] - missing[dim];
    if (missing[dim] > 0) result = cat({result, full(missing, value, {.dtype = x.dtype(), .device = x.device()})}, dim);
  }
  return result;
}

Tensor stack_padded(std::span<const Tensor> tensors, std::span<const double> values, int pad_dims,
                    std::int64_t divisor) {
  const Tensor& first = tensors[0];
  Shape whole = first.shape();
  for (int dim = whole.rank() - pad_dims; dim < whole.rank(); ++dim) {
    for (const Tensor& x : tensors) whole[dim] = std::max(whole[dim], x.shape()[dim]);
    whole[dim] = (whole[dim] + divisor - 1) / divisor * divisor;
  }
  if (std::any_of(tensors.begin(), tensors.end(), [](const Tensor& x) { return wants_graph({&x}); })) {
    std::vector<Tensor> padded;
    for (std::size_t i = 0; i < tensors.size(); ++i) padded.push_back(pad_end(tensors[i], whole, values[i]));
    return stack(padded, 0);
  }
  if (std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& x) { return x.shape() == whole; }))
    return stack(tensors, 0);
  const NoGrad off;  // written in place: one copy of each
  Shape all = whole;
  all.insert(0, static_cast<std::int64_t>(tensors.size()));
  Tensor result = empty(all, {.dtype = first.dtype(), .device = first.device()});
  for (std::size_t i = 0; i < tensors.size(); ++i)
    fill_slot(result.select(0, static_cast<std::int64_t>(i)), tensors[i], values[i]);
  return result;
}

}  // namespace lockstep::detail
