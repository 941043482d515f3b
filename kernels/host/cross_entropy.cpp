// The loss of classes over the middle of [outer, classes, inner], walked in the order of memory as softmax.cpp does. No
// probability is stored: the gradient makes them again from the logarithm of their sum.
#include <algorithm>
#include <cmath>

#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/lines.h"
#include "lockstep/kernels/host/maximum.h"
#include "lockstep/kernels/host/sums.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

void check_targets(const char* op, const std::int64_t* targets, std::int64_t count, std::int64_t classes,
                   std::int64_t ignore_index) {
  for (std::int64_t i = 0; i < count; ++i)
    LOCKSTEP_CHECK((targets[i] >= 0 && targets[i] < classes) || targets[i] == ignore_index, "[", op,
                   "] expected indices in [0, ", classes, "), got ", targets[i], " at position ", i);
}

// log_sum of every one of `width` columns of [classes, inner].
template <class C>
void log_sums(const C* x, std::int64_t classes, std::int64_t inner, std::int64_t width, C* exponentials, C* tops,
              double* log_sum) {
  if (inner == 1) {
    const C top = maximum(x, classes);
    LOCKSTEP_INDEPENDENT
    for (std::int64_t c = 0; c < classes; ++c) exponentials[c] = math::exp_of_negative(x[c] - top);
    log_sum[0] = static_cast<double>(top) + std::log(sum(exponentials, classes));
    return;
  }
  std::fill_n(tops, width, -std::numeric_limits<C>::infinity());
  for (std::int64_t c = 0; c < classes; ++c) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j) tops[j] = functors::larger(x[c * inner + j], tops[j]);
  }
  std::fill_n(log_sum, width, 0.0);
  for (std::int64_t c = 0; c < classes; ++c) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j)
      log_sum[j] += static_cast<double>(math::exp_of_negative(x[c * inner + j] - tops[j]));
  }
  for (std::int64_t j = 0; j < width; ++j) log_sum[j] = static_cast<double>(tops[j]) + std::log(log_sum[j]);
}

template <class C>
void forward(const CrossEntropyArgs& a) {
  const Shape& shape = a.x.view.shape;
  const std::int64_t outer = shape[0], classes = shape[1], inner = shape[2];
  const auto* all_targets = data<std::int64_t>(a.targets);
  check_targets(CrossEntropyArgs::kName, all_targets, outer * inner, classes, a.ignore_index);
  Scratch scratch;
  const C* all_x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  C* rounded = data<C>(a.log_sum);
  const double share = classes > 0 ? a.label_smoothing / static_cast<double>(classes) : 0;
  const auto columns = [&](std::int64_t o, std::int64_t from, std::int64_t to) {
    Scratch own;
    C* exponentials = own.take<C>(inner == 1 ? classes : 0);
    C* tops = own.take<C>(to - from);
    auto* log_sum = own.take<double>(to - from);
    log_sums(all_x + o * classes * inner + from, classes, inner, to - from, exponentials, tops, log_sum);
    const C* x = all_x + o * classes * inner;
    for (std::int64_t j = from; j < to; ++j) {
      const std::int64_t at = o * inner + j, target = all_targets[at];
      const double sum = log_sum[j - from];
      double loss = 0, own_weight = 0;
      if (target != a.ignore_index) {
        own_weight = weight ? weight[target] : C(1);
        loss = (1 - a.label_smoothing) * own_weight * (sum - static_cast<double>(x[target * inner + j]));
        if (a.label_smoothing > 0)
          loss += share * sum_of(classes, [=](std::int64_t c) {
                    const double distance = sum - static_cast<double>(x[c * inner + j]);
                    return weight ? weight[c] * distance : distance;
                  });
      }
      data<C>(a.loss)[at] = static_cast<C>(loss);
      data<C>(a.target_weight)[at] = static_cast<C>(own_weight);
      rounded[at] = static_cast<C>(sum);
      rounded[outer * inner + at] = static_cast<C>(sum - static_cast<double>(rounded[at]));
    }
  };
  for_lines(outer, inner, classes * static_cast<std::int64_t>(sizeof(C)), 1,
            [&](std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
              for (std::int64_t o = begin; o < end; ++o) columns(o, from, to);
            });
}

// With p the probabilities, W the sum of the weights and g the incoming gradient:
// dx[c] = g (1 - s) w[t] (p[c] - [c = t]) + g s / classes (W p[c] - w[c]).
template <class C>
void backward(const CrossEntropyGradArgs& a) {
  const Shape& shape = a.x.view.shape;
  const std::int64_t outer = shape[0], classes = shape[1], inner = shape[2];
  const auto* all_targets = data<std::int64_t>(a.targets);
  check_targets(CrossEntropyGradArgs::kName, all_targets, outer * inner, classes, a.ignore_index);
  Scratch scratch;
  const C* all_x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const Writer<C> all_dx(scratch, a.dx);
  const C share = classes > 0 ? static_cast<C>(a.label_smoothing / static_cast<double>(classes)) : C(0);
  const C total = weight ? static_cast<C>(sum(weight, classes)) : static_cast<C>(classes);
  const auto columns = [&](std::int64_t o, std::int64_t from, std::int64_t to) {
    Scratch own;
    const std::int64_t width = to - from, first = o * inner + from;
    C* of_probability = own.take<C>(width);
    C* of_weight = own.take<C>(width);
    const C* x = all_x + o * classes * inner + from;
    C* dx = all_dx.data() + o * classes * inner + from;
    // x - high loses nothing where the probability is not small.
    const C* high = data<C>(a.log_sum) + first;
    const C* low = high + outer * inner;
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t at = first + j;
      const bool counted = all_targets[at] != a.ignore_index;
      const C own_weight = static_cast<C>(1 - a.label_smoothing) * data<C>(a.target_weight)[at];
      const C g = counted ? data<C>(a.dloss)[at] : C(0);
      of_probability[j] = g * (own_weight + share * total);
      of_weight[j] = g * share;
    }
    if (inner == 1) {
      LOCKSTEP_INDEPENDENT
      for (std::int64_t c = 0; c < classes; ++c) dx[c] = of_probability[0] * math::exp((x[c] - high[0]) - low[0]);
      if (share > 0)
        for (std::int64_t c = 0; c < classes; ++c) dx[c] -= of_weight[0] * (weight ? weight[c] : C(1));
    } else {
      for (std::int64_t c = 0; c < classes; ++c) {
        const C w = weight ? weight[c] : C(1);
        LOCKSTEP_INDEPENDENT
        for (std::int64_t j = 0; j < width; ++j)
          dx[c * inner + j] = of_probability[j] * math::exp((x[c * inner + j] - high[j]) - low[j]) - of_weight[j] * w;
      }
    }
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t at = first + j, target = all_targets[at];
      if (target == a.ignore_index) {
        // Whatever the probabilities were.
        for (std::int64_t c = 0; c < classes; ++c) dx[c * inner + j] = C(0);
        continue;
      }
      dx[target * inner + j] -=
          data<C>(a.dloss)[at] * static_cast<C>(1 - a.label_smoothing) * data<C>(a.target_weight)[at];
    }
  };
  for_lines(outer, inner, 2 * classes * static_cast<std::int64_t>(sizeof(C)), 1,
            [&](std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
              for (std::int64_t o = begin; o < end; ++o) columns(o, from, to);
            });
  all_dx.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const CrossEntropyArgs& args) {
  check_floating(CrossEntropyArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const CrossEntropyGradArgs& args) {
  check_floating(CrossEntropyGradArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, backward<C>); });
}

}  // namespace lockstep::kernels::host
