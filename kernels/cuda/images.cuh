// Where the pixels of images lie, in either format.
#pragma once

#include "lockstep/kernels/common/image_format.h"
#include "lockstep/kernels/cuda/launch.cuh"

namespace lockstep::kernels::cuda {

struct ImageArray {
  std::int64_t pixels;                                // of a plane
  std::int64_t image_step, channel_step, pixel_step;  // elements from one to the next

  ImageArray(const Shape& shape, bool channels_last)
      : pixels(shape[2] * shape[3]),
        image_step(shape[1] * pixels),
        channel_step(channels_last ? 1 : pixels),
        pixel_step(channels_last ? shape[1] : 1) {}
  // The first pixel of a channel.
  LOCKSTEP_HD std::int64_t begin(std::int64_t image, std::int64_t channel) const {
    return image * image_step + channel * channel_step;
  }
};

struct ImagePlace {
  std::int64_t image, channel, row, column;
};

// Goes through an array as it lies in memory.
struct ImageWalk {
  Splitter inner, middle, outer;
  bool channels_last;

  ImageWalk(const Shape& shape, bool last)
      : inner(shape[last ? 1 : 3], element_count(shape)),
        middle(shape[last ? 3 : 2], element_count(shape)),
        outer(shape[last ? 2 : 1], element_count(shape)),
        channels_last(last) {}
  LOCKSTEP_HD ImagePlace at(std::int64_t position) const {
    std::int64_t a, b, c;
    const std::int64_t image = outer.split(middle.split(inner.split(position, &a), &b), &c);
    return channels_last ? ImagePlace{image, a, c, b} : ImagePlace{image, c, b, a};
  }
};

}  // namespace lockstep::kernels::cuda
