// Attention by cuDNN: one kernel that keeps the scores in registers and shared memory, on tensor cores (FlashAttention,
// Dao et al., 2022). Described as the operations that it is made of, in the order in which cuDNN knows them:
// https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
#pragma once

#include <array>
#include <optional>

#include "lockstep/kernels/common/attention.h"
#include "lockstep/kernels/cuda/cudnn_engine.h"

namespace lockstep::kernels::cuda {

struct CudnnAttention {
  bool backward;
  DType dtype;  // f16 or bf16; sums are f32
  AttentionSizes sizes;
  bool causal;
  CausalVariant variant;
  std::array<cudnn::Dims, 5> strides;  // of q, k, v, out and dout, in elements

  PlanKey key() const;
  PlanKey family() const;              // forward; the kernels of a gradient are compiled for its sizes
  cudnn::PlanRequest request() const;  // refers to this one
  // Of a gradient: the slopes of all scores, in the type, and each query head's gradients of keys and values. cuDNN
  // pads queries and keys to multiples of 64 or 128 (lockstep-cudnn-attention-plans).
  std::int64_t workspace_bytes() const;
};

// The oldest version whose attention is right for all that goes there: to 9.15 its own frontend gives gradients of keys
// that are no multiple of 128 a padding mask in their stead.
inline constexpr std::size_t kOldestAttention = 91600;

// What goes to cuDNN where it has an engine, by the arguments alone: f16 and bf16, 16 queries and more, heads of
// multiples of 8 elements that begin at 16 bytes, no mask, no lengths, no pages, no dropout, and each query sees a key.
// Gradients in bf16 alone, all three of them: its kernels round the slopes of scores to the type, and f16 has no
// numbers for small ones. Empty: not there.
std::optional<CudnnAttention> cudnn_attention(const AttentionArgs& args);
std::optional<CudnnAttention> cudnn_attention(const AttentionGradArgs& args);

// How much scratch memory the slopes of a gradient may take. What needs more goes in several calls, of some sequences
// or of some heads; what needs more for one head of keys does not go to cuDNN. Tests lower it.
inline std::int64_t most_slope_bytes = std::int64_t{256} << 20;

// Enqueues it, as enqueue_cudnn does. The gradient's sums have a fixed order: its slopes are stored, not added to from
// all sides.
bool attention_by_cudnn(const Stream& stream, const AttentionArgs& args);
bool attention_grad_by_cudnn(const Stream& stream, const AttentionGradArgs& args);

}  // namespace lockstep::kernels::cuda
