// Selecting and adding by index. Selecting and adding are each other's adjoints, so their nodes call each other.
#include <optional>

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// What the four nodes have in common.
template <std::size_t Inputs>
class IndexedNode : public NodeOf<Inputs> {
 public:
  Saved indices{*this};
  int dim = 0;
  Shape shape;  // of x, where the derivative needs it
};

template <class N>
void save_for_backward(N* node, const Tensor& x, int dim, const Tensor& indices) {
  if (!node) return;
  node->indices.save(indices);
  node->dim = dim;
  node->shape = x.shape();
}

Tensor zeros_of(const Shape& shape, const Tensor& like) {
  return detail::fresh_zeros(shape, like.dtype(), like.device());
}

class IndexSelectNode final : public IndexedNode<1> {
 public:
  const char* name() const override { return "index_select"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = index_add(zeros_of(shape, grad_outputs[0]), dim, indices.get(*this), grad_outputs[0]);
  }
};

class IndexAddNode final : public IndexedNode<2> {
 public:
  const char* name() const override { return "index_add"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (needs(0)) grad_inputs[0] = grad_outputs[0];
    if (needs(1)) grad_inputs[1] = index_select(grad_outputs[0], dim, indices.get(*this));
  }
};

class GatherNode final : public IndexedNode<1> {
 public:
  const char* name() const override { return "gather"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = scatter_add(zeros_of(shape, grad_outputs[0]), dim, indices.get(*this), grad_outputs[0]);
  }
};

class ScatterAddNode final : public IndexedNode<2> {
 public:
  const char* name() const override { return "scatter_add"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (needs(0)) grad_inputs[0] = grad_outputs[0];
    if (needs(1)) grad_inputs[1] = gather(grad_outputs[0], dim, indices.get(*this));
  }
};

Tensor copy_of(const Tensor& x) {
  Tensor y = detail::fresh(x.shape(), x.dtype(), x.device());
  detail::copy_elements(y, x);
  return y;
}

void check_vector_of_indices(const char* op, const Tensor& x, const Tensor& indices) {
  detail::check_same_device(op, x, indices);
  LOCKSTEP_CHECK(indices.rank() == 1, "[", op, "] expected a one-dimensional tensor of indices, got ", indices, " for ",
                 x);
}

// gather and scatter_add: within every other dimension, the position in `indices` is the position in x.
void check_indices_fit(const char* op, const Tensor& x, int dim, const Tensor& indices) {
  detail::check_same_device(op, x, indices);
  bool fits = indices.rank() == x.rank();
  for (int i = 0; fits && i < x.rank(); ++i) fits = i == dim || indices.shape()[i] <= x.shape()[i];
  LOCKSTEP_CHECK(fits, "[", op, "] expected indices that do not exceed the tensor except along dimension ", dim,
                 ", got ", indices, " for ", x);
}

void check_source(const char* op, const Tensor& x, const Tensor& source, const Shape& shape) {
  detail::check_same_device(op, x, source);
  LOCKSTEP_CHECK(source.shape() == shape && source.dtype() == x.dtype(), "[", op, "] expected a source ", x.dtype(),
                 shape, " for ", x, ", got ", source);
}

