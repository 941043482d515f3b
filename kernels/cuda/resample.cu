// Resampling: a thread for every element that is written. In the adjoint each element of the source collects from the
// elements of the result that are made of it, in their order, so nothing is added by two threads.
#include "lockstep/kernels/cuda/images.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/resample.h"

namespace lockstep::kernels::cuda {
namespace {

// No kernel divides 64 bits.
struct Axis : ResampleAxis {
  WideDivider by_result, by_source;

  Axis() = default;
  explicit Axis(const ResampleAxis& a) : ResampleAxis(a), by_result(a.result), by_source(a.source) {}
  LOCKSTEP_HD std::int64_t over_result(std::int64_t n) const { return by_result.divide(n); }
  LOCKSTEP_HD std::int64_t over_source(std::int64_t n) const { return by_source.divide(n); }
};

struct Resampling {
  Axis rows, columns;
  ImageWalk walk;  // of what is written
  ImageArray read;

  explicit Resampling(const Resample2dArgs& a)
      : walk(a.y.view.shape, is_channels_last(a.x.view, a.y.view)), read(a.x.view.shape, walk.channels_last) {
    const Shape& source = a.adjoint ? a.y.view.shape : a.x.view.shape;
    const Shape& result = a.adjoint ? a.x.view.shape : a.y.view.shape;
    rows = Axis({source[2], result[2], a.kind, a.step[0], a.align_corners});
    columns = Axis({source[3], result[3], a.kind, a.step[1], a.align_corners});
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    resample_kernel(const T* x, T* y, std::int64_t count, const Resampling s, bool adjoint) {
  using C = Compute<T>;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const auto [image, channel, row, column] = s.walk.at(i);
    const T* from = x + s.read.begin(image, channel);
    const std::int64_t between = s.read.pixel_step;
    C sum = 0;
    if (!adjoint) {
      const Taps<C> r = taps_of<C>(s.rows, row), c = taps_of<C>(s.columns, column);
      for (std::int64_t h = 0; h < r.count; ++h) {
        C mixed = 0;
        for (std::int64_t w = 0; w < c.count; ++w)
          mixed += c.weight(w) * widen(from[((r.first + h) * s.columns.source + c.first + w) * between]);
        sum += r.weight(h) * mixed;
      }
    } else {
      const std::int64_t left = first_result_of<C>(s.columns, column);
      for (std::int64_t h = first_result_of<C>(s.rows, row); h < s.rows.result; ++h) {
        const Taps<C> r = taps_of<C>(s.rows, h);
        if (r.first > row) break;
        C spread = 0;
        for (std::int64_t w = left; w < s.columns.result; ++w) {
          const Taps<C> c = taps_of<C>(s.columns, w);
          if (c.first > column) break;
          spread += c.weight(column - c.first) * widen(from[(h * s.columns.result + w) * between]);
        }
        sum += r.weight(row - r.first) * spread;
      }
    }
    y[i] = narrow<T>(sum);
  }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const Resample2dArgs& args) {
  check_floating(Resample2dArgs::kName, args.x.view.dtype, stream);
  const std::int64_t count = element_count(args.y.view.shape);
  if (count == 0) return;
  const Resampling resampling(args);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, Resample2dArgs::kName, resample_kernel<T>, grid_for(stream, count), data<T>(args.x), data<T>(args.y),
           count, resampling, args.adjoint);
  });
}

void list_resample(KernelList& list) {
  for_floating([&]<class T>(Type<T>) { list.add(resample_kernel<T>); });
}

}  // namespace lockstep::kernels::cuda
