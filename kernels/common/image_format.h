// The two ways in which images lie in memory: planes one after another, or channels_last, [batch, pixels, channels].
#pragma once

#include "lockstep/kernels/args.h"

namespace lockstep::kernels {

// Whether the images of a call are channels_last. All are of one format; what could be of both counts as contiguous.
template <class... Views>
bool is_channels_last(const Views&... images) {
  return !(is_contiguous(images.shape, images.strides) && ...);
}

inline Strides image_strides(const Shape& shape, bool channels_last) {
  if (!channels_last) return contiguous_strides(shape);
  return {shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]};
}

// Whether the array lies so: many lie in both ways.
inline bool has_image_format(const View& view, bool channels_last) {
  const Strides strides = image_strides(view.shape, channels_last);
  for (int d = 0; d < view.rank(); ++d)
    if (view.shape[d] > 1 && view.strides[d] != strides[d]) return false;
  return true;
}

}  // namespace lockstep::kernels
