// Softmax and its logarithm over the middle of [outer, size, inner].
#include <limits>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<T>)
    softmax_kernel(const T* x, T* y, const Lines lines, bool log) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t, std::int64_t begin, int lane, int distance) {
    Parts<T, kRows> parts(lines, inside, lane, {x + begin});
    C top = -std::numeric_limits<C>::infinity();
    parts.for_each([&](std::int64_t, C v) { top = functors::larger(v, top); });
    top = join_line(Larger<C>{}, top, lines, lane, distance);
    double sum = 0;
    parts.for_each([&](std::int64_t, C v) { sum += math::exp(v - top); });
    sum = join_line(Add{}, sum, lines, lane, distance);
    if (log) {
      const C shift = static_cast<C>(math::log(sum));
      parts.store(y + begin, [&](std::int64_t, C v) { return (v - top) - shift; });
    } else {
      const C scale = static_cast<C>(1 / sum);
      parts.store(y + begin, [&](std::int64_t, C v) { return math::exp(v - top) * scale; });
    }
  });
}

// softmax: dx = y * (dy - sum(dy * y)); log: dx = dy - exp(y) * sum(dy).
template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<T>)
    softmax_grad_kernel(const T* dy, const T* y, T* dx, const Lines lines, bool log) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t, std::int64_t begin, int lane, int distance) {
    Parts<T, kRows, 2> parts(lines, inside, lane, {dy + begin, y + begin});
    double sum = 0;
    parts.for_each([&](std::int64_t, C d, C v) {
      sum += log ? static_cast<double>(d) : static_cast<double>(d) * static_cast<double>(v);
    });
    const C total = static_cast<C>(join_line(Add{}, sum, lines, lane, distance));
    parts.store(dx + begin, [&](std::int64_t, C d, C v) { return log ? d - math::exp(v) * total : v * (d - total); });
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const SoftmaxArgs& args) {
  check_floating(SoftmaxArgs::kName, args.x.view.dtype, stream);
  if (element_count(args.x.view.shape) == 0) return;
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    const Lines lines = Lines::held<T, 1>(args.x.view.shape, {args.x.view.data, args.y.view.data});
    launch(stream, SoftmaxArgs::kName, lines.rows ? softmax_kernel<T, true> : softmax_kernel<T, false>,
           lines.grid(sizeof(double)), data<T>(args.x), data<T>(args.y), lines, args.log);
  });
}
void Kernels::enqueue(const Stream& stream, const SoftmaxGradArgs& args) {
  check_floating(SoftmaxGradArgs::kName, args.y.view.dtype, stream);
  if (element_count(args.y.view.shape) == 0) return;
  dispatch_floating(args.y.view.dtype, [&]<class T>(Type<T>) {
    const Lines lines = Lines::held<T, 2>(args.y.view.shape, {args.dy.view.data, args.y.view.data, args.dx.view.data});
    launch(stream, SoftmaxGradArgs::kName, lines.rows ? softmax_grad_kernel<T, true> : softmax_grad_kernel<T, false>,
           lines.grid(sizeof(double)), data<T>(args.dy), data<T>(args.y), data<T>(args.dx), lines, args.log);
  });
}

void list_softmax(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(softmax_kernel<T, true>);
    list.add(softmax_kernel<T, false>);
    list.add(softmax_grad_kernel<T, true>);
    list.add(softmax_grad_kernel<T, false>);
  });
}

}  // namespace lockstep::kernels::cuda
