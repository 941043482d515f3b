// Convolutions in which each group has one input channel, computed directly.
#include "lockstep/kernels/cuda/conv.cuh"
#include "lockstep/kernels/cuda/images.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    depthwise_kernel(const T* x, const T* w, const T* bias, T* y, std::int64_t count, const ConvSizes s,
                     const ImageArray images, const ImageWalk walk, const Splitter by_group) {
  const int taps = s.window.kernel[0] * s.window.kernel[1];
  for_each_position(count, [&](std::int64_t i) {
    const ImagePlace to = walk.at(i);
    std::int64_t ignored;
    const T* from = x + images.begin(to.image, by_group.split(to.channel, &ignored));
    Compute<T> sum = bias ? widen(bias[to.channel]) : Compute<T>(0);
    for_each_tap(s, to.row, to.column, [&](int tap, std::int64_t at) {
      sum += widen(w[to.channel * taps + tap]) * widen(from[at * images.pixel_step]);
    });
    y[i] = narrow<T>(sum);
  });
}

// More blocks on a multiprocessor would put numbers on the stack.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    depthwise_grad_input_kernel(const T* dy, const T* w, T* dx, std::int64_t count, const Windows s,
                                const ImageArray images, const ImageWalk walk) {
  const int taps = s.window.kernel[0] * s.window.kernel[1];
  for_each_position(count, [&](std::int64_t i) {
    const ImagePlace to = walk.at(i);
    Compute<T> sum = 0;
    for (std::int64_t o = to.channel * s.group_outputs; o < (to.channel + 1) * s.group_outputs; ++o) {
      const T* from = dy + images.begin(to.image, o);
      for_each_window(s, to.row, to.column, [&](int tap, std::int64_t at) {
        sum += widen(w[o * taps + tap]) * widen(from[at * images.pixel_step]);
      });
    }
    dx[i] = narrow<T>(sum);
  });
}

// A result is one weight; its elements are the positions of y in all images.
template <class T>
struct DepthwiseGradWeight {
  static constexpr int kInputs = 0;
  using Accumulator = std::conditional_t<sizeof(T) == 2, float, double>;
  const T *dy, *x;
  T* dw;
  ConvSizes s;
  ImageArray dy_images, x_images;
  Splitter by_plane, by_column, by_taps, by_group;  // of results: by_taps; of outputs: by_group

  __device__ Accumulator start() const { return 0; }
  __device__ Accumulator join(Accumulator a, Accumulator b) const { return a + b; }
  __device__ Accumulator load(std::int64_t result, std::int64_t position) const {
    const int width = s.window.kernel[1];
    std::int64_t p, ow, at, ignored;
    const std::int64_t o = by_taps.split(result, &at);
    const int tap = static_cast<int>(at);
    const std::int64_t n = by_plane.split(position, &p);
    const std::int64_t oh = by_column.split(p, &ow);
    const std::int64_t h = oh * s.window.stride[0] - s.window.padding[0] + tap / width * s.window.dilation[0];
    const std::int64_t column = ow * s.window.stride[1] - s.window.padding[1] + tap % width * s.window.dilation[1];
    if (h < 0 || h >= s.height || column < 0 || column >= s.width) return 0;
    const std::int64_t from =
        x_images.begin(n, by_group.split(o, &ignored)) + (h * s.width + column) * x_images.pixel_step;
    return static_cast<Accumulator>(widen(dy[dy_images.begin(n, o) + p * dy_images.pixel_step])) *
           static_cast<Accumulator>(widen(x[from]));
  }
  __device__ void finish(std::int64_t result, std::int64_t, Accumulator total) const {
    dw[result] = narrow<T>(static_cast<Compute<T>>(total));
  }
};

}  // namespace

void depthwise(const Stream& stream, const Conv2dArgs& args, const ConvSizes& s) {
  const std::int64_t count = s.batch * s.outputs * s.out_plane();
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, Conv2dArgs::kName, depthwise_kernel<T>, grid_for(stream, count), data<T>(args.x), data<T>(args.w),
           args.bias.view.present ? data<T>(args.bias) : nullptr, data<T>(args.y), count, s,
           ImageArray(args.x.view.shape, s.channels_last), ImageWalk(args.y.view.shape, s.channels_last),
           Splitter(s.group_outputs, s.outputs));
  });
}

void depthwise_grad_input(const Stream& stream, const Conv2dGradInputArgs& args, const ConvSizes& s) {
  const std::int64_t count = s.batch * s.channels * s.plane();
  dispatch_floating(args.dy.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, Conv2dGradInputArgs::kName, depthwise_grad_input_kernel<T>, grid_for(stream, count),
           data<T>(args.dy), data<T>(args.w), data<T>(args.dx), count, Windows(s),
           ImageArray(args.dy.view.shape, s.channels_last), ImageWalk(args.dx.view.shape, s.channels_last));
  });
}

void depthwise_grad_weight(const Stream& stream, const Conv2dGradWeightArgs& args, const ConvSizes& s) {
  FoldShape shape;
  shape.results = s.outputs * s.window.kernel[0] * s.window.kernel[1];
  shape.elements = s.batch * s.out_plane();
  dispatch_floating(args.dy.view.dtype, [&]<class T>(Type<T>) {
    const DepthwiseGradWeight<T> operation{data<T>(args.dy),
                                           data<T>(args.x),
                                           data<T>(args.dw),
                                           s,
                                           ImageArray(args.dy.view.shape, s.channels_last),
                                           ImageArray(args.x.view.shape, s.channels_last),
                                           Splitter(s.out_plane(), shape.elements),
                                           Splitter(s.out_width, s.out_plane()),
                                           Splitter(s.kernel(), shape.results),
                                           Splitter(s.group_outputs, s.outputs)};
    fold(stream, Conv2dGradWeightArgs::kName, operation, shape, true);
  });
}

void list_depthwise(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(depthwise_kernel<T>);
    list.add(depthwise_grad_input_kernel<T>);
    list_fold<DepthwiseGradWeight<T>>(list);
  });
}

}  // namespace lockstep::kernels::cuda
