// Joining and taking apart along a dimension.
#include <algorithm>

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/padding.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

class CatNode final : public NodeOfMany {
 public:
  const char* name() const override { return "cat"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    std::int64_t start = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (needs(static_cast<int>(i))) grad_inputs[i] = grad_outputs[0].narrow(dim, start, lengths[i]);
      start += lengths[i];
    }
  }
  int dim = 0;
  std::vector<std::int64_t> lengths;
};

// One node for all parts, so that backward is one join instead of a padded copy per part.
class SplitNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "split"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    std::vector<Tensor> parts(grad_outputs.begin(), grad_outputs.end());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].defined()) continue;
      Shape part = shape;
      part[dim] = lengths[i];
      parts[i] = detail::fresh_zeros(part, dtype, device);
    }
    grad_inputs[0] = detail::join(parts, dim);
  }
  Shape shape;
  DType dtype = DType::f32;
  Device device;
  int dim = 0;
  std::vector<std::int64_t> lengths;
};

class PadNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "pad"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    Tensor grad = grad_outputs[0];
    for (int i = 0; i < shape.rank(); ++i)
      if (grad.shape()[i] != shape[i]) grad = grad.narrow(i, starts[i], shape[i]);
    grad_inputs[0] = grad;
  }
  Dims starts;
  Shape shape;
};

// The part of a tensor that begins at `starts`, as a kernel writes it.
Out part_of(const Tensor& whole, const Dims& starts, const Shape& shape) {
  std::int64_t offset = whole.storage_offset();
  for (int i = 0; i < shape.rank(); ++i) offset += starts[i] * whole.strides()[i];
  return detail::alias(whole, shape, whole.strides(), offset).out();
}

// Counts before and after by dimension.
Tensor padded(const Tensor& x, const Dims& before, const Dims& after, double value) {
  Shape shape = x.shape();
  bool fits = true;
  for (int i = 0; i < shape.rank(); ++i)
    fits = fits && !__builtin_add_overflow(shape[i], before[i], &shape[i]) &&
           !__builtin_add_overflow(shape[i], after[i], &shape[i]);
  LOCKSTEP_CHECK(fits, "[pad] expected sizes of at most 2^63 - 1, got ", x, " with ", before, " before and ", after,
                 " after");
  if (shape == x.shape()) return x;
  Tensor y = detail::fresh(shape, x.dtype(), x.device(), x.memory_format());
  detail::fill(y, value);
  if (x.count() > 0) detail::launch(y.device(), CastArgs{x.in(), part_of(y, before, x.shape())});
  if (auto* node = record<PadNode>(y, x)) node->starts = before, node->shape = x.shape();
  return y;
}

}  // namespace

namespace detail {

Tensor join(std::span<const Tensor> tensors, std::int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "[cat] expected at least one tensor, got none");
  const Tensor& first = tensors[0];
  check_defined("cat", first);
  const int along = normalize_dim("cat", dim, first.rank());
  Shape shape = first.shape();
  DType dtype = first.dtype();
  bool promotes = false;
  for (const Tensor& tensor : tensors.subspan(1)) {
    check_same_device("cat", first, tensor);
    bool fits = tensor.rank() == shape.rank();
    for (int i = 0; fits && i < shape.rank(); ++i) fits = i == along || tensor.shape()[i] == shape[i];
    LOCKSTEP_CHECK(fits, "[cat] expected tensors that differ along dimension ", along, " only, got ", first, " and ",
                   tensor);
    LOCKSTEP_CHECK(!__builtin_add_overflow(shape[along], tensor.shape()[along], &shape[along]),
                   "[cat] expected a size of at most 2^63 - 1 along dimension ", along, ", got tensors like ", tensor);
    promotes |= tensor.dtype() != dtype;
    dtype = promote_types(dtype, tensor.dtype());
  }
  if (promotes) {
    std::vector<Tensor> promoted;
    for (const Tensor& tensor : tensors) promoted.push_back(tensor.to(dtype));
    return join(promoted, dim);
  }
  MemoryFormat format = first.memory_format();
  for (const Tensor& tensor : tensors)
    if (tensor.count() > 0 && tensor.memory_format() != format) format = MemoryFormat::contiguous;
  Tensor y = fresh(shape, dtype, first.device(), format);
  Dims starts = Dims::filled(shape.rank(), 0);
  for (const Tensor& tensor : tensors) {
    if (tensor.count() > 0) launch(y.device(), CastArgs{tensor.in(), part_of(y, starts, tensor.shape())});
    starts[along] += tensor.shape()[along];
  }
  if (auto* node = record_many<CatNode>(y, tensors)) {
    node->dim = along;
    for (const Tensor& tensor : tensors) node->lengths.push_back(tensor.shape()[along]);
  }
  return y;
}

