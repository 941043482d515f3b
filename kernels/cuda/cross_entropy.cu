// The loss of classes over the middle of [outer, classes, inner], several threads to a line of scores. No probability
// is stored: the gradient makes them again from the logarithm of their sum.
#include <cmath>
#include <limits>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"
#include "lockstep/kernels/cuda/report.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Options {
  std::int64_t ignore_index;
  double smoothing, share;  // share: of one class in the smoothing
  lockstep::cuda::KernelReport* report;
};

template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<T>)
    cross_entropy_kernel(const T* x, const std::int64_t* targets, const T* weight, Compute<T>* loss,
                         Compute<T>* target_weight, Compute<T>* log_sum, const Lines lines, const Options o) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t line, std::int64_t begin, int lane, int distance) {
    Parts<T, kRows> parts(lines, inside, lane, {x + begin});
    C top = -std::numeric_limits<C>::infinity();
    parts.for_each([&](std::int64_t, C v) { top = functors::larger(v, top); });
    top = join_line(Larger<C>{}, top, lines, lane, distance);
    double sum = 0;
    parts.for_each([&](std::int64_t, C v) { sum += static_cast<double>(math::exp(v - top)); });
    const double total = static_cast<double>(top) + std::log(join_line(Add{}, sum, lines, lane, distance));
    double smooth = 0;
    if (o.smoothing > 0) {
      parts.for_each([&](std::int64_t i, C v) {
        const double d = total - static_cast<double>(v);
        smooth += weight ? static_cast<double>(widen(weight[i])) * d : d;
      });
      smooth = join_line(Add{}, smooth, lines, lane, distance);
    }
    if (!inside || lane != 0) return;
    const std::int64_t target = targets[line];
    bool counted = target != o.ignore_index;
    if (counted && !is_inside(target, lines.size)) {
      report_index(o.report, lockstep::cuda::report_cross_entropy, target, lines.size);
      counted = false;
    }
    double own = 0, value = 0;
    if (counted) {
      own = weight ? static_cast<double>(widen(weight[target])) : 1.0;
      value = (1 - o.smoothing) * own * (total - static_cast<double>(widen(x[begin + target * lines.inner]))) +
              o.share * smooth;
    }
    loss[line] = static_cast<C>(value);
    target_weight[line] = static_cast<C>(own);
    log_sum[line] = static_cast<C>(total);
    log_sum[lines.count + line] = static_cast<C>(total - static_cast<double>(log_sum[line]));
  });
}

// See the host's for the formula.
template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<T>)
    cross_entropy_grad_kernel(const Compute<T>* dloss, const T* x, const std::int64_t* targets, const T* weight,
                              const Compute<T>* target_weight, const Compute<T>* log_sum, T* dx, const Lines lines,
                              const Options o) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t line, std::int64_t begin, int lane, int distance) {
    const std::int64_t size = inside ? lines.size : 0;
    C weights = static_cast<C>(lines.size);
    if (weight && o.smoothing > 0) {
      double sum = 0;
      for (std::int64_t i = lane; i < size; i += lines.lanes) sum += static_cast<double>(widen(weight[i]));
      weights = static_cast<C>(join_line(Add{}, sum, lines, lane, distance));
    }
    if (!inside) return;  // no barrier follows
    const std::int64_t target = targets[line];
    const bool counted = target != o.ignore_index && is_inside(target, lines.size);
    const C g = counted ? dloss[line] : C(0), share = static_cast<C>(o.share);
    const C own = static_cast<C>(1 - o.smoothing) * target_weight[line];
    const C of_probability = g * (own + share * weights);
    const C high = log_sum[line], low = log_sum[lines.count + line];
    Parts<T, kRows> parts(lines, inside, lane, {x + begin});
    parts.store(dx + begin, [&](std::int64_t i, C v) {
      C value = of_probability * math::exp((v - high) - low);  // x - high loses nothing that counts
      if (o.smoothing > 0) value -= g * share * (weight ? widen(weight[i]) : C(1));
      if (i == target) value -= g * own;
      return counted ? value : C(0);
    });
  });
}

template <class Args>
Options options_of(const Args& args, const Stream& stream) {
  return {args.ignore_index, args.label_smoothing, args.label_smoothing / static_cast<double>(args.x.view.shape[1]),
          lockstep::cuda::kernel_report(stream.device())};
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const CrossEntropyArgs& args) {
  check_floating(CrossEntropyArgs::kName, args.x.view.dtype, stream);
  if (Lines(args.x.view.shape).count == 0) return;
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const Lines lines = Lines::held<T, 1>(args.x.view.shape, {args.x.view.data});
    launch(stream, CrossEntropyArgs::kName, lines.rows ? cross_entropy_kernel<T, true> : cross_entropy_kernel<T, false>,
           lines.grid(sizeof(double)), data<T>(args.x), data<std::int64_t>(args.targets), or_null<T>(args.weight),
           data<C>(args.loss), data<C>(args.target_weight), data<C>(args.log_sum), lines, options_of(args, stream));
  });
}
void Kernels::enqueue(const Stream& stream, const CrossEntropyGradArgs& args) {
  check_floating(CrossEntropyGradArgs::kName, args.x.view.dtype, stream);
  if (element_count(args.x.view.shape) == 0) return;
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const Lines lines = Lines::held<T, 1>(args.x.view.shape, {args.x.view.data, args.dx.view.data});
    launch(stream, CrossEntropyGradArgs::kName,
           lines.rows ? cross_entropy_grad_kernel<T, true> : cross_entropy_grad_kernel<T, false>,
           lines.grid(sizeof(double)), data<C>(args.dloss), data<T>(args.x), data<std::int64_t>(args.targets),
           or_null<T>(args.weight), data<C>(args.target_weight), data<C>(args.log_sum), data<T>(args.dx), lines,
           options_of(args, stream));
  });
}

void list_cross_entropy(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(cross_entropy_kernel<T, true>);
    list.add(cross_entropy_kernel<T, false>);
    list.add(cross_entropy_grad_kernel<T, true>);
    list.add(cross_entropy_grad_kernel<T, false>);
  });
}

}  // namespace lockstep::kernels::cuda
