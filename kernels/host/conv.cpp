// Convolution as matrix products: the windows of an image become the columns of a matrix.
#include "lockstep/kernels/common/conv.h"

#include <algorithm>

#include "lockstep/kernels/host/channels_last.h"
#include "lockstep/kernels/host/conv_few_channels.h"
#include "lockstep/kernels/host/conv_parts.h"
#include "lockstep/kernels/host/gemm.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/onednn.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

using Sizes = ConvSizes;

struct Part {  // of an image (one group): what a matrix product is about
  std::int64_t channel_begin, channel_end;
  std::int64_t row_begin, row_end;  // of the output
};

// Calls f(row of the column matrix, output row, input row or -1 where it is padding, column offset).
template <class F>
void for_each_tap_row(const Sizes& s, const Part& part, F&& f) {
  const Window2d& w = s.window;
  std::int64_t row = 0;
  for (std::int64_t c = part.channel_begin; c < part.channel_end; ++c)
    for (int kh = 0; kh < w.kernel[0]; ++kh)
      for (int kw = 0; kw < w.kernel[1]; ++kw, ++row)
        for (std::int64_t oh = part.row_begin; oh < part.row_end; ++oh) {
          const std::int64_t h = oh * w.stride[0] - w.padding[0] + std::int64_t{kh} * w.dilation[0];
          const std::int64_t offset = std::int64_t{kw} * w.dilation[1] - w.padding[1];
          f(row, oh - part.row_begin, h >= 0 && h < s.height ? c * s.height + h : -1, offset);
        }
}

