// Matrix products: one kernel call for two matrices or two stacks of them, everything else by way of views.
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/prepared_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

Tensor product(const Tensor& a, const Tensor& b);

class MatmulNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "matmul"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor& gradient = grad_outputs[0];
    if (needs(0)) grad_inputs[0] = product(gradient, b.get(*this).transpose(-1, -2));
    if (needs(1)) grad_inputs[1] = product(a.get(*this).transpose(-1, -2), gradient);
  }
  Saved a{*this}, b{*this};
};

// x [M, K], weight [N, K], bias [N]: relu or nothing of x @ weight^T + bias, in one kernel.
class LinearNode final : public NodeOf<3> {
 public:
  const char* name() const override { return "linear"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor gradient = rectified ? detail::relu_backward(grad_outputs[0], y.get(*this)) : grad_outputs[0];
    if (needs(0)) grad_inputs[0] = product(gradient, weight.get(*this));
    if (needs(1)) grad_inputs[1] = product(gradient.t(), x.get(*this));
    if (needs(2)) grad_inputs[2] = gradient.sum({0});
  }
  Saved x{*this}, weight{*this}, y{*this};
  bool rectified = false;
};

// A stack of matrices, or a single one, as the kernel wants it.
View stacked(const Tensor& x) {
  View view = x.view();
  if (view.rank() == 2) {
    view.shape.insert(0, 1);
    view.strides.insert(0, 0);
  }
  return view;
}

void multiply(const View& a, const View& b, const View& bias, const View& out, Device device,
              Activation activation = Activation::none, const std::shared_ptr<PackedWeights>& packed = {}) {
  detail::launch(
      device, MatmulArgs{.a = {a}, .b = {b}, .bias = {bias}, .out = {out}, .activation = activation, .packed = packed});
}

// [M, K] @ [K, N], or [B, M, K] @ [B, K, N]. Shapes have been checked.
Tensor product(const Tensor& a, const Tensor& b) {
  Shape shape = a.shape();
  shape[a.rank() - 1] = b.shape()[b.rank() - 1];
  Tensor y = detail::fresh(shape, a.dtype(), a.device());
  multiply(stacked(a), stacked(b), {}, stacked(y), a.device());
  if (auto* node = record<MatmulNode>(y, a, b)) {
    if (node->needs(0)) node->b.save(b);
    if (node->needs(1)) node->a.save(a);
  }
  return y;
}

Shape leading(const Tensor& x, int without) {
  return Shape(std::span(x.shape().begin(), static_cast<std::size_t>(x.rank() - without)));
}

// One dimension of `batches` for all of `batch`; repeats without a copy where the batch is repeated as a whole.
Tensor batched(const Tensor& x, const Shape& batch, std::int64_t batches) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  Shape shape = batch;
  shape.push_back(rows);
  shape.push_back(columns);
  return x.expand(shape).reshape({batches, rows, columns});
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (detail::narrows(a, b)) [[unlikely]]
    return matmul(detail::narrowed(a), detail::narrowed(b));
  detail::check_floating_alike("matmul", a, b);
  LOCKSTEP_CHECK(a.rank() > 0 && b.rank() > 0, "[matmul] expected tensors of at least one dimension, got ", a, " and ",
                 b);
  LOCKSTEP_CHECK(a.size(-1) == b.size(b.rank() == 1 ? 0 : -2),
                 "[matmul] expected as many columns in the first as rows in the second, got ", a, " and ", b);
  if (a.rank() == 2 && b.rank() == 2) return product(a, b);
  if (a.rank() == 1) {
    const Tensor row = a.unsqueeze(0);
    return b.rank() == 1 ? matmul(row, b.unsqueeze(1)).reshape({}) : matmul(row, b).squeeze(-2);
  }
  if (b.rank() == 1) return matmul(a, b.unsqueeze(1)).squeeze(-1);
  if (b.rank() == 2) {  // all rows at once
    Shape shape = leading(a, 1);
    const std::int64_t rows = element_count(shape);
    shape.push_back(b.size(1));
    return product(a.reshape({rows, a.size(-1)}), b).reshape(shape);
  }
  Shape batch;
  try {
    batch = broadcast_shapes("matmul", leading(a, 2), leading(b, 2));
  } catch (const InvalidArgument&) {
    LOCKSTEP_CHECK(false, "[matmul] expected leading dimensions that broadcast together, got ", a, " and ", b);
  }
  const std::int64_t batches = element_count(batch);
  Shape shape = batch;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  return product(batched(a, batch, batches), batched(b, batch, batches)).reshape(shape);
}

