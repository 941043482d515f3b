// What a device has for cuDNN: a handle, and the plans of the calls that there were. Private to the library.
#pragma once

#include <span>
#include <vector>

#include "lockstep/kernels/cuda/cudnn_plan.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::kernels::cuda {

// All that the choice of an engine depends on: the operation, sizes, strides and alignments.
using PlanKey = std::vector<std::int64_t>;

struct CudnnCall {
  const char* op;
  const char *name, *tensor_core_name;  // in a trace
  PlanKey key;
  // Calls of one family differ in sizes alone, and their plans share compiled kernels. Empty: none does.
  PlanKey family;
  std::size_t weight;  // of its plan, in plans of convolutions without a bias
  cudnn::PlanRequest request;
  std::span<const cudnn::Operand> operands;
};

// Enqueues it. False, and nothing is done, where cuDNN does not compute it: there is none, or no engine, or the GPU is
// none of its own. Throws DeviceError where cuDNN fails. The plan is made at the first call with its key and kept.
bool enqueue_cudnn(const Stream& stream, const CudnnCall& call);

// How many plans of convolutions without a bias a device keeps, or others of their weight; those in graphs beyond. They
// have 42 KB of host memory each in cuDNN 9.19. Tests lower it.
inline std::size_t most_cudnn_plans = 4096;

// At most 16: engines gain nothing by more.
int alignment_of(const void* data);

// How many handles and descriptions of cuDNN the device has: they are kept for the calls to come.
int retained_cudnn(Device device);

}  // namespace lockstep::kernels::cuda
