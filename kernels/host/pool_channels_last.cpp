// The channels of a pixel are what becomes vector code.
#include "lockstep/kernels/host/pool_channels_last.h"

#include <algorithm>
#include <limits>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/channels_last.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

using C = float;  // in which all dtypes but f64 compute

struct Images {
  std::int64_t batch, channels, height, width, out_height, out_width;
  Window2d window;

  Images(const Shape& x, const Shape& y, const Window2d& w)
      : batch(x[0]), channels(x[1]), height(x[2]), width(x[3]), out_height(y[2]), out_width(y[3]), window(w) {}

  // Of the taps of one output row in one channel, in bytes that would take as long.
  std::int64_t row_cost(std::size_t element_bytes) const {
    return out_width * window.kernel[0] * window.kernel[1] * static_cast<std::int64_t>(element_bytes);
  }
  // Calls f(pixel of the plane) for every tap of a window that is not in the padding, in the order of the plane.
  template <class F>
  void for_each_tap(std::int64_t oh, std::int64_t ow, F&& f) const {
    const Window2d& w = window;
    for (int r = 0; r < w.kernel[0]; ++r) {
      const std::int64_t h = oh * w.stride[0] - w.padding[0] + std::int64_t{r} * w.dilation[0];
      if (h < 0 || h >= height) continue;
      for (int c = 0; c < w.kernel[1]; ++c) {
        const std::int64_t column = ow * w.stride[1] - w.padding[1] + std::int64_t{c} * w.dilation[1];
        if (column >= 0 && column < width) f(h * width + column);
      }
    }
  }
  // Calls f(begin, end) for pieces of all output rows.
  template <class F>
  void for_row_pieces(std::size_t element_bytes, F&& f) const {
    const std::int64_t rows = batch * out_height;
    for_pieces(rows, piece_rows(rows, channels * row_cost(element_bytes), kPieceBytes),
               [&](std::int64_t begin, std::int64_t end) { call(f, begin, end); });
  }
  // What the sum of a window is multiplied with.
  C share(const PoolMean& mean, std::int64_t oh, std::int64_t ow) const {
    if (mean.divisor != 0) return C(1) / static_cast<C>(mean.divisor);
    return C(1) / static_cast<C>(functors::window_elements(window, mean.padding, 0, oh, height) *
                                 functors::window_elements(window, mean.padding, 1, ow, width));
  }
};

// One loop for all of its uses each.
[[gnu::noinline]] void add_scaled(const C* from, C scale, std::int64_t count, C* to) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i] * scale;
}

// Position is as wide as C, so that both fill the same number of vector lanes.
template <class Position>
[[gnu::noinline]] void take_larger(const C* from, Position position, std::int64_t count, C* best, Position* where) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const C value = from[i], before = best[i];
    // As in planes: NaN wins, and the first tap wins even with -infinity.
    const bool wins = (!(value <= before) & (before == before)) | (where[i] < 0);
    best[i] = wins ? value : before;
    where[i] = wins ? position : where[i];
  }
}

// Without the positions.
[[gnu::noinline]] void take_larger(const C* from, std::int64_t count, C* best) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const C value = from[i], before = best[i];
    best[i] = (!(value <= before) & (before == before)) ? value : before;
  }
}

template <class Position>
void max_pool(const MaxPool2dArgs& a) {
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const Writer<C> y(scratch, a.y);
  auto* indices = data<std::int64_t>(a.indices);
  const Images s(a.x.view.shape, a.y.view.shape, a.window);
  s.for_row_pieces(sizeof(C), [&](std::int64_t begin, std::int64_t end) {
    Scratch own;
    auto* where = own.take<Position>(s.channels);
    for (std::int64_t pixel = begin * s.out_width; pixel < end * s.out_width; ++pixel) {
      const std::int64_t row = pixel / s.out_width;
      const C* image = x + row / s.out_height * s.height * s.width * s.channels;
      C* best = y.data() + pixel * s.channels;
      // A window wholly in the padding keeps this.
      std::fill_n(best, s.channels, -std::numeric_limits<C>::infinity());
      if (!indices) {
        s.for_each_tap(row % s.out_height, pixel % s.out_width,
                       [&](std::int64_t tap) { take_larger(image + tap * s.channels, s.channels, best); });
        continue;
      }
      std::fill_n(where, s.channels, Position(-1));
      s.for_each_tap(row % s.out_height, pixel % s.out_width, [&](std::int64_t tap) {
        take_larger(image + tap * s.channels, static_cast<Position>(tap), s.channels, best, where);
      });
      std::int64_t* to = indices + pixel * s.channels;
      for (std::int64_t c = 0; c < s.channels; ++c) to[c] = std::max<Position>(where[c], 0);
    }
  });
  y.finish();
}

}  // namespace

