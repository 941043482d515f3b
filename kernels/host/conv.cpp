// Convolution as matrix products: the windows of an image become the columns of a matrix.
#include "lockstep/kernels/common/conv.h"

#include <algorithm>

#include "lockstep/kernels/host/gemm.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/onednn.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

using Sizes = ConvSizes;

// Calls f(row of the column matrix, output row, input row or -1 where it is padding, column offset).
template <class F>
void for_each_tap_row(const Sizes& s, F&& f) {
  const Window2d& w = s.window;
  std::int64_t row = 0;
  for (std::int64_t c = 0; c < s.group_channels; ++c)
    for (int kh = 0; kh < w.kernel[0]; ++kh)
      for (int kw = 0; kw < w.kernel[1]; ++kw, ++row)
        for (std::int64_t oh = 0; oh < s.out_height; ++oh) {
          const std::int64_t h = oh * w.stride[0] - w.padding[0] + std::int64_t{kh} * w.dilation[0];
          const std::int64_t offset = std::int64_t{kw} * w.dilation[1] - w.padding[1];
          f(row, oh, h >= 0 && h < s.height ? c * s.height + h : -1, offset);
        }
}

// columns: [taps, out_plane] of one image (one group).
template <class T>
void image_to_columns(const Sizes& s, const T* image, T* columns) {
  for_each_tap_row(s, [&](std::int64_t row, std::int64_t oh, std::int64_t line, std::int64_t offset) {
    T* to = columns + row * s.out_plane() + oh * s.out_width;
    if (line < 0) {
      std::fill_n(to, s.out_width, T(0));
      return;
    }
    const std::int64_t stride = s.window.stride[1];
    const Range range = inside(offset, stride, s.width, s.out_width);
    const T* from = image + line * s.width + offset;
    std::fill(to, to + range.begin, T(0));
    if (stride == 1)
      std::copy(from + range.begin, from + range.end, to + range.begin);
    else
      for (std::int64_t i = range.begin; i < range.end; ++i) to[i] = from[i * stride];
    std::fill(to + range.end, to + s.out_width, T(0));
  });
}

template <class T>
void add_columns_to_image(const Sizes& s, const T* columns, T* image) {
  for_each_tap_row(s, [&](std::int64_t row, std::int64_t oh, std::int64_t line, std::int64_t offset) {
    if (line < 0) return;
    const std::int64_t stride = s.window.stride[1];
    const Range range = inside(offset, stride, s.width, s.out_width);
    const T* from = columns + row * s.out_plane() + oh * s.out_width;
    T* to = image + line * s.width + offset;
    for (std::int64_t i = range.begin; i < range.end; ++i) to[i * stride] += from[i];
  });
}

template <class T>
Matrix<T> rows_of(const T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns, 1};
}

template <class T>
void forward(const Sizes& s, const T* x, const T* w, const T* bias, T* y) {
  if constexpr (std::is_same_v<T, float>)
    if (onednn_conv(s, x, w, bias, y)) return;
  Scratch scratch;
  T* columns = s.pointwise() ? nullptr : scratch.take<T>(s.taps() * s.out_plane());
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const T* image = x + (n * s.channels + g * s.group_channels) * s.plane();
      T* out = y + (n * s.outputs + g * s.group_outputs) * s.out_plane();
      if (columns) image_to_columns(s, image, columns);
      if (bias)
        for (std::int64_t o = 0; o < s.group_outputs; ++o)
          std::fill_n(out + o * s.out_plane(), s.out_plane(), bias[g * s.group_outputs + o]);
      gemm<T>(rows_of(w + g * s.group_outputs * s.taps(), s.group_outputs, s.taps()),
              rows_of(columns ? static_cast<const T*>(columns) : image, s.taps(), s.out_plane()), out, s.out_plane(),
              T(1), bias ? T(1) : T(0));
    }
}

