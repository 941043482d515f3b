// What the normalisations share: pairs of sums, and sums over the channels of [batch, channels, length].
#pragma once

#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {

struct Two {
  double first, second;
};
struct AddTwo {
  using Accumulator = Two;
  __device__ Two start() const { return {0, 0}; }
  __device__ Two join(Two a, Two b) const { return {a.first + b.first, a.second + b.second}; }
};

template <class T>
__device__ double number(T value) {
  return static_cast<double>(widen(value));
}
template <class T>
__device__ double number(const T* values, std::int64_t at) {
  return number(values[at]);
}
template <class T>
__device__ T rounded(double value) {
  return narrow<T>(static_cast<Compute<T>>(value));
}

// As a fold: results are channels, elements are the positions of a channel in all images.
template <class T>
FoldShape channel_shape(const Shape& x, bool* lanes_adjacent) {
  const std::int64_t batch = x[0], channels = x[1], length = x[2];
  LoopNest<2> kept;
  if (channels != 1) kept.rank = 1, kept.sizes[0] = channels, kept.strides[0][0] = length, kept.strides[0][1] = 1;
  kept.empty = channels == 0;
  LoopNest<1> reduced;
  const auto add = [&](std::int64_t size, std::int64_t stride) {
    reduced.empty |= size == 0;
    if (size == 1) return;
    reduced.sizes[reduced.rank] = size;
    reduced.strides[reduced.rank++][0] = stride;
  };
  add(length, 1);
  add(batch, channels * length);
  FoldShape shape;
  shape.kept = Offsets<2>(kept);
  shape.reduced = Offsets<1>(reduced);
  shape.results = shape.kept.count;
  shape.elements = shape.reduced.count;
  *lanes_adjacent = length >= 16 || channels == 1;
  shape.packs = length == 1 || (*lanes_adjacent && length % kPack<T> == 0);
  return shape;
}

}  // namespace lockstep::kernels::cuda
