// Losses, composed of differentiable operations, but for the one of classes given scores, which is a kernel. None of
// them looks at values on the host.
#include <utility>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

Tensor reduce(const Tensor& loss, Reduction reduction) {
  switch (reduction) {
    case Reduction::mean:
      return mean(loss);
    case Reduction::sum:
      return sum(loss);
    case Reduction::none:
      break;
  }
  return loss;
}

// Integer targets of a loss over classes, prepared for gathering.
struct Targets {
  Tensor classes;  // [batch, 1, ..], 0 where ignored
  Tensor counted;  // bool: not ignored
  Tensor weights;  // the class's weight, 0 where ignored
};

void check_targets(const char* op, const Tensor& scores, const Tensor& targets) {
  detail::check_floating(op, scores);
  detail::check_same_device(op, scores, targets);
  bool fits = scores.rank() >= 2 && targets.rank() == scores.rank() - 1;
  for (int i = 0; fits && i < targets.rank(); ++i) fits = targets.shape()[i] == scores.shape()[i == 0 ? 0 : i + 1];
  LOCKSTEP_CHECK(fits, "[", op, "] expected scores [batch, classes, ..] and target classes [batch, ..], got ", scores,
                 " and ", targets);
}

void check_weight(const char* op, const Tensor& scores, const Tensor& weight) {
  if (!weight.defined()) return;
  detail::check_floating_alike(op, scores, weight);
  LOCKSTEP_CHECK(weight.shape() == Shape{scores.shape()[1]}, "[", op, "] expected a weight [", scores.shape()[1],
                 "], one for each class, got ", weight);
}

Targets prepare(const char* op, const Tensor& scores, const Tensor& targets, const Tensor& weight,
                std::int64_t ignore_index) {
  NoGrad no_grad;
  const Tensor classes = detail::to_indices(op, targets).unsqueeze(1);
  const Tensor counted = ne(classes, static_cast<double>(ignore_index));
  const Tensor safe = where(counted, classes, 0.0);
  Tensor weights = counted.to(scores.dtype());
  if (weight.defined()) weights = weights * index_select(weight, 0, safe.reshape({safe.count()})).reshape(safe.shape());
  return {safe, counted, weights};
}

// OfTwo the losses and weights of the targets.
Tensor finish(const Tensor& loss, const Tensor& weights, Reduction reduction) {
  if (reduction == Reduction::none) return loss;
  const Tensor total = sum(loss);
  return reduction == Reduction::sum ? total : total / sum(weights);
}

// The slope is that of |d| where d is beyond beta, else d / beta; at 0 it is 0.
Tensor slope(const Tensor& d, double beta) { return beta > 0 ? clamp(d / beta, -1, 1) : sign(d); }
using OfTwo = const detail::BinaryOperands&;
constexpr detail::BinaryRule kSmoothL1{
    "smooth_l1_loss",
    BinaryOp::smooth_l1,
    {detail::uses_a | detail::uses_b, [](OfTwo of) { return of.g * slope(of.a - of.b, of.alpha); }},
    {detail::uses_a | detail::uses_b, [](OfTwo of) { return of.g * slope(of.b - of.a, of.alpha); }}};

Tensor check_pair(const char* op, const Tensor& input, const Tensor& target) {
  detail::check_same_device(op, input, target);
  // Broadcasting a [n] target against a [n, 1] input is a classic mistake.
  LOCKSTEP_CHECK(input.shape() == target.shape(), "[", op, "] expected an input and a target of one shape, got ", input,
                 " and ", target);
  return input;
}

