// Images in channels_last, [batch, pixels, channels] in memory.
#pragma once

#include "lockstep/kernels/common/image_format.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host {

// to[batch, columns, rows] = from[batch, rows, columns], both without gaps.
template <class T>
void swap_columns(const T* from, std::int64_t batch, std::int64_t rows, std::int64_t columns, T* to) {
  const Shape shape{batch, columns, rows};
  copy_view(View{const_cast<T*>(from), shape, {rows * columns, 1, columns}, dtype_of<T>(), Device::cpu(), true},
            View{to, shape, contiguous_strides(shape), dtype_of<T>(), Device::cpu(), true});
}

// The images of channels_last ones, in planes.
template <class T>
const T* to_planes(Scratch& scratch, const T* images, std::int64_t batch, std::int64_t pixels, std::int64_t channels) {
  T* planes = scratch.take<T>(batch * pixels * channels);
  swap_columns(images, batch, pixels, channels, planes);
  return planes;
}

// Calls f, which for_pieces would else have in it twice.
template <class F, class... Numbers>
[[gnu::noinline]] void call(F& f, Numbers... numbers) {
  f(numbers...);
}

// Calls f(image, first channel, channel after the last) for a few channels of an image at a time: for results in which
// pixels overlap. `cost`: of one channel of an image, in bytes.
template <class F>
void for_channel_blocks(std::int64_t batch, std::int64_t channels, std::int64_t cost, F&& f) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t blocks = (channels + kBlock - 1) / kBlock, count = batch * blocks;
  for_pieces(count, piece_rows(count, cost * std::min(channels, kBlock), kPieceBytes),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t i = begin; i < end; ++i) {
                 const std::int64_t first = i % blocks * kBlock;
                 call(f, i / blocks, first, std::min(first + kBlock, channels));
               }
             });
}

}  // namespace lockstep::kernels::host
