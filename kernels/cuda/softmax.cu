// Softmax and its logarithm over the middle of [outer, size, inner]. The passes over a line after the first one find it
// in the cache.
#include <limits>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(const T* x, T* y, const Lines lines, bool log) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t, std::int64_t begin, int lane, int distance) {
    const std::int64_t size = inside ? lines.size : 0;
    const auto at = [&](std::int64_t i) { return begin + i * lines.inner; };
    C top = -std::numeric_limits<C>::infinity();
    for (std::int64_t i = lane; i < size; i += lines.lanes) top = functors::larger(widen(x[at(i)]), top);
    top = from_first_lane(join_lanes(Larger<C>{}, top, lane, lines.lanes, distance), lane, distance);
    double sum = 0;
    for (std::int64_t i = lane; i < size; i += lines.lanes) sum += math::exp(widen(x[at(i)]) - top);
    sum = from_first_lane(join_lanes(Add{}, sum, lane, lines.lanes, distance), lane, distance);
    if (log) {
      const C shift = static_cast<C>(math::log(sum));
      for (std::int64_t i = lane; i < size; i += lines.lanes) y[at(i)] = narrow<T>((widen(x[at(i)]) - top) - shift);
    } else {
      const C scale = static_cast<C>(1 / sum);
      for (std::int64_t i = lane; i < size; i += lines.lanes)
        y[at(i)] = narrow<T>(math::exp(widen(x[at(i)]) - top) * scale);
    }
  });
}

// softmax: dx = y * (dy - sum(dy * y)); log: dx = dy - exp(y) * sum(dy).
template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_grad_kernel(const T* dy, const T* y, T* dx, const Lines lines, bool log) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t, std::int64_t begin, int lane, int distance) {
    const std::int64_t size = inside ? lines.size : 0;
    const auto at = [&](std::int64_t i) { return begin + i * lines.inner; };
    double sum = 0;
    for (std::int64_t i = lane; i < size; i += lines.lanes) {
      const double d = widen(dy[at(i)]);
      sum += log ? d : d * static_cast<double>(widen(y[at(i)]));
    }
    const C total =
        static_cast<C>(from_first_lane(join_lanes(Add{}, sum, lane, lines.lanes, distance), lane, distance));
    for (std::int64_t i = lane; i < size; i += lines.lanes) {
      const C d = widen(dy[at(i)]), v = widen(y[at(i)]);
      dx[at(i)] = narrow<T>(log ? d - math::exp(v) * total : v * (d - total));
    }
  });
}

template <class... Pointers>
void run(const Stream& stream, const char* op, const Shape& shape, bool log, auto kernel, Pointers... pointers) {
  if (element_count(shape) == 0) return;
  const Lines lines(shape);
  launch(stream, op, kernel, lines.grid(sizeof(double)), pointers..., lines, log);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const SoftmaxArgs& args) {
  check_floating(SoftmaxArgs::kName, args.x.view.dtype, stream);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    run(stream, SoftmaxArgs::kName, args.x.view.shape, args.log, softmax_kernel<T>, data<T>(args.x), data<T>(args.y));
  });
}
void Kernels::enqueue(const Stream& stream, const SoftmaxGradArgs& args) {
  check_floating(SoftmaxGradArgs::kName, args.y.view.dtype, stream);
  dispatch_floating(args.y.view.dtype, [&]<class T>(Type<T>) {
    run(stream, SoftmaxGradArgs::kName, args.y.view.shape, args.log, softmax_grad_kernel<T>, data<T>(args.dy),
        data<T>(args.y), data<T>(args.dx));
  });
}

void list_softmax(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(softmax_kernel<T>);
    list.add(softmax_grad_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
