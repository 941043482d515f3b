// Convolutions by cuDNN.
#pragma once

#include <array>

#include "lockstep/kernels/common/conv.h"
#include "lockstep/kernels/cuda/cudnn_engine.h"

namespace lockstep::kernels::cuda {

enum class ConvKind : std::uint8_t { forward, grad_input, grad_weight };

// The arrays x, w and y, or their gradients, all contiguous or all channels_last. Which of them is the result, the kind
// says.
struct ConvProblem {
  ConvKind kind;
  DType dtype;  // f32, f16 or bf16; sums are f32
  ConvSizes sizes;
  bool adds = false;                      // to what the result holds
  bool tf32 = false;                      // f32 on tensor cores
  std::array<int, 3> alignment{1, 1, 1};  // of x, w and y, in bytes

  PlanKey key() const;
  // Refers to this one. Scratch memory: copies of all three arrays in the order that an engine wants, and as much as a
  // product may have.
  cudnn::PlanRequest request() const;
};

// Whether the convolution goes to cuDNN, if there is one: what is no product of planes as they lie, in f32, f16 and
// bf16, up to the sizes that it counts in 32 bits. Not f64, which its engines compute as plain loops.
bool goes_to_cudnn(const ConvSizes& sizes, DType dtype);

// Enqueues it, as enqueue_cudnn does. False, and nothing is done, also where it does not go there.
bool conv_by_cudnn(const Stream& stream, const char* op, ConvKind kind, const ConvSizes& sizes, const View& x,
                   const View& w, const View& y, bool adds = false);

}  // namespace lockstep::kernels::cuda
