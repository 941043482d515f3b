// Rows of a weight by index.
#include "lockstep/tensor/ops_math.h"
#include "lockstep/tensor/ops_nn.h"
#include "lockstep/tensor/ops_shape.h"
#include "lockstep/tensor/ops_support.h"

namespace lockstep {
namespace {

class SparseEmbeddingNode final : public RowsNode {
 public:
  const char* name() const override { return "embedding"; }
  void backward(std::span<Tensor> gradients, std::span<Tensor> inputs) override {
    const Tensor zeros = detail::fresh_zeros(shape, gradients[0].dtype(), gradients[0].device());
    inputs[0] = index_add(zeros, 0, indices.get(*this), trained(gradients[0]));
  }
  SparseGradient rows(const Tensor& gradient) override { return {indices.get(*this), trained(gradient), shape}; }
  void release() override { indices.reset(); }

  Saved indices;
  Shape shape;
  std::int64_t padding_row = -1;

 private:
  // The gradient but for padding: rows cannot be left out without knowing, on the host, how many there are.
  Tensor trained(const Tensor& gradient) {
    if (padding_row < 0) return gradient;
    return where(eq(indices.get(*this).unsqueeze(1), static_cast<double>(padding_row)), 0.0, gradient);
  }
};

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
  if (options.padding_index && trained) {
    const std::int64_t count = weight.shape()[0];
    padding_row = *options.padding_index < 0 ? *options.padding_index + count : *options.padding_index;
    LOCKSTEP_CHECK(padding_row >= 0 && padding_row < count, "[embedding] expected a padding index in [", -count, ", ",
                   count, "), got ", *options.padding_index);
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
  Tensor rows = index_select(weight, 0, flat);
  if (padding_row >= 0) rows = where(eq(flat.unsqueeze(1), static_cast<double>(padding_row)), rows.detach(), rows);
  return rows.reshape(shape);
}

}  // namespace lockstep
