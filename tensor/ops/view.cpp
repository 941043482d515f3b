// The members of Tensor that give other views of the same elements.
#include <algorithm>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// Everything that keeps the elements in their order: reshape, flatten, squeeze, unsqueeze.
class ReshapeNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "reshape"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = detail::in_format(grad_outputs[0].reshape(shape), format);
  }
  Shape shape;
  MemoryFormat format = MemoryFormat::contiguous;
};

class PermuteNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "permute"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = grad_outputs[0].permute(inverse);
  }
  Dims inverse;
};

class ExpandNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "expand"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = sum_to(grad_outputs[0], shape);
  }
  Shape shape;
};

// Both narrow and select.
class NarrowNode final : public NodeOf<1> {
 public:
  const char* name() const override { return selected ? "select" : "narrow"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor part = selected ? grad_outputs[0].unsqueeze(dim) : grad_outputs[0];
    grad_inputs[0] = pad(part, dim, start, size - start - part.size(dim));
  }
  int dim = 0;
  std::int64_t start = 0, size = 0;
  bool selected = false;
};

// Of a slice whose step is more than 1.
class SliceNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "slice"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor& part = grad_outputs[0];
    const std::int64_t count = part.size(dim), end = count == 0 ? start : start + (count - 1) * step + 1;
    grad_inputs[0] = index_add(zeros(shape, {.dtype = part.dtype(), .device = part.device()}), dim,
                               arange(start, end, step, {.device = part.device()}), part);
  }
  Shape shape;
  int dim = 0;
  std::int64_t start = 0, step = 1;
};

Tensor reshaped(const Tensor& x, const Shape& shape, const Strides& strides) {
  Tensor y = detail::alias(x, shape, strides, x.storage_offset());
  if (auto* node = record<ReshapeNode>(y, x)) node->shape = x.shape(), node->format = x.memory_format();
  return y;
}

// The strides that read the elements of `x` under another shape of as many elements; false when there are none.
bool strides_for(const Tensor& x, const Shape& shape, Strides& strides) {
  strides = contiguous_strides(shape);
  if (x.contiguous_layout()) return true;
  // Both shapes are walked from the right. A run of dimensions of x that lie in memory like one dimension must be
  // used up by whole dimensions of the new shape.
  const Shape& old = x.shape();
  int next = shape.rank() - 1;
  std::int64_t run = 1, used = 1, unit = x.strides().back();
  for (int i = old.rank() - 1; i >= 0; --i) {
    run *= old[i];
    // The stride of a size 1 means nothing, so such a dimension never ends a run.
    if (i > 0 && (old[i - 1] == 1 || x.strides()[i - 1] == run * unit)) continue;
    while (next >= 0 && (used < run || shape[next] == 1)) {
      strides[next] = used * unit;
      used *= shape[next--];
    }
    if (used != run) return false;
    if (i > 0) unit = x.strides()[i - 1];
    run = used = 1;
  }
  return true;
}

}  // namespace

Tensor Tensor::reshape(const Shape& wanted) const {
  Shape shape = wanted;
  int inferred = -1;
  std::int64_t known = 1;
  bool valid = true;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1 && inferred < 0)
      inferred = i;
    else
      valid = valid && shape[i] >= 0 && !__builtin_mul_overflow(known, shape[i], &known);
  }
  if (valid && inferred >= 0 && known > 0) shape[inferred] = count() / known, known *= shape[inferred];
  LOCKSTEP_CHECK(valid && known == count() && (inferred < 0 || shape[inferred] >= 0), "[reshape] expected a shape of ",
                 count(), " elements for ", *this, ", got ", wanted);
  if (shape == this->shape()) return *this;
  Strides strides;
  if (strides_for(*this, shape, strides)) return reshaped(*this, shape, strides);
  return contiguous().reshape(shape);
}

Tensor Tensor::flatten(std::int64_t start_dim, std::int64_t end_dim) const {
  const int start = detail::normalize_dim_of("flatten", start_dim, *this);
  const int end = detail::normalize_dim_of("flatten", end_dim, *this);
  if (rank() == 0) return reshape({1});
  LOCKSTEP_CHECK(start <= end, "[flatten] expected start_dim <= end_dim, got ", start_dim, " and ", end_dim, " for ",
                 *this);
  Shape result;
  std::int64_t merged = 1;
  for (int i = 0; i < rank(); ++i) {
    if (i < start || i > end)
      result.push_back(shape()[i]);
    else
      merged *= shape()[i];
    if (i == end) result.push_back(merged);
  }
  return reshape(result);
}

Tensor Tensor::permute(const Dims& dims) const {
  LOCKSTEP_CHECK(dims.rank() == rank(), "[permute] expected one index for each dimension of ", *this, ", got ", dims);
  Dims inverse = Dims::filled(rank(), -1);
  Shape shape = this->shape();
  Strides strides = this->strides();
  for (int i = 0; i < rank(); ++i) {
    const int from = normalize_dim("permute", dims[i], rank());
    LOCKSTEP_CHECK(inverse[from] < 0, "[permute] expected each dimension once, got ", dims);
    inverse[from] = i;
    shape[i] = this->shape()[from];
    strides[i] = this->strides()[from];
  }
  Tensor y = detail::alias(*this, shape, strides, storage_offset());
  if (auto* node = record<PermuteNode>(y, *this)) node->inverse = inverse;
  return y;
}

