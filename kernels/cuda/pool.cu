#include <limits>

#include "lockstep/kernels/cuda/images.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/cuda/positions.cuh"
#include "lockstep/kernels/cuda/report.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Windows that slide over images, and the array that the threads walk.
struct Planes {
  std::int64_t height, width, out_height, out_width;  // the window slides over height x width
  Window2d window;
  ImageWalk walk;
  ImageArray read;        // the other array
  Splitter by_stride[2];  // places in the padded plane

  Planes(const View& x, const View& y, const Window2d& w, const View& walked, const View& other)
      : height(x.shape[2]),
        width(x.shape[3]),
        out_height(y.shape[2]),
        out_width(y.shape[3]),
        window(w),
        walk(walked.shape, is_channels_last(x, y)),
        read(other.shape, is_channels_last(x, y)),
        by_stride{Splitter(w.stride[0], height + w.padding[0]), Splitter(w.stride[1], width + w.padding[1])} {}
};

// Calls f(offset in the plane of x) for every tap of the window at (oh, ow) that is not in the padding.
template <class F>
__device__ void for_each_tap(const Planes& p, std::int64_t oh, std::int64_t ow, F&& f) {
  const Window2d& w = p.window;
  for (int r = 0; r < w.kernel[0]; ++r) {
    const std::int64_t h = oh * w.stride[0] - w.padding[0] + static_cast<std::int64_t>(r) * w.dilation[0];
    if (h < 0 || h >= p.height) continue;
    for (int c = 0; c < w.kernel[1]; ++c) {
      const std::int64_t at = ow * w.stride[1] - w.padding[1] + static_cast<std::int64_t>(c) * w.dilation[1];
      if (at >= 0 && at < p.width) f(h * p.width + at);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(const T* x, T* y, std::int64_t* indices, std::int64_t count, const Planes p) {
  using C = Compute<T>;
  for_each_position(count, [&](std::int64_t i) {
    const ImagePlace to = p.walk.at(i);
    const T* from = x + p.read.begin(to.image, to.channel);
    C best = -std::numeric_limits<C>::infinity();  // what a window wholly in the padding keeps
    std::int64_t where = -1;
    for_each_tap(p, to.row, to.column, [&](std::int64_t at) {
      const C value = widen(from[at * p.read.pixel_step]);
      // Not "value > best": that is false for NaN, which wins. The first tap wins even with -infinity.
      if ((!(value <= best) && best == best) || where < 0) best = value, where = at;
    });
    y[i] = narrow<T>(best);
    if (indices) indices[i] = where < 0 ? 0 : where;
  });
}

// What the sum over a window is multiplied with.
template <class C>
struct Share {
  const Planes& p;
  const PoolMean& mean;
  C fixed;

  __device__ Share(const Planes& planes, const PoolMean& of)
      : p(planes), mean(of), fixed(of.divisor != 0 ? C(1) / static_cast<C>(of.divisor) : C(0)) {}
  __device__ C at(std::int64_t oh, std::int64_t ow) const {
    if (mean.divisor != 0) return fixed;
    return C(1) / static_cast<C>(functors::window_elements(p.window, mean.padding, 0, oh, p.height) *
                                 functors::window_elements(p.window, mean.padding, 1, ow, p.width));
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    avg_pool_kernel(const T* x, T* y, std::int64_t count, const Planes p, const PoolMean mean) {
  using C = Compute<T>;
  const Share<C> share(p, mean);
  for_each_position(count, [&](std::int64_t i) {
    const ImagePlace to = p.walk.at(i);
    const T* from = x + p.read.begin(to.image, to.channel);
    C sum = 0;
    for_each_tap(p, to.row, to.column, [&](std::int64_t at) { sum += widen(from[at * p.read.pixel_step]); });
    y[i] = narrow<T>(sum * share.at(to.row, to.column));
  });
}

// Each element of x collects from the windows that have it, window by window, so nothing is added by two threads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    avg_pool_grad_kernel(const T* dy, T* dx, std::int64_t count, const Planes p, const PoolMean mean) {
  using C = Compute<T>;
  const Share<C> share(p, mean);
  const Window2d& w = p.window;
  for_each_position(count, [&](std::int64_t i) {
    const ImagePlace to = p.walk.at(i);
    const T* from = dy + p.read.begin(to.image, to.channel);
    C sum = 0;
    // Taps from the last to the first: windows from the first to the last.
    for (int r = w.kernel[0] - 1; r >= 0; --r) {
      const std::int64_t top = to.row + w.padding[0] - static_cast<std::int64_t>(r) * w.dilation[0];
      if (top < 0) continue;
      std::int64_t rest;
      const std::int64_t oh = p.by_stride[0].split(top, &rest);
      if (rest != 0 || oh >= p.out_height) continue;
      for (int c = w.kernel[1] - 1; c >= 0; --c) {
        const std::int64_t left = to.column + w.padding[1] - static_cast<std::int64_t>(c) * w.dilation[1];
        if (left < 0) continue;
        const std::int64_t ow = p.by_stride[1].split(left, &rest);
        if (rest != 0 || ow >= p.out_width) continue;
        sum += widen(from[(oh * p.out_width + ow) * p.read.pixel_step]) * share.at(oh, ow);
      }
    }
    dx[i] = narrow<T>(sum);
  });
}

// A block has a part of an output plane. Elements with the same target are added in their order: in every round the
// first of those that are left claims the target, so there are as many rounds as the most frequent target has elements.
// More blocks on a multiprocessor would put numbers on the stack.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    max_unpool_kernel(const T* x, const std::int64_t* indices, T* out, std::int64_t planes, const ImageArray in_images,
                      const ImageArray out_images, int tile, const Splitter by_tiles, const Splitter by_channels,
                      lockstep::cuda::KernelReport* report) {
  const int plane = static_cast<int>(in_images.pixels);
  const std::int64_t out_plane = out_images.pixels, in_step = in_images.pixel_step, out_step = out_images.pixel_step;
  int* claim = dynamic_shared<int>();
  int* last = claim + tile;  // the element that was added last
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t job = blockIdx.x; job < planes * by_tiles.size; job += gridDim.x) {
    std::int64_t part, channel;
    const std::int64_t p = by_tiles.split(job, &part), begin = part * tile, n = by_channels.split(p, &channel);
    const int width = static_cast<int>(out_plane - begin < tile ? out_plane - begin : tile);
    const T* from = x + in_images.begin(n, channel);
    const std::int64_t* index = indices + in_images.begin(n, channel);
    T* to = out + out_images.begin(n, channel) + begin * out_step;
    for (int i = thread; i < width; i += kThreads) {
      claim[i] = 0x7fffffff;
      last[i] = -1;
      to[i * out_step] = T(0);
    }
    __syncthreads();
    for (bool first_round = true;; first_round = false) {
      int left = 0;
      for (int i = thread; i < plane; i += kThreads) {
        const std::int64_t named = index[i * in_step], target = named - begin;
        if (first_round && begin == 0 && !is_inside(named, out_plane))
          report_index(report, lockstep::cuda::report_max_unpool2d, named, out_plane);
        if (!is_inside(target, width) || i <= last[target]) continue;
        atomicMin(&claim[target], i);
        left = 1;
      }
      if (!__syncthreads_or(left)) break;
      for (int i = thread; i < plane; i += kThreads) {
        const std::int64_t target = index[i * in_step] - begin;
        // The winner alone sees its own number, before and after it has made the target free again.
        if (!is_inside(target, width) || claim[target] != i) continue;
        T& sum = to[target * out_step];
        sum = narrow<T>(widen(sum) + widen(from[i * in_step]));
        last[target] = i;
        claim[target] = 0x7fffffff;
      }
      __syncthreads();
    }
  }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const MaxPool2dArgs& args) {
  check_floating(MaxPool2dArgs::kName, args.x.view.dtype, stream);
  const Shape& y = args.y.view.shape;
  const std::int64_t count = element_count(y);
  if (count == 0) return;
  const Planes planes(args.x.view, args.y.view, args.window, args.y.view, args.x.view);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, MaxPool2dArgs::kName, max_pool_kernel<T>, grid_for(stream, count), data<T>(args.x), data<T>(args.y),
           data<std::int64_t>(args.indices), count, planes);
  });
}