Tensor join_stacked(std::span<const Tensor> tensors, std::int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "[stack] expected at least one tensor, got none");
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) {
    check_same_device("stack", tensors[0], tensor);
    LOCKSTEP_CHECK(tensor.shape() == tensors[0].shape(), "[stack] expected tensors of one shape, got ", tensors[0],
                   " and ", tensor);
    parts.push_back(tensor.unsqueeze(dim));
  }
  return join(parts, normalize_dim("stack", dim, parts[0].rank()));
}

}  // namespace detail

std::vector<Tensor> split_lengths(const Tensor& x, std::span<const std::int64_t> lengths, std::int64_t dim) {
  detail::check_defined("split", x);
  const int along = normalize_dim("split", dim, x.rank());
  std::int64_t total = 0;
  bool valid = true;
  for (const std::int64_t length : lengths)
    valid = valid && length >= 0 && !__builtin_add_overflow(total, length, &total);
  LOCKSTEP_CHECK(valid && total == x.shape()[along] && !lengths.empty(), "[split] expected lengths that add up to ",
                 x.shape()[along], ", dimension ", along, " of ", x, ", got ",
                 lengths.size() <= kMaxRank ? to_string(Dims(lengths)) : cat(lengths.size(), " lengths, ", total));
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    Shape shape = x.shape();
    shape[along] = length;
    parts.push_back(detail::alias(x, shape, x.strides(), x.storage_offset() + start * x.strides()[along]));
    start += length;
  }
  if (auto* node = record<SplitNode>(parts[0], x)) {
    node->shape = x.shape();
    node->dtype = x.dtype();
    node->device = x.device();
    node->dim = along;
    node->lengths.assign(lengths.begin(), lengths.end());
    node->output_count = static_cast<std::uint32_t>(parts.size());
    for (std::uint32_t i = 1; i < parts.size(); ++i) detail::attach(*node, parts[i], i);
  }
  return parts;
}

std::vector<Tensor> split(const Tensor& x, std::int64_t length, std::int64_t dim) {
  detail::check_defined("split", x);
  LOCKSTEP_CHECK(length > 0, "[split] expected a length of at least 1, got ", length);
  const std::int64_t size = x.size(normalize_dim("split", dim, x.rank()));
  std::vector<std::int64_t> lengths;
  for (std::int64_t rest = size; rest > 0; rest -= length) lengths.push_back(std::min(rest, length));
  if (lengths.empty()) lengths.push_back(0);
  return split_lengths(x, lengths, dim);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  detail::check_defined("chunk", x);
  LOCKSTEP_CHECK(chunks > 0, "[chunk] expected at least one chunk, got ", chunks);
  const std::int64_t size = x.size(normalize_dim("chunk", dim, x.rank()));
  return split(x, std::max<std::int64_t>(1, size / chunks + (size % chunks != 0)), dim);
}

Tensor pad(const Tensor& x, std::int64_t dim, std::int64_t before, std::int64_t after) {
  detail::check_defined("pad", x);
  const int along = normalize_dim("pad", dim, x.rank());
  LOCKSTEP_CHECK(before >= 0 && after >= 0, "[pad] expected counts of at least 0, got ", before, " and ", after);
  Dims first = Dims::filled(x.rank(), 0), last = first;
  first[along] = before;
  last[along] = after;
  return padded(x, first, last, 0);
}

Tensor pad(const Tensor& x, const Dims& before_and_after, double value) {
  detail::check_defined("pad", x);
  bool valid = before_and_after.rank() % 2 == 0 && before_and_after.rank() / 2 <= x.rank();
  for (const std::int64_t count : before_and_after) valid = valid && count >= 0;
  LOCKSTEP_CHECK(valid, "[pad] expected two counts of at least 0 for some of the last dimensions of ", x, ", got ",
                 before_and_after);
  detail::check_padding("pad", x.dtype(), value);
  Dims before = Dims::filled(x.rank(), 0), after = before;
  for (int i = 0; i < before_and_after.rank(); i += 2) {
    const int along = x.rank() - 1 - i / 2;
    before[along] = before_and_after[i];
    after[along] = before_and_after[i + 1];
  }
  return padded(x, before, after, value);
}

}  // namespace lockstep