// Under autocast, where layers give 16-bit results, the dtype in which two that differ meet.
std::optional<DType> meeting(const Tensor& x, const Tensor& source) {
  if (!thread_context().autocast || !x.defined() || !source.defined() || x.dtype() == source.dtype()) return {};
  if (!is_floating(x.dtype()) || !is_floating(source.dtype())) return {};
  return promote_types(x.dtype(), source.dtype());
}

}  // namespace

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& indices) {
  check_vector_of_indices("index_select", x, indices);
  const int along = detail::normalize_dim_of("index_select", dim, x);
  if (x.rank() == 0) {
    LOCKSTEP_CHECK(indices.count() == 1, "[index_select] expected one index for a tensor of rank 0, got ", indices,
                   " for ", x);
    return index_select(x.reshape({1}), 0, indices).reshape({});
  }
  const Tensor positions = detail::to_indices("index_select", indices);
  Shape shape = x.shape();
  shape[along] = positions.count();
  Tensor y = detail::fresh(shape, x.dtype(), x.device());
  detail::launch(x.device(), IndexSelectArgs{x.in(), positions.in(), y.out(), along});
  save_for_backward(record<IndexSelectNode>(y, x), x, along, positions);
  return y;
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  if (const std::optional<DType> wide = meeting(x, source))
    return index_add(x.to(*wide), dim, indices, source.to(*wide));
  check_vector_of_indices("index_add", x, indices);
  const int along = detail::normalize_dim_of("index_add", dim, x);
  if (x.rank() == 0) {
    const Tensor vector = source.defined() && source.rank() == 0 ? source.reshape({1}) : source;
    return index_add(x.reshape({1}), 0, indices, vector).reshape({});
  }
  const Tensor positions = detail::to_indices("index_add", indices);
  Shape shape = x.shape();
  shape[along] = positions.count();
  check_source("index_add", x, source, shape);
  Tensor y = copy_of(x);
  detail::launch(x.device(), IndexAddArgs{source.in(), positions.in(), y.in_out(), along});
  save_for_backward(record<IndexAddNode>(y, x, source), x, along, positions);
  return y;
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& indices) {
  const int along = detail::normalize_dim_of("gather", dim, x);
  check_indices_fit("gather", x, along, indices);
  if (x.rank() == 0) return gather(x.reshape({1}), 0, indices.reshape({1})).reshape({});
  const Tensor positions = detail::to_indices("gather", indices);
  Tensor y = detail::fresh(positions.shape(), x.dtype(), x.device());
  detail::launch(x.device(), GatherArgs{x.in(), positions.in(), y.out(), along});
  save_for_backward(record<GatherNode>(y, x), x, along, positions);
  return y;
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  if (const std::optional<DType> wide = meeting(x, source))
    return scatter_add(x.to(*wide), dim, indices, source.to(*wide));
  const int along = detail::normalize_dim_of("scatter_add", dim, x);
  check_indices_fit("scatter_add", x, along, indices);
  if (x.rank() == 0) {
    check_source("scatter_add", x, source, {});
    return scatter_add(x.reshape({1}), 0, indices.reshape({1}), source.reshape({1})).reshape({});
  }
  const Tensor positions = detail::to_indices("scatter_add", indices);
  check_source("scatter_add", x, source, positions.shape());
  Tensor y = copy_of(x);
  detail::launch(x.device(), ScatterAddArgs{source.in(), positions.in(), y.in_out(), along});
  save_for_backward(record<ScatterAddNode>(y, x, source), x, along, positions);
  return y;
}

Tensor one_hot(const Tensor& indices, std::int64_t classes) {
  const Tensor positions = detail::to_indices("one_hot", indices);
  LOCKSTEP_CHECK(classes > 0, "[one_hot] expected at least one class, got ", classes);
  Shape shape = positions.shape();
  shape.push_back(classes);
  Tensor y = detail::fresh_zeros(shape, DType::i64, positions.device());
  const Tensor at = positions.unsqueeze(-1);
  const Tensor one = detail::fresh_scalar(1, DType::i64, positions.device()).expand(at.shape());
  detail::launch(y.device(), ScatterAddArgs{one.in(), at.in(), y.in_out(), at.rank() - 1});
  return y;
}

Tensor flip(const Tensor& x, const Dims& dims) {
  detail::check_defined("flip", x);
  bool seen[kMaxRank] = {};
  for (const std::int64_t dim : dims) {
    bool& mark = seen[detail::normalize_dim_of("flip", dim, x)];
    LOCKSTEP_CHECK(!mark, "[flip] expected each dimension once, got ", dims);
    mark = true;
  }
  if (dims.empty() || x.rank() == 0) return x.clone();
  Tensor y = x;
  for (int along = 0; along < x.rank(); ++along) {
    if (!seen[along]) continue;
    const std::int64_t size = x.shape()[along];
    Tensor backwards = detail::fresh({size}, DType::i64, x.device());
    detail::launch(x.device(), ArangeArgs{backwards.out(), static_cast<double>(size - 1), -1});
    y = index_select(y, along, backwards);
  }
  return y;
}

}  // namespace lockstep
