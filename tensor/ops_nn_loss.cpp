// Losses, composed of differentiable operations. None of them looks at values on the host.
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops_math.h"
#include "lockstep/tensor/ops_nn.h"
#include "lockstep/tensor/ops_shape.h"
#include "lockstep/tensor/ops_support.h"

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
  Tensor counted;  // bool, the same shape: not ignored
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

// The sum over classes has been taken: loss and weights are [batch, 1, ..].
Tensor finish(const Tensor& loss, const Tensor& weights, Reduction reduction) {
  if (reduction == Reduction::none) return loss.squeeze(1);
  const Tensor total = sum(loss);
  return reduction == Reduction::sum ? total : total / sum(weights);
}

Tensor check_pair(const char* op, const Tensor& input, const Tensor& target) {
  detail::check_same_device(op, input, target);
  // Broadcasting a [n] target against a [n, 1] input is a classic mistake.
  LOCKSTEP_CHECK(input.shape() == target.shape(), "[", op, "] expected an input and a target of one shape, got ", input,
                 " and ", target);
  return input;
}

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
  const Tensor loss = -(gather(log_probabilities, 1, prepared.classes) * prepared.weights);
  return finish(loss, prepared.weights, options.reduction);
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
  const Targets prepared = prepare("cross_entropy", logits, targets, options.weight, options.ignore_index);
  const Tensor scores = log_softmax(logits, 1);
  Tensor loss = -(gather(scores, 1, prepared.classes) * prepared.weights);
  if (options.label_smoothing > 0) {
    // The share that goes to all classes alike; each class counts with its own weight there.
    Tensor all = scores;
    if (options.weight.defined()) {
      Shape shape = Shape::filled(logits.rank(), 1);
      shape[1] = logits.shape()[1];
      all = scores * options.weight.reshape(shape);
    }
    const double share = options.label_smoothing / static_cast<double>(logits.shape()[1]);
    loss = loss * (1 - options.label_smoothing) + where(prepared.counted, sum(all, {1}, true) * -share, 0.0);
  }
  return finish(loss, prepared.weights, options.reduction);
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
Tensor bce_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction) {
  if (detail::widens(logits, target)) [[unlikely]]
    return bce_with_logits(detail::widened(logits), detail::widened(target), reduction);
  return reduce(softplus(check_pair("bce_with_logits", logits, target)) - logits * target, reduction);
}

}  // namespace lockstep
