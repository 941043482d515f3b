// Convolutions by cuDNN: which engine computes one, chosen by sizes alone, and the call. cuDNN's graph API:
// https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "lockstep/kernels/common/conv.h"
#include "lockstep/kernels/cuda/cudnn.h"
#include "lockstep/runtime/stream/stream.h"

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

  // All that the choice of an engine depends on.
  using Key = std::array<std::int64_t, 23>;
  Key key() const;
};

// Bytes of scratch memory that an engine may ask for: copies of all three arrays in the order that it wants, and as
// much as a product may have. So the choice depends on sizes, never on how much memory is free.
std::int64_t conv_workspace_limit(const ConvProblem& problem);

// For which GPU a plan is made: the one of a handle, or one that is described (cuDNN 9.8), which need not be there.
struct ConvTarget {
  cudnn::Handle handle = nullptr;
  cudnn::Descriptor device_properties = nullptr;
};

// A convolution as one engine of cuDNN computes it.
class ConvPlan {
 public:
  // The first engine in cuDNN's own order that has a plan within the limit and none of these notes: sums that depend on
  // how blocks take turns; inputs or sums that are rounded to fewer bits; transforms (Winograd, FFT), which carry an
  // infinity or NaN to windows that do not hold it; tensor cores for f32 where TF32 is not asked for. Null where there
  // is none.
  static std::unique_ptr<ConvPlan> make(const cudnn::Library& library, const ConvTarget& target, Device device,
                                        const char* op, const ConvProblem& problem);
  ConvPlan(const ConvPlan&) = delete;
  ConvPlan& operator=(const ConvPlan&) = delete;
  ~ConvPlan();

  std::size_t workspace_bytes() const { return static_cast<std::size_t>(workspace_bytes_); }
  std::int64_t engine() const { return engine_; }  // cuDNN's number, of this version
  bool tensor_cores() const { return tensor_cores_; }
  std::size_t descriptors() const { return descriptors_.size(); }
  // On the stream of the handle.
  void run(cudnn::Handle handle, Device device, const char* op, const void* x, const void* w, const void* y,
           void* workspace) const;

  bool has_run = false;   // its code is loaded
  bool recorded = false;  // graphs may hold its code

 private:
  explicit ConvPlan(const cudnn::Library& library) : library_(library) {}

  const cudnn::Library& library_;
  std::vector<cudnn::Descriptor> descriptors_;  // what the plan is made of
  cudnn::Descriptor plan_ = nullptr;
  std::int64_t workspace_bytes_ = 0, engine_ = -1;
  bool tensor_cores_ = false;
};

// Whether the convolution goes to cuDNN, if there is one: what is no product of planes as they lie, in f32, f16 and
// bf16, up to the sizes that it counts in 32 bits. Not f64, which its engines compute as plain loops.
bool goes_to_cudnn(const ConvSizes& sizes, DType dtype);

// Enqueues it. False, and nothing is done, where it does not go there, or cuDNN does not compute it: there is none, or
// no engine, or the GPU is none of its own. Throws DeviceError where cuDNN fails.
bool conv_by_cudnn(const Stream& stream, const char* op, ConvKind kind, const ConvSizes& sizes, const View& x,
                   const View& w, const View& y, bool adds = false);

// How many plans a device keeps, at 42 KB of host memory each in cuDNN 9.19; those in graphs beyond. Tests lower it.
inline std::size_t most_conv_plans = 4096;

// How many handles and descriptions of cuDNN the device has: they are kept for the convolutions to come.
int retained_cudnn(Device device);

}  // namespace lockstep::kernels::cuda
