// What of NCCL's interface is used here, so that building needs no nccl.h. The numbers and layouts are part of NCCL's
// binary interface, unchanged since 2.14; where there is an nccl.h, the fake's sources compare. Private to the library.
#pragma once

#include <cstddef>

#include "lockstep/kernels/dtype.h"
#include "lockstep/parallel/comm/collective.h"

namespace lockstep::nccl {

using Comm = struct ncclComm*;
using NativeStream = void*;  // a cudaStream_t

struct UniqueId {
  char internal[128];
};

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum Op : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

// As it was in 2.14, which later versions still take: `size` and `version` say so.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// bool travels as u8: sum and max are "or" then, product and min "and".
constexpr DataType data_type(DType dtype) {
  constexpr DataType kTypes[kDTypeCount] = {kFloat32, kFloat64, kFloat16, kBfloat16, kInt32,
                                            kInt64,   kUint8,   kUint8,   kInt8};
  return kTypes[static_cast<int>(dtype)];
}
constexpr Op op_of(RedOp op, DType dtype) {
  if (dtype == DType::boolean) return op == RedOp::sum || op == RedOp::max ? kMax : kMin;
  constexpr Op kOps[] = {kSum, kAvg, kMax, kMin, kProd};  // as RedOp has them
  return kOps[static_cast<int>(op)];
}

}  // namespace lockstep::nccl