// columns: [taps of the channels, output rows * out_width].
template <class T>
void image_to_columns(const Sizes& s, const Part& part, const T* image, T* columns) {
  const std::int64_t width = (part.row_end - part.row_begin) * s.out_width;
  for_each_tap_row(s, part, [&](std::int64_t row, std::int64_t oh, std::int64_t line, std::int64_t offset) {
    T* to = columns + row * width + oh * s.out_width;
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
void add_columns_to_image(const Sizes& s, const Part& part, const T* columns, T* image) {
  for_each_tap_row(s, part, [&](std::int64_t row, std::int64_t oh, std::int64_t line, std::int64_t offset) {
    if (line < 0) return;
    const std::int64_t stride = s.window.stride[1];
    const Range range = inside(offset, stride, s.width, s.out_width);
    const T* from = columns + row * s.out_plane() + oh * s.out_width;
    T* to = image + line * s.width + offset;
    for (std::int64_t i = range.begin; i < range.end; ++i) to[i * stride] += from[i];
  });
}

template <class T>
Matrix<T> rows_of(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return {data, rows, columns, stride, 1};
}

// A product packs one of its matrices anew for so many rows or columns of the other: no more work in parts of these.
constexpr std::int64_t kColumns = 256;
// With so many, an image is not divided by channels.
constexpr std::int64_t kManyImages = 16;
constexpr std::int64_t kPieceMultiplications = std::int64_t{1} << 19;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Channels that have about kColumns taps.
std::int64_t part_channels(const Sizes& s) {
  return std::max<std::int64_t>(kColumns / (std::int64_t{s.window.kernel[0]} * s.window.kernel[1]), 1);
}

// Calls f(image, group, part) for all images, groups and channels: `channels` in a part.
template <class F>
void for_channel_parts(const Sizes& s, std::int64_t images, std::int64_t channels, std::int64_t cost, F&& f) {
  const std::int64_t parts = ceil_div(s.group_channels, channels), count = images * s.groups * parts;
  for_pieces(count, piece_rows(count, cost, kPieceMultiplications), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t c = i % parts * channels;
      f(i / parts / s.groups, i / parts % s.groups, Part{c, std::min(c + channels, s.group_channels), 0, s.out_height});
    }
  });
}

Sizes in_planes(Sizes s) {
  s.channels_last = s.weights_channels_last = false;
  return s;
}
// Contiguous ones. (Of f64 all are.)
template <class T>
const T* plain_images(Scratch& scratch, const Sizes& s, const T* images, std::int64_t pixels, std::int64_t channels) {
  return s.channels_last ? to_planes(scratch, images, s.batch, pixels, channels) : images;
}
template <class T>
const T* plain_weights(Scratch& scratch, const Sizes& s, const T* w) {
  return s.weights_channels_last ? to_planes(scratch, w, s.outputs, s.kernel(), s.group_channels) : w;
}
// Calls compute(result) for a contiguous result [batch, channels, pixels], in scratch memory where `last`.
template <class T, class F>
void into_plain(bool last, std::int64_t batch, std::int64_t channels, std::int64_t pixels, T* result, F&& compute) {
  if (!last) return compute(result);
  Scratch scratch;
  T* planes = scratch.take<T>(batch * channels * pixels);
  compute(planes);
  swap_columns(planes, batch, channels, pixels, result);
}

template <class T>
void forward(const Sizes& s, const T* x, const T* w, const T* bias, T* y, bool relu, PackedWeights* forms) {
  if constexpr (std::is_same_v<T, float>) {
    if (onednn_conv(s, x, w, bias, y, relu, forms)) return;
    if (s.channels_last || s.weights_channels_last) {
      Scratch scratch;
      const T* images = plain_images(scratch, s, x, s.plane(), s.channels);
      const T* weights = plain_weights(scratch, s, w);
      return into_plain(s.channels_last, s.batch, s.outputs, s.out_plane(), y,
                        [&](T* to) { forward<T>(in_planes(s), images, weights, bias, to, relu, nullptr); });
    }
  }
  const std::int64_t rows = ceil_div(4 * kColumns, std::max<std::int64_t>(s.out_width, 1));
  const std::int64_t bands = ceil_div(s.out_height, rows), count = s.batch * s.groups * bands;
  const std::int64_t cost = s.group_outputs * s.taps() * std::min(rows, s.out_height) * s.out_width;
  for_pieces(count, piece_rows(count, cost, kPieceMultiplications), [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch;
    T* columns = s.pointwise() ? nullptr : scratch.take<T>(s.taps() * std::min(rows, s.out_height) * s.out_width);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t n = i / bands / s.groups, g = i / bands % s.groups, row = i % bands * rows;
      const Part part{0, s.group_channels, row, std::min(row + rows, s.out_height)};
      const std::int64_t width = (part.row_end - row) * s.out_width;
      const T* image = x + (n * s.channels + g * s.group_channels) * s.plane();
      T* out = y + (n * s.outputs + g * s.group_outputs) * s.out_plane() + row * s.out_width;
      if (columns) image_to_columns(s, part, image, columns);
      if (bias)
        for (std::int64_t o = 0; o < s.group_outputs; ++o)
          std::fill_n(out + o * s.out_plane(), width, bias[g * s.group_outputs + o]);
      gemm<T>(rows_of(w + g * s.group_outputs * s.taps(), s.group_outputs, s.taps(), s.taps()),
              columns ? rows_of<T>(columns, s.taps(), width, width)
                      : rows_of(image + row * s.out_width, s.taps(), width, s.plane()),
              out, s.out_plane(), T(1), bias ? T(1) : T(0));
      if (relu)
        for (std::int64_t o = 0; o < s.group_outputs; ++o) relu_in_place(out + o * s.out_plane(), width);
    }
  });
}

template <class T>
void grad_input(const Sizes& s, const T* dy, const T* w, T* dx) {
  if constexpr (std::is_same_v<T, float>) {
    if (onednn_conv_grad_input(s, dy, w, dx)) return;
    if (s.channels_last || s.weights_channels_last) {
      Scratch scratch;
      const T* images = plain_images(scratch, s, dy, s.out_plane(), s.outputs);
      const T* weights = plain_weights(scratch, s, w);
      return into_plain(s.channels_last, s.batch, s.channels, s.plane(), dx,
                        [&](T* to) { grad_input<T>(in_planes(s), images, weights, to); });
    }
  }
  const std::int64_t kernel = std::int64_t{s.window.kernel[0]} * s.window.kernel[1];
  const std::int64_t channels = s.batch >= kManyImages ? std::max<std::int64_t>(s.group_channels, 1) : part_channels(s);
  for_channel_parts(
      s, s.batch, channels, s.group_outputs * s.out_plane() * std::min(channels, s.group_channels) * kernel,
      [&](std::int64_t n, std::int64_t g, const Part& part) {
        Scratch scratch;
        const std::int64_t taps = (part.channel_end - part.channel_begin) * kernel;
        T* columns = s.pointwise() ? nullptr : scratch.take<T>(taps * s.out_plane());
        T* image = dx + (n * s.channels + g * s.group_channels) * s.plane();
        T* first = image + part.channel_begin * s.plane();
        const T* out = dy + (n * s.outputs + g * s.group_outputs) * s.out_plane();
        gemm<T>(
            rows_of(w + g * s.group_outputs * s.taps() + part.channel_begin * kernel, s.group_outputs, taps, s.taps())
                .transposed(),
            rows_of(out, s.group_outputs, s.out_plane(), s.out_plane()), columns ? columns : first, s.out_plane(), T(1),
            T(0));
        if (!columns) return;
        std::fill_n(first, (part.channel_end - part.channel_begin) * s.plane(), T(0));
        add_columns_to_image(s, part, columns, image);
      });
}

