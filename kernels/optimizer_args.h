// The arguments of the optimizers' kernels, and of what goes before them: one call for many tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/kernels/view.h"

namespace lockstep {

struct SgdTensor {
  InOut parameter;
  In gradient;
  InOut momentum;   // absent without momentum
  bool first_step;  // the momentum buffer is written, not read
};
struct SgdArgs {
  std::vector<SgdTensor> tensors;  // contiguous, one dtype each
  double learning_rate, momentum, dampening, weight_decay;
  bool nesterov, maximize;
  const double* replayed = nullptr;  // device memory: learning_rate, in the place of the one above
  static constexpr const char* kName = "sgd";
  void views(auto&& f) const {
    for (const SgdTensor& t : tensors) f(t.parameter), f(t.gradient), f(t.momentum);
  }
};

struct AdamTensor {
  InOut parameter;
  In gradient;
  InOut exp_avg, exp_avg_sq;
  InOut max_exp_avg_sq;  // absent without amsgrad
  std::int64_t step;     // this one, counted from 1: the first writes the three buffers and does not read them
  // Device memory: step_size, root_correction and keep of this step (functors::AdamConstants), in the place of those
  // that follow from `step` and the learning rate. Not for a first step.
  const double* replayed = nullptr;
};
struct AdamArgs {
  std::vector<AdamTensor> tensors;  // contiguous, one dtype each
  double learning_rate, beta1, beta2, eps, weight_decay;
  bool decoupled;  // weight decay of the parameter itself (AdamW), not by way of the gradient
  bool maximize;
  static constexpr const char* kName = "adam";
  void views(auto&& f) const {
    for (const AdamTensor& t : tensors)
      f(t.parameter), f(t.gradient), f(t.exp_avg), f(t.exp_avg_sq), f(t.max_exp_avg_sq);
  }
};

struct UnscaleArgs {             // gradient *= factor
  std::vector<InOut> gradients;  // contiguous, one floating dtype each
  InOut found_inf;               // f32, one element: becomes 1 where a product is infinite or NaN, else stays
  double factor;
  static constexpr const char* kName = "unscale";
  void views(auto&& f) const {
    for (const InOut& gradient : gradients) f(gradient);
    f(found_inf);
  }
};

struct CopyPair {
  In from;
  Out to;  // of as many elements, and the same dtype
};
struct CopyManyArgs {
  std::vector<CopyPair> tensors;  // contiguous, one floating dtype each; none overlaps another
  static constexpr const char* kName = "copy_many";
  void views(auto&& f) const {
    for (const CopyPair& t : tensors) f(t.from), f(t.to);
  }
};

// out = ((terms[0] + terms[1]) + terms[2]) + …, where each sum is rounded to the dtype, as separate additions are.
struct OrderedSumArgs {
  std::vector<In> terms;  // at least one; all contiguous, of as many elements and one floating dtype
  Out out;                // may be the very view of one of the first 64 terms
  static constexpr const char* kName = "ordered_sum";
  void views(auto&& f) const {
    for (const In& term : terms) f(term);
    f(out);
  }
};

}  // namespace lockstep
