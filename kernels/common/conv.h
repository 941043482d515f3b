// The sizes of a convolution, as its kernels want them.
#pragma once

#include <algorithm>

#include "lockstep/kernels/args.h"

namespace lockstep::kernels {

struct ConvSizes {
  std::int64_t batch, channels, height, width;  // of x
  std::int64_t outputs, out_height, out_width;  // of y
  std::int64_t groups, group_channels, group_outputs;
  Window2d window;
  bool channels_last = false, weights_channels_last = false;  // how x and y lie in memory, and how w does

  ConvSizes(const Shape& x, const Shape& y, const Window2d& w, int group_count)
      : batch(x[0]),
        channels(x[1]),
        height(x[2]),
        width(x[3]),
        outputs(y[1]),
        out_height(y[2]),
        out_width(y[3]),
        groups(group_count),
        group_channels(x[1] / group_count),
        group_outputs(y[1] / group_count),
        window(w) {}

  std::int64_t plane() const { return height * width; }
  std::int64_t out_plane() const { return out_height * out_width; }
  std::int64_t kernel() const { return std::int64_t{window.kernel[0]} * window.kernel[1]; }
  std::int64_t taps() const { return group_channels * kernel(); }
  // Elements from one channel, or row, of x or y to the next.
  std::int64_t channel_step() const { return channels_last ? 1 : plane(); }
  std::int64_t out_channel_step() const { return channels_last ? 1 : out_plane(); }
  std::int64_t row_step() const { return channels_last ? width * channels : width; }
  std::int64_t out_row_step() const { return channels_last ? out_width * outputs : out_width; }
  // A column matrix would be the image itself.
  bool pointwise() const {
    const std::array<int, 2> one{1, 1}, zero{0, 0};
    return window.kernel == one && window.stride == one && window.padding == zero;
  }
};

// The part [begin, end) of an output row whose tap at `offset` falls inside [0, size).
struct Range {
  std::int64_t begin, end;
};
inline Range inside(std::int64_t offset, std::int64_t stride, std::int64_t size, std::int64_t out_size) {
  const std::int64_t begin = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const std::int64_t end = offset >= size ? 0 : (size - 1 - offset) / stride + 1;
  return {std::min(begin, out_size), std::max(std::min(begin, out_size), std::min(end, out_size))};
}

}  // namespace lockstep::kernels