template <class T>
void grad_weight(const Sizes& s, const T* dy, const T* x, T* dw) {
  if constexpr (std::is_same_v<T, float>) {
    const bool plain = !s.channels_last && !s.weights_channels_last;
    if ((plain && few_channels_grad_weight(s, dy, x, dw)) || onednn_conv_grad_weight(s, dy, x, dw)) return;
    if (!plain) {
      Scratch scratch;
      const T* out = plain_images(scratch, s, dy, s.out_plane(), s.outputs);
      const T* images = plain_images(scratch, s, x, s.plane(), s.channels);
      return into_plain(s.weights_channels_last, s.outputs, s.group_channels, s.kernel(), dw,
                        [&](T* to) { grad_weight<T>(in_planes(s), out, images, to); });
    }
  }
  if (s.batch == 0) std::fill_n(dw, s.outputs * s.taps(), T(0));
  const std::int64_t kernel = std::int64_t{s.window.kernel[0]} * s.window.kernel[1];
  const std::int64_t channels = part_channels(s);
  const std::int64_t cost = s.batch * s.group_outputs * s.out_plane() * std::min(channels, s.group_channels) * kernel;
  for_channel_parts(s, 1, channels, cost, [&](std::int64_t, std::int64_t g, const Part& part) {
    Scratch scratch;
    const std::int64_t taps = (part.channel_end - part.channel_begin) * kernel;
    T* columns = s.pointwise() ? nullptr : scratch.take<T>(taps * s.out_plane());
    for (std::int64_t n = 0; n < s.batch; ++n) {
      const T* image = x + (n * s.channels + g * s.group_channels) * s.plane();
      const T* out = dy + (n * s.outputs + g * s.group_outputs) * s.out_plane();
      if (columns) image_to_columns(s, part, image, columns);
      gemm<T>(rows_of(out, s.group_outputs, s.out_plane(), s.out_plane()),
              rows_of(columns ? static_cast<const T*>(columns) : image + part.channel_begin * s.plane(), taps,
                      s.out_plane(), s.out_plane())
                  .transposed(),
              dw + g * s.group_outputs * s.taps() + part.channel_begin * kernel, s.taps(), T(1), n == 0 ? T(0) : T(1));
    }
  });
}

Sizes sizes_of(const View& x, const View& w, const View& y, const Window2d& window, int groups) {
  Sizes sizes(x.shape, y.shape, window, groups);
  sizes.channels_last = is_channels_last(x, y);
  sizes.weights_channels_last = is_channels_last(w);
  return sizes;
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const Conv2dArgs& args) {
  check_floating(Conv2dArgs::kName, args.x.view.dtype, stream);
  launch(stream, args, [](const Conv2dArgs& a) {
    dispatch_compute(a.x.view.dtype, [&]<class C>(Type<C>) {
      Scratch scratch;
      const Writer<C> y(scratch, a.y);
      forward<C>(sizes_of(a.x.view, a.w.view, a.y.view, a.window, a.groups), read<C>(scratch, a.x),
                 read<C>(scratch, a.w), read<C>(scratch, a.bias), y.data(), a.relu, a.packed.get());
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
      grad_input<C>(sizes_of(a.dx.view, a.w.view, a.dy.view, a.window, a.groups), read<C>(scratch, a.dy),
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
      grad_weight<C>(sizes_of(a.x.view, a.dw.view, a.dy.view, a.window, a.groups), read<C>(scratch, a.dy),
                     read<C>(scratch, a.x), dw.data());
      dw.finish();
    });
  });
}

}  // namespace lockstep::kernels::host
