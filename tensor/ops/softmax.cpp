#include <algorithm>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

class SoftmaxNode final : public NodeOf<1> {
 public:
  const char* name() const override { return log ? "log_softmax" : "softmax"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor out = y.get(*this);
    const Dims along = out.rank() == 0 ? Dims{} : Dims{dim};
    if (GradMode::enabled()) {
      const Tensor& dy = grad_outputs[0];
      grad_inputs[0] = log ? dy - exp(out) * dy.sum(along, true) : (dy - (dy * out).sum(along, true)) * out;
      return;
    }
    const Tensor dy = grad_outputs[0].contiguous();
    const Shape shape = detail::folded(out.shape(), dim);
    grad_inputs[0] = detail::fresh_like(dy);
    detail::launch(dy.device(),
                   SoftmaxGradArgs{In{detail::view_reshaped(dy, shape)}, In{detail::view_reshaped(out, shape)},
                                   Out{detail::view_reshaped(grad_inputs[0], shape)}, log});
  }
  Saved y{*this};
  int dim = 0;
  bool log = false;
};

Tensor softmax(const char* name, const Tensor& x, std::int64_t dim, bool log) {
  detail::check_defined(name, x);
  if (detail::widens(x)) [[unlikely]]
    return softmax(name, detail::widened(x), dim, log);
  if (!is_floating(x.dtype())) return softmax(name, x.to(DefaultDType::get()), dim, log);
  const int along = normalize_dim(name, dim, std::max(x.rank(), 1));
  const Tensor in = x.contiguous();
  const Shape shape = detail::folded(in.shape(), along);
  Tensor y = detail::fresh_like(in);
  detail::launch(in.device(),
                 SoftmaxArgs{In{detail::view_reshaped(in, shape)}, Out{detail::view_reshaped(y, shape)}, log});
  if (auto* node = record<SoftmaxNode>(y, in)) {
    node->y.save_output(y);
    node->dim = along;
    node->log = log;
  }
  return y;
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) { return softmax("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, std::int64_t dim) { return softmax("log_softmax", x, dim, true); }

}  // namespace lockstep