void Kernels::enqueue(const Stream& stream, const AvgPool2dArgs& args) {
  check_floating(AvgPool2dArgs::kName, args.x.view.dtype, stream);
  const Shape& y = args.y.view.shape;
  const std::int64_t count = element_count(y);
  if (count == 0) return;
  const Planes planes(args.x.view, args.y.view, args.window, args.y.view, args.x.view);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, AvgPool2dArgs::kName, avg_pool_kernel<T>, grid_for(stream, count), data<T>(args.x), data<T>(args.y),
           count, planes, args.mean);
  });
}

void Kernels::enqueue(const Stream& stream, const AvgPool2dGradArgs& args) {
  check_floating(AvgPool2dGradArgs::kName, args.dy.view.dtype, stream);
  const Shape& dx = args.dx.view.shape;
  const std::int64_t count = element_count(dx);
  if (count == 0) return;
  const Planes planes(args.dx.view, args.dy.view, args.window, args.dx.view, args.dy.view);
  dispatch_floating(args.dy.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, AvgPool2dGradArgs::kName, avg_pool_grad_kernel<T>, grid_for(stream, count), data<T>(args.dy),
           data<T>(args.dx), count, planes, args.mean);
  });
}

void Kernels::enqueue(const Stream& stream, const MaxUnpool2dArgs& args) {
  check_floating(MaxUnpool2dArgs::kName, args.in.view.dtype, stream);
  const Shape& in = args.in.view.shape;
  const Shape& out = args.out.view.shape;
  const bool last = is_channels_last(args.in.view, args.out.view);
  const std::int64_t planes = in[0] * in[1], plane = in[2] * in[3], out_plane = out[2] * out[3];
  if (planes * out_plane == 0) return;
  LOCKSTEP_CHECK(plane < kSmall - 1, "[max_unpool2d] expected planes of fewer than 2^31 elements, got shape ", in);
  constexpr std::int64_t kMostTile = 8192;  // 64 KiB of shared memory
  const auto tile = static_cast<int>(std::min(out_plane, kMostTile));
  const std::int64_t tiles = (out_plane + tile - 1) / tile;
  const Grid grid{dim3(static_cast<unsigned>(std::min<std::int64_t>(planes * tiles, 1 << 20))), dim3(kThreads),
                  static_cast<std::size_t>(tile) * 2 * sizeof(int)};
  dispatch_floating(args.in.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, MaxUnpool2dArgs::kName, max_unpool_kernel<T>, grid, data<T>(args.in),
           data<std::int64_t>(args.indices), data<T>(args.out), planes, ImageArray(in, last), ImageArray(out, last),
           tile, Splitter(tiles, planes * tiles), Splitter(in[1], planes),
           lockstep::cuda::kernel_report(stream.device()));
  });
}

void list_pool(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(max_pool_kernel<T>);
    list.add(avg_pool_kernel<T>);
    list.add(avg_pool_grad_kernel<T>);
    list.add(max_unpool_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