// The loss of each target, of the scores; see CrossEntropyArgs for the formula.
class CrossEntropyNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "cross_entropy"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor in = x.get(*this), classes = targets.get(*this), weights = weight.get(*this);
    if (GradMode::enabled()) {
      grad_inputs[0] = differentiably(grad_outputs[0], in, classes, weights);
      return;
    }
    const Tensor dloss = grad_outputs[0].contiguous();
    const Shape shape = detail::folded(in.shape(), 1);
    grad_inputs[0] = detail::fresh_like(in);
    detail::launch(in.device(),
                   CrossEntropyGradArgs{dloss.in(), In{detail::view_reshaped(in, shape)}, classes.in(), weights.in(),
                                        own.get(*this).in(), log_sum.get(*this).in(),
                                        Out{detail::view_reshaped(grad_inputs[0], shape)}, ignore_index, smoothing});
  }

  Saved x{*this}, targets{*this}, weight{*this}, own{*this}, log_sum{*this};
  std::int64_t ignore_index = 0;
  double smoothing = 0;

 private:
  Tensor differentiably(const Tensor& dloss, const Tensor& in, const Tensor& classes, const Tensor& weights) {
    const Tensor p = softmax(in.to(dloss.dtype()), 1);
    // All that is not p and dloss is constant.
    const auto constants = [&] {
      NoGrad no_grad;
      const Tensor counted = ne(classes, static_cast<double>(ignore_index));
      const Tensor at = where(counted, classes, 0.0).unsqueeze(1), of_target = own.get(*this).unsqueeze(1);
      const Tensor zeros = detail::fresh_zeros(in.shape(), dloss.dtype(), in.device());
      const Tensor mask = counted.unsqueeze(1).to(dloss.dtype());
      Shape shape = Shape::filled(in.rank(), 1);
      shape[1] = in.shape()[1];
      const Tensor w = weights.defined() ? weights.to(dloss.dtype()).reshape(shape)
                                         : detail::fresh_zeros(shape, dloss.dtype(), in.device()) + 1;
      const Tensor share = mask * (smoothing / static_cast<double>(in.shape()[1]));
      return std::pair(of_target * (1 - smoothing) + share * sum(w),
                       scatter_add(zeros, 1, at, of_target * (1 - smoothing)) + share * w);
    }();
    // OfTwo a mean over no target the gradient may be infinite.
    const Tensor counted = ne(classes, static_cast<double>(ignore_index));
    return ((p * constants.first - constants.second) * where(counted, dloss, 0.0).unsqueeze(1)).to(in.dtype());
  }
};