namespace {
Tensor matmul_of_ranks(const char* op, const Tensor& a, int rank_a, const Tensor& b, int rank_b) {
  detail::check_same_device(op, a, b);
  LOCKSTEP_CHECK(a.rank() == rank_a && b.rank() == rank_b, "[", op, "] expected tensors of rank ", rank_a, " and ",
                 rank_b, ", got ", a, " and ", b);
  return matmul(a, b);
}
}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) { return matmul_of_ranks("mm", a, 2, b, 2); }
Tensor mv(const Tensor& a, const Tensor& b) { return matmul_of_ranks("mv", a, 2, b, 1); }
Tensor dot(const Tensor& a, const Tensor& b) { return matmul_of_ranks("dot", a, 1, b, 1); }
Tensor bmm(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(!a.defined() || !b.defined() || a.rank() != 3 || b.rank() != 3 || a.size(0) == b.size(0),
                 "[bmm] expected stacks of one size, got ", a, " and ", b);
  return matmul_of_ranks("bmm", a, 3, b, 3);
}
Tensor outer(const Tensor& a, const Tensor& b) {
  detail::check_same_device("outer", a, b);
  LOCKSTEP_CHECK(a.rank() == 1 && b.rank() == 1, "[outer] expected two vectors, got ", a, " and ", b);
  return a.unsqueeze(1) * b;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation) {
  return detail::linear(x, weight, bias, activation, nullptr);
}

Tensor detail::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
                      const std::shared_ptr<PackedWeights>& packed) {
  if (detail::narrows(x, weight, bias)) [[unlikely]]
    return linear(detail::narrowed(x), detail::narrowed(weight), detail::narrowed(bias), activation, nullptr);
  detail::check_floating_alike("linear", x, weight);
  LOCKSTEP_CHECK(weight.rank() == 2 && x.rank() > 0 && x.size(-1) == weight.shape()[1],
                 "[linear] expected an input [.., in] and a weight [out, in], got ", x, " and ", weight);
  const std::int64_t outputs = weight.shape()[0];
  if (bias.defined()) {
    detail::check_floating_alike("linear", x, bias);
    LOCKSTEP_CHECK(bias.shape() == Shape{outputs}, "[linear] expected a bias [", outputs, "] for the weight ", weight,
                   ", got ", bias);
  }
  if (x.rank() != 2) {
    Shape shape = leading(x, 1);
    const std::int64_t rows = element_count(shape);
    shape.push_back(outputs);
    return linear(x.reshape({rows, x.size(-1)}), weight, bias, activation, packed).reshape(shape);
  }
  const bool is_gelu = activation == Activation::gelu || activation == Activation::gelu_tanh;
  if (is_gelu && GradMode::enabled() && (x.requires_grad() || weight.requires_grad() || bias.requires_grad()))
    return detail::activated(linear(x, weight, bias, Activation::none, packed), activation);
  Tensor y = detail::fresh({x.shape()[0], outputs}, x.dtype(), x.device());
  View transposed = stacked(weight);
  std::swap(transposed.shape[1], transposed.shape[2]);
  std::swap(transposed.strides[1], transposed.strides[2]);
  multiply(stacked(x), transposed, bias.view(), stacked(y), x.device(), activation, packed);
  if (auto* node = record<LinearNode>(y, x, weight, bias)) {
    if (node->needs(0)) node->weight.save(weight);
    if (node->needs(1)) node->x.save(x);
    node->rectified = activation == Activation::relu;
    if (node->rectified) node->y.save_output(y);
  }
  return y;
}

}  // namespace lockstep