Tensor Tensor::transpose(std::int64_t dim0, std::int64_t dim1) const {
  const int a = detail::normalize_dim_of("transpose", dim0, *this);
  const int b = detail::normalize_dim_of("transpose", dim1, *this);
  Dims dims;
  for (int i = 0; i < rank(); ++i) dims.push_back(i == a ? b : i == b ? a : i);
  return permute(dims);
}

Tensor Tensor::t() const {
  LOCKSTEP_CHECK(rank() == 2, "[t] expected a matrix, got ", *this);
  return permute({1, 0});
}

Tensor Tensor::expand(const Shape& wanted) const {
  Shape target = wanted;
  const int missing = target.rank() - rank();
  bool fits = missing >= 0;
  for (int i = 0; fits && i < target.rank(); ++i) {
    if (target[i] == -1 && i >= missing) target[i] = shape()[i - missing];  // as it is
    fits = target[i] >= 0 && (i < missing || shape()[i - missing] == 1 || shape()[i - missing] == target[i]);
  }
  LOCKSTEP_CHECK(fits, "[expand] expected a shape that ", *this, " broadcasts to, got ", wanted);
  if (target == shape()) return *this;
  Tensor y = detail::alias(*this, target, broadcast_strides(shape(), strides(), target), storage_offset());
  if (auto* node = record<ExpandNode>(y, *this)) node->shape = shape();
  return y;
}

Tensor Tensor::squeeze(std::int64_t dim) const {
  const int at = detail::normalize_dim_of("squeeze", dim, *this);
  if (rank() == 0 || shape()[at] != 1) return *this;
  Shape shape = this->shape();
  Strides strides = this->strides();
  shape.erase(at);
  strides.erase(at);
  return reshaped(*this, shape, strides);
}

Tensor Tensor::squeeze() const {
  Shape shape;
  Strides strides;
  for (int i = 0; i < rank(); ++i) {
    if (this->shape()[i] == 1) continue;
    shape.push_back(this->shape()[i]);
    strides.push_back(this->strides()[i]);
  }
  return shape.rank() == rank() ? *this : reshaped(*this, shape, strides);
}

Tensor Tensor::unsqueeze(std::int64_t dim) const {
  LOCKSTEP_CHECK(dim >= -rank() - 1 && dim <= rank(), "[unsqueeze] expected a place in [", -rank() - 1, ", ",
                 rank() + 1, ") for a dimension beside those of ", *this, ", got ", dim);
  const int at = normalize_dim("unsqueeze", dim, rank() + 1);
  Shape shape = this->shape();
  Strides strides = this->strides();
  strides.insert(at, at < rank() ? shape[at] * strides[at] : 1);
  shape.insert(at, 1);
  return reshaped(*this, shape, strides);
}

Tensor Tensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
  const int along = normalize_dim("narrow", dim, rank());
  const std::int64_t size = shape()[along];
  LOCKSTEP_CHECK(start >= 0 && length >= 0 && start <= size && length <= size - start,
                 "[narrow] expected a range within [0, ", size, ") of dimension ", along, " of ", *this, ", got ",
                 length, " elements from ", start);
  if (length == size) return *this;
  Shape shape = this->shape();
  shape[along] = length;
  Tensor y = detail::alias(*this, shape, strides(), storage_offset() + start * strides()[along]);
  if (auto* node = record<NarrowNode>(y, *this)) node->dim = along, node->start = start, node->size = size;
  return y;
}

Tensor Tensor::slice(std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> end,
                     std::int64_t step) const {
  const int along = normalize_dim("slice", dim, rank());
  LOCKSTEP_CHECK(step > 0, "[slice] expected a positive step, got ", step, "; flip() turns a dimension round");
  const std::int64_t size = shape()[along];
  const auto position = [size](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size); };
  const std::int64_t first = position(start.value_or(0)),
                     length = std::max<std::int64_t>(position(end.value_or(size)) - first, 0);
  if (step == 1) return narrow(along, first, length);
  Shape shape = this->shape();
  Strides strides = this->strides();
  shape[along] = length / step + (length % step != 0);
  const std::int64_t offset = storage_offset() + (length > 0 ? first * strides[along] : 0);
  if (shape[along] > 1) strides[along] *= step;  // else it means nothing, and could overflow
  Tensor y = detail::alias(*this, shape, strides, offset);
  if (auto* node = record<SliceNode>(y, *this)) {
    node->shape = this->shape();
    node->dim = along;
    node->start = first;
    node->step = step;
  }
  return y;
}

Tensor Tensor::select(std::int64_t dim, std::int64_t index) const {
  const int along = normalize_dim("select", dim, rank());
  const std::int64_t size = shape()[along];
  LOCKSTEP_CHECK(index >= -size && index < size, "[select] expected an index in [", -size, ", ", size,
                 ") of dimension ", along, " of ", *this, ", got ", index);
  const std::int64_t at = index < 0 ? index + size : index;
  Shape shape = this->shape();
  Strides strides = this->strides();
  const std::int64_t offset = storage_offset() + at * strides[along];
  shape.erase(along);
  strides.erase(along);
  Tensor y = detail::alias(*this, shape, strides, offset);
  if (auto* node = record<NarrowNode>(y, *this)) {
    node->dim = along;
    node->start = at;
    node->size = size;
    node->selected = true;
  }
  return y;
}

}  // namespace lockstep