// Targets are probabilities.
Tensor soft_cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  detail::check_floating_alike("cross_entropy", logits, targets);
  const auto classes = static_cast<double>(logits.shape()[1]);
  Tensor wanted = targets;
  if (options.label_smoothing > 0) wanted = targets * (1 - options.label_smoothing) + options.label_smoothing / classes;
  Tensor terms = log_softmax(logits, 1) * wanted;
  if (options.weight.defined()) {
    Shape shape = Shape::filled(logits.rank(), 1);
    shape[1] = logits.shape()[1];
    terms = terms * options.weight.reshape(shape);
  }
  const Tensor loss = -sum(terms, {1});
  return reduce(loss, options.reduction);
}

}  // namespace

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, const NllOptions& options) {
  if (detail::widens(log_probabilities)) [[unlikely]]
    return nll_loss(detail::widened(log_probabilities), targets, options);
  check_targets("nll_loss", log_probabilities, targets);
  check_weight("nll_loss", log_probabilities, options.weight);
  const Targets prepared = prepare("nll_loss", log_probabilities, targets, options.weight, options.ignore_index);
  // Chosen, and not only multiplied with 0: where all are ignored the mean is 0 / 0, and the gradients are 0.
  const Tensor taken = gather(log_probabilities, 1, prepared.classes);
  const Tensor loss = where(prepared.counted, -(taken * prepared.weights), 0.0);
  return finish(loss.squeeze(1), prepared.weights, options.reduction);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  if (detail::widens(logits, targets)) [[unlikely]]
    return cross_entropy(detail::widened(logits), detail::widened(targets), options);
  detail::check_floating("cross_entropy", logits);
  LOCKSTEP_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
                 "[cross_entropy] expected label smoothing in [0, 1], got ", options.label_smoothing);
  detail::check_same_device("cross_entropy", logits, targets);
  LOCKSTEP_CHECK(logits.rank() >= 2, "[cross_entropy] expected logits [batch, classes, ..], got ", logits);
  check_weight("cross_entropy", logits, options.weight);
  if (is_floating(targets.dtype()) && targets.shape() == logits.shape())
    return soft_cross_entropy(logits, targets, options);
  check_targets("cross_entropy", logits, targets);
  const Tensor in = logits.contiguous(), classes = detail::to_indices("cross_entropy", targets).contiguous();
  const Tensor weight = options.weight.defined() ? options.weight.detach().contiguous() : Tensor();
  const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor loss = detail::fresh(targets.shape(), wide, logits.device());
  const Tensor own = detail::fresh_like(loss), log_sum = detail::fresh({2, loss.count()}, wide, loss.device());
  detail::launch(in.device(), CrossEntropyArgs{In{detail::view_reshaped(in, detail::folded(in.shape(), 1))},
                                               classes.in(), weight.in(), loss.out(), own.out(), log_sum.out(),
                                               options.ignore_index, options.label_smoothing});
  if (auto* node = record<CrossEntropyNode>(loss, in)) {
    node->x.save(in);
    node->targets.save(classes);
    node->weight.save(weight);
    node->own.save(own);
    node->log_sum.save(log_sum);
    node->ignore_index = options.ignore_index;
    node->smoothing = options.label_smoothing;
  }
  return finish(loss, own, options.reduction).to(logits.dtype());
}

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  if (detail::widens(input, target)) [[unlikely]]
    return mse_loss(detail::widened(input), detail::widened(target), reduction);
  return reduce(square(check_pair("mse_loss", input, target) - target), reduction);
}
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  if (detail::widens(input, target)) [[unlikely]]
    return l1_loss(detail::widened(input), detail::widened(target), reduction);
  return reduce(abs(check_pair("l1_loss", input, target) - target), reduction);
}
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, Reduction reduction, double beta) {
  if (detail::widens(input, target)) [[unlikely]]
    return smooth_l1_loss(detail::widened(input), detail::widened(target), reduction, beta);
  LOCKSTEP_CHECK(beta >= 0, "[smooth_l1_loss] expected a beta of at least 0, got ", beta);
  check_pair("smooth_l1_loss", input, target);
  const DType dtype = detail::floating_dtype(promote_types(input.dtype(), target.dtype()));
  return reduce(detail::apply(kSmoothL1, input.to(dtype), target.to(dtype), beta), reduction);
}

Tensor bce_with_logits(const Tensor& logits, const Tensor& target, const BceOptions& options) {
  if (detail::widens(logits, target)) [[unlikely]]
    return bce_with_logits(detail::widened(logits), detail::widened(target),
                           {detail::widened(options.weight), detail::widened(options.pos_weight), options.reduction});
  check_pair("bce_with_logits", logits, target);
  for (const Tensor& weight : {options.weight, options.pos_weight}) {
    if (!weight.defined()) continue;
    detail::check_floating_alike("bce_with_logits", logits, weight);
    LOCKSTEP_CHECK(detail::broadcast("bce_with_logits", logits, weight) == logits.shape(),
                   "[bce_with_logits] expected a weight that broadcasts to the shape of the logits, got ", logits,
                   " and ", weight);
  }
  Tensor loss;
  if (options.pos_weight.defined())
    loss = (1 - target) * logits + ((options.pos_weight - 1) * target + 1) * softplus(-logits);
  else
    loss = softplus(logits) - logits * target;
  return reduce(options.weight.defined() ? loss * options.weight : loss, options.reduction);
}
Tensor bce_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction) {
  return bce_with_logits(logits, target, BceOptions{.reduction = reduction});
}

}  // namespace lockstep