template <class T>
void grad_input(const Sizes& s, const T* dy, const T* w, T* dx) {
  if constexpr (std::is_same_v<T, float>)
    if (onednn_conv_grad_input(s, dy, w, dx)) return;
  Scratch scratch;
  T* columns = s.pointwise() ? nullptr : scratch.take<T>(s.taps() * s.out_plane());
  if (columns) std::fill_n(dx, s.batch * s.channels * s.plane(), T(0));
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t g = 0; g < s.groups; ++g) {
      T* image = dx + (n * s.channels + g * s.group_channels) * s.plane();
      const T* out = dy + (n * s.outputs + g * s.group_outputs) * s.out_plane();
      gemm<T>(rows_of(w + g * s.group_outputs * s.taps(), s.group_outputs, s.taps()).transposed(),
              rows_of(out, s.group_outputs, s.out_plane()), columns ? columns : image, s.out_plane(), T(1), T(0));
      if (columns) add_columns_to_image(s, columns, image);
    }
}

template <class T>
void grad_weight(const Sizes& s, const T* dy, const T* x, T* dw) {
  if constexpr (std::is_same_v<T, float>)
    if (onednn_conv_grad_weight(s, dy, x, dw)) return;
  Scratch scratch;
  T* columns = s.pointwise() ? nullptr : scratch.take<T>(s.taps() * s.out_plane());
  if (s.batch == 0) std::fill_n(dw, s.outputs * s.taps(), T(0));
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const T* image = x + (n * s.channels + g * s.group_channels) * s.plane();
      const T* out = dy + (n * s.outputs + g * s.group_outputs) * s.out_plane();
      if (columns) image_to_columns(s, image, columns);
      gemm<T>(rows_of(out, s.group_outputs, s.out_plane()),
              rows_of(columns ? static_cast<const T*>(columns) : image, s.taps(), s.out_plane()).transposed(),
              dw + g * s.group_outputs * s.taps(), s.taps(), T(1), n == 0 ? T(0) : T(1));
    }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const Conv2dArgs& args) {
  check_floating(Conv2dArgs::kName, args.x.view.dtype, stream);
  launch(stream, args, [](const Conv2dArgs& a) {
    dispatch_compute(a.x.view.dtype, [&]<class C>(Type<C>) {
      Scratch scratch;
      const Writer<C> y(scratch, a.y);
      forward<C>(Sizes(a.x.view.shape, a.y.view.shape, a.window, a.groups), read<C>(scratch, a.x),
                 read<C>(scratch, a.w), read<C>(scratch, a.bias), y.data());
      y.finish();
    });
  });
}

void Kernels::enqueue(const Stream& stream, const Conv2dGradInputArgs& args) {
  check_floating(Conv2dGradInputArgs::kName, args.dy.view.dtype, stream);
  launch(stream, args, [](const Conv2dGradInputArgs& a) {
    dispatch_compute(a.dy.view.dtype, [&]<class C>(Type<C>) {
      Scratch scratch;
      const Writer<C> dx(scratch, a.dx);
      grad_input<C>(Sizes(a.dx.view.shape, a.dy.view.shape, a.window, a.groups), read<C>(scratch, a.dy),
                    read<C>(scratch, a.w), dx.data());
      dx.finish();
    });
  });
}

void Kernels::enqueue(const Stream& stream, const Conv2dGradWeightArgs& args) {
  check_floating(Conv2dGradWeightArgs::kName, args.dy.view.dtype, stream);
  launch(stream, args, [](const Conv2dGradWeightArgs& a) {
    dispatch_compute(a.dy.view.dtype, [&]<class C>(Type<C>) {
      Scratch scratch;
      const Writer<C> dw(scratch, a.dw);
      grad_weight<C>(Sizes(a.x.view.shape, a.dy.view.shape, a.window, a.groups), read<C>(scratch, a.dy),
                     read<C>(scratch, a.x), dw.data());
      dw.finish();
    });
  });
}

}  // namespace lockstep::kernels::host
