// How a convolution is divided among threads: into smaller ones, of some images, rows, channels or groups.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/kernels/common/conv.h"

namespace lockstep::kernels::host {

enum class ConvKind : std::int64_t { forward, grad_input, grad_weight };

// A convolution of a part of another one's tensors. The padding of its window lies above and to the left of the part.
struct ConvPart {
  ConvSizes sizes;
  std::int64_t x = 0, w = 0, bias = 0, y = 0;  // where it begins in the whole, in elements
  std::int64_t sum = 0;                        // which one of several it is whose results are added up
};

// As the operation relu: NaN stays.
template <class T>
void relu_in_place(T* data, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) data[i] = data[i] < T(0) ? T(0) : data[i];
}

// Whether images in channels_last are computed as they are, not converted to blocks of channels: where there is more of
// them than of the weights. Measured, with oneDNN.
bool conv_in_place(const ConvSizes& sizes);

// One part for small convolutions. For gradients of the weights, the whole is the sum over `sum`, in that order; else
// all sums are 0 and no two parts write the same element.
std::vector<ConvPart> conv_parts(ConvKind kind, const ConvSizes& sizes);

}  // namespace lockstep::kernels::host
