// Running sums and sorting along a dimension.
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

Tensor running_sum(const Tensor& x, int dim, bool reverse);

class CumsumNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "cumsum"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = running_sum(grad_outputs[0], dim, !reverse);
  }
  int dim = 0;
  bool reverse = false;
};

Tensor running_sum(const Tensor& x, int dim, bool reverse) {
  const Tensor in = x.contiguous();
  const Shape shape = detail::folded(in.shape(), dim);
  Tensor y = detail::fresh_like(in);
  detail::launch(in.device(),
                 CumsumArgs{In{detail::view_reshaped(in, shape)}, Out{detail::view_reshaped(y, shape)}, reverse});
  if (auto* node = record<CumsumNode>(y, in)) node->dim = dim, node->reverse = reverse;
  return y;
}

int checked_dim(const char* op, const Tensor& x, std::int64_t dim) {
  detail::check_defined(op, x);
  return x.rank() == 0 ? normalize_dim(op, dim, 1) : normalize_dim(op, dim, x.rank());
}

// The first `count` positions in the order.
Tensor order(const Tensor& x, int dim, std::int64_t count, bool descending) {
  const Tensor in = x.detach().contiguous();
  const Shape from = detail::folded(in.shape(), dim);
  Shape shape = in.shape();
  if (x.rank() > 0) shape[dim] = count;
  Tensor indices = detail::fresh(shape, DType::i64, in.device());
  detail::launch(in.device(), ArgsortArgs{In{detail::view_reshaped(in, from)},
                                          Out{detail::view_reshaped(indices, {from[0], count, from[2]})}, descending});
  return indices;
}

ValuesAndIndices pick(const Tensor& x, int dim, const Tensor& indices) {
  if (x.rank() == 0) return {gather(x.reshape({1}), 0, indices.reshape({1})).reshape({}), indices};
  return {gather(x, dim, indices), indices};
}

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  if (detail::widens(x)) [[unlikely]]
    return cumsum(detail::widened(x), dim);
  const int along = checked_dim("cumsum", x, dim);
  return running_sum(is_floating(x.dtype()) ? x : x.to(DType::i64), along, false);
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  const int along = checked_dim("argsort", x, dim);
  return order(x, along, x.rank() == 0 ? 1 : x.shape()[along], descending);
}

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  const int along = checked_dim("sort", x, dim);
  return pick(x, along, order(x, along, x.rank() == 0 ? 1 : x.shape()[along], descending));
}

ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  const int along = checked_dim("topk", x, dim);
  const std::int64_t size = x.rank() == 0 ? 1 : x.shape()[along];
  LOCKSTEP_CHECK(k >= 0 && k <= size && (x.rank() > 0 || k == 1), "[topk] expected a k in [0, ", size,
                 "] along dimension ", along, ", got ", k, " for ", x);
  return pick(x, along, order(x, along, k, largest));
}

}  // namespace lockstep