void max_pool_channels_last(const MaxPool2dArgs& a) {
  const Shape& x = a.x.view.shape;
  if (x[2] * x[3] <= std::numeric_limits<std::int32_t>::max()) return max_pool<std::int32_t>(a);
  max_pool<std::int64_t>(a);
}

template <class T>
void max_unpool_channels_last(const MaxUnpool2dArgs& a) {
  const Shape& in = a.in.view.shape;
  const Shape& out = a.out.view.shape;
  const std::int64_t channels = in[1], pixels = in[2] * in[3], out_pixels = out[2] * out[3];
  const auto* indices = data<std::int64_t>(a.indices);
  const T* x = data<T>(a.in);
  T* y = data<T>(a.out);
  const std::int64_t cost = (pixels + out_pixels) * static_cast<std::int64_t>(sizeof(T) + sizeof(std::int64_t));
  for_channel_blocks(in[0], channels, cost, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    T* image = y + n * out_pixels * channels;
    for (std::int64_t p = 0; p < out_pixels; ++p)
      std::fill(image + p * channels + begin, image + p * channels + end, T(0));
    for (std::int64_t p = n * pixels; p < (n + 1) * pixels; ++p)
      for (std::int64_t c = begin; c < end; ++c) {
        T& to = image[indices[p * channels + c] * channels + c];
        to = static_cast<T>(to + x[p * channels + c]);
      }
  });
}

void avg_pool_channels_last(const AvgPool2dArgs& a) {
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const Writer<C> y(scratch, a.y);
  const Images s(a.x.view.shape, a.y.view.shape, a.window);
  s.for_row_pieces(sizeof(C), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pixel = begin * s.out_width; pixel < end * s.out_width; ++pixel) {
      const std::int64_t row = pixel / s.out_width, oh = row % s.out_height, ow = pixel % s.out_width;
      const C* image = x + row / s.out_height * s.height * s.width * s.channels;
      C* sums = y.data() + pixel * s.channels;
      std::fill_n(sums, s.channels, C(0));
      s.for_each_tap(oh, ow, [&](std::int64_t tap) { add_scaled(image + tap * s.channels, C(1), s.channels, sums); });
      const C share = s.share(a.mean, oh, ow);
      for (std::int64_t c = 0; c < s.channels; ++c) sums[c] *= share;
    }
  });
  y.finish();
}

void avg_pool_grad_channels_last(const AvgPool2dGradArgs& a) {
  Scratch scratch;
  const C* dy = read<C>(scratch, a.dy);
  const Writer<C> dx(scratch, a.dx);
  const Images s(a.dx.view.shape, a.dy.view.shape, a.window);
  const std::int64_t pixels = s.height * s.width;
  for_channel_blocks(s.batch, s.channels, s.out_height * s.row_cost(sizeof(C)),
                     [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
                       C* image = dx.data() + n * pixels * s.channels;
                       const C* from = dy + n * s.out_height * s.out_width * s.channels;
                       for (std::int64_t p = 0; p < pixels; ++p)
                         std::fill(image + p * s.channels + begin, image + p * s.channels + end, C(0));
                       for (std::int64_t oh = 0; oh < s.out_height; ++oh)
                         for (std::int64_t ow = 0; ow < s.out_width; ++ow, from += s.channels) {
                           const C share = s.share(a.mean, oh, ow);
                           s.for_each_tap(oh, ow, [&](std::int64_t tap) {
                             add_scaled(from + begin, share, end - begin, image + tap * s.channels + begin);
                           });
                         }
                     });
  dx.finish();
}

template void max_unpool_channels_last<float>(const MaxUnpool2dArgs&);
template void max_unpool_channels_last<Half>(const MaxUnpool2dArgs&);
template void max_unpool_channels_last<BFloat16>(const MaxUnpool2dArgs&);

}  // namespace lockstep::kernels::host
