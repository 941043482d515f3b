// What the kernels of convolution share.
#pragma once

#include "lockstep/kernels/common/conv.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/cuda/positions.cuh"

namespace lockstep::kernels::cuda {

// Calls f(tap, position in the plane of x) for every tap of the window at (oh, ow) that is not in the padding.
template <class F>
LOCKSTEP_HD void for_each_tap(const ConvSizes& s, std::int64_t oh, std::int64_t ow, F&& f) {
  const Window2d& w = s.window;
  int tap = 0;
  for (int r = 0; r < w.kernel[0]; ++r) {
    const std::int64_t h = oh * w.stride[0] - w.padding[0] + static_cast<std::int64_t>(r) * w.dilation[0];
    for (int c = 0; c < w.kernel[1]; ++c, ++tap) {
      const std::int64_t at = ow * w.stride[1] - w.padding[1] + static_cast<std::int64_t>(c) * w.dilation[1];
      if (h >= 0 && h < s.height && at >= 0 && at < s.width) f(tap, h * s.width + at);
    }
  }
}

// With what splits places in the padded plane of x into windows.
struct Windows : ConvSizes {
  Splitter by_stride[2];

  explicit Windows(const ConvSizes& s)
      : ConvSizes(s),
        by_stride{Splitter(s.window.stride[0], s.height + s.window.padding[0]),
                  Splitter(s.window.stride[1], s.width + s.window.padding[1])} {}
  // The window that begins at `place` of dimension d, of `count`, or -1.
  LOCKSTEP_HD std::int64_t beginning(int d, std::int64_t place, std::int64_t count) const {
    std::int64_t rest;
    if (place < 0) return -1;
    const std::int64_t at = by_stride[d].split(place, &rest);
    return rest == 0 && at < count ? at : -1;
  }
};

// Calls f(tap, position in the plane of y) for every window that has the element (h, column) of x.
template <class F>
LOCKSTEP_HD void for_each_window(const Windows& s, std::int64_t h, std::int64_t column, F&& f) {
  const Window2d& w = s.window;
  int tap = 0;
  for (int r = 0; r < w.kernel[0]; ++r) {
    const std::int64_t oh =
        s.beginning(0, h + w.padding[0] - static_cast<std::int64_t>(r) * w.dilation[0], s.out_height);
    for (int c = 0; c < w.kernel[1]; ++c, ++tap) {
      const std::int64_t ow =
          s.beginning(1, column + w.padding[1] - static_cast<std::int64_t>(c) * w.dilation[1], s.out_width);
      if (oh >= 0 && ow >= 0) f(tap, oh * s.out_width + ow);
    }
  }
}

// Each group has one input channel: a matrix product would have nothing to sum over but the window.
inline bool is_depthwise(const ConvSizes& s) { return s.groups > 1 && s.group_channels == 1; }

// How much scratch memory the columns of a convolution may take: so little that the product finds them in the cache of
// the device (50 to 60 MB of an H100 or H200) beside what it writes. Tests lower it, to see images cut.
inline std::int64_t columns_bytes = std::int64_t{20} << 20;

void depthwise(const Stream& stream, const Conv2dArgs& args, const ConvSizes& sizes);
void depthwise_grad_input(const Stream& stream, const Conv2dGradInputArgs& args, const ConvSizes& sizes);
void depthwise_grad_weight(const Stream& stream, const Conv2dGradWeightArgs& args, const ConvSizes& sizes);

}  // namespace lockstep::kernels::cuda
