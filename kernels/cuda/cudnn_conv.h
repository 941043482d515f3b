// Convolutions by cuDNN.
#pragma once

#include <array>

#include "lockstep/kernels/common/conv.h"
#include "lockstep/kernels/cuda/cudnn_engine.h"

namespace lockstep::kernels::cuda {

enum class ConvKind : std::uint8_t { forward, grad_input, grad_weight };

// The arrays x, w and y, or their gradients, all contiguous or all channels_last. Which of them is the result, the kind
// says. Forward may have a bias, of one element for each output channel, which is added before the sum is rounded.
struct ConvProblem {
  ConvKind kind;
  DType dtype;  // f32, f16 or bf16; sums are f32
  ConvSizes sizes;
  bool adds = false;  // to what the result holds
  bool bias = false;
  bool tf32 = false;                         // f32 on tensor cores
  std::array<int, 4> alignment{1, 1, 1, 1};  // of x, w, y and the bias, in bytes

  PlanKey key() const;
  // Refers to this one. Scratch memory: copies of all three arrays in the order that an engine wants, and as much as a
  // product may have. Where tensor cores are allowed there is no plan with a bias whose first engine does
  // without: there are sizes for which cuDNN has the convolution alone on them, and both only as loops.
  cudnn::PlanRequest request() const;
};

// Whether the convolution goes to cuDNN, if there is one: what is no product of planes as they lie, in f32, f16 and
// bf16, up to the sizes that it counts in 32 bits. Not f64, which its engines compute as plain loops.
bool goes_to_cudnn(const ConvSizes& sizes, DType dtype);

// Enqueues it, as enqueue_cudnn does. False, and nothing is done, also where it does not go there.
bool conv_by_cudnn(const Stream& stream, const char* op, ConvKind kind, const ConvSizes& sizes, const View& x,
                   const View& w, const View& y, bool adds = false);

// Forward and the bias in one kernel. False also where an array does not begin at 16 bytes: of those cuDNN 9.19 names
// engines for both that it does not name for the convolution alone, as if it did not look at where they begin.
bool conv_and_bias_by_cudnn(const Stream& stream, const char* op, const ConvSizes& sizes, const View& x, const View& w,
                            const View& bias, const View& y);

}  // namespace lockstep::kernels::cuda
