// Rows of a weight by index.
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/sparse_gradient.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

class SparseEmbeddingNode final : public RowsNode {
 public:
  const char* name() const override { return "embedding"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor zeros = detail::fresh_zeros(shape, grad_outputs[0].dtype(), grad_outputs[0].device());
    grad_inputs[0] = index_add(zeros, 0, indices.get(*this), trained(grad_outputs[0]));
  }
  SparseGradient rows(const Tensor& gradient) override { return {indices.get(*this), trained(gradient), shape}; }

  Saved indices{*this};
  Shape shape;
  std::int64_t padding_row = -1;

 private:
  // The gradient but for padding: rows cannot be left out without knowing, on the host, how many there are.
  Tensor trained(const Tensor& gradient) {
    if (padding_row < 0) return gradient;
    return where(eq(indices.get(*this).unsqueeze(1), static_cast<double>(padding_row)), 0.0, gradient);
  }
};

// The gradient of a row is divided by how often it was used.
class FrequencyEmbeddingNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "embedding"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor zeros = detail::fresh_zeros(shape, grad_outputs[0].dtype(), grad_outputs[0].device());
    grad_inputs[0] = index_add(zeros, 0, indices.get(*this), grad_outputs[0] * shares.get(*this));
  }
  Saved indices{*this}, shares{*this};
  Shape shape;
};

// For each of `indices`, one over how often it stands there; [n, 1].
Tensor shares_of(const Tensor& indices, std::int64_t rows, DType dtype) {
  const NoGrad no_grad;
  const TensorOptions options{.dtype = dtype == DType::f64 ? DType::f64 : DType::f32, .device = indices.device()};
  const Tensor often = scatter_add(zeros({rows}, options), 0, indices, ones({indices.count()}, options));
  return reciprocal(gather(often, 0, indices)).to(dtype).unsqueeze(1);
}

// Scales the rows at `indices` whose norm is larger than max_norm, in place.
void renormalize(const Tensor& parameter, const Tensor& indices, const EmbeddingOptions& options) {
  if (indices.count() == 0) return;
  const NoGrad no_grad;
  const Tensor weight = parameter.detach(), sorted = index_select(indices, 0, argsort(indices, 0));
  const Tensor rows = index_select(weight, 0, sorted);
  const Tensor wide = rows.dtype() == DType::f64 ? rows : rows.to(DType::f32);
  const Tensor norms = vector_norm(wide, options.norm_type, {1}, true);
  const Tensor scaled = (wide * (*options.max_norm / (norms + 1e-7))).to(rows.dtype());
  const Tensor large = logical_and(gt(norms, *options.max_norm), detail::first_of_equals(sorted).unsqueeze(1));
  // What is added is minus the old row, which leaves 0, and then the new one: exact, and in place. -0 changes nothing.
  detail::add_rows(weight, sorted, where(large, -rows, -0.0));
  detail::add_rows(weight, sorted, where(large, scaled, -0.0));
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices, const EmbeddingOptions& options) {
  detail::check_same_device("embedding", weight, indices);
  LOCKSTEP_CHECK(weight.rank() == 2, "[embedding] expected a weight [rows, size], got ", weight);
  const Tensor positions = detail::to_indices("embedding", indices);
  Shape shape = positions.shape();
  shape.push_back(weight.shape()[1]);
  const Tensor flat = positions.reshape({positions.count()});
  const bool trained = GradMode::enabled() && weight.requires_grad();
  std::int64_t padding_row = -1;
  if (options.padding_index) {
    const std::int64_t count = weight.shape()[0], row = *options.padding_index;
    LOCKSTEP_CHECK(row >= -count && row < count, "[embedding] expected a padding index in [", -count, ", ", count,
                   "), got ", row);
    if (trained) padding_row = row < 0 ? row + count : row;
  }
  LOCKSTEP_CHECK(!options.sparse || !options.scale_grad_by_freq,
                 "[embedding] expected sparse or scale_grad_by_freq, got both");
  if (options.max_norm) {
    LOCKSTEP_CHECK(*options.max_norm >= 0 && options.norm_type > 0,
                   "[embedding] expected a largest norm of at least 0 and a norm_type above 0, got ", *options.max_norm,
                   " and ", options.norm_type);
    detail::check_floating("embedding", weight);
    renormalize(weight, flat, options);
  }
  if (options.sparse && trained) {
    Tensor rows = index_select(weight.detach(), 0, flat);
    if (auto* node = record<SparseEmbeddingNode>(rows, weight)) {
      node->indices.save(flat);
      node->shape = weight.shape();
      node->padding_row = padding_row;
    }
    return rows.reshape(shape);
  }
  const bool by_frequency = options.scale_grad_by_freq && trained;
  Tensor rows = index_select(by_frequency ? weight.detach() : weight, 0, flat);
  if (auto* node = by_frequency ? record<FrequencyEmbeddingNode>(rows, weight) : nullptr) {
    node->indices.save(flat);
    node->shares.save(shares_of(flat, weight.shape()[0], weight.dtype()));
    node->shape = weight.shape();
  }
  if (padding_row >= 0) rows = where(eq(flat.unsqueeze(1), static_cast<double>(padding_row)), rows.detach(), rows);
  return rows.reshape(shape);
}

}  // namespace lockstep
