// The library declares what it uses of NCCL itself; here that is compared with NCCL's own header.
#if __has_include(<nccl.h>)
#include "lockstep/parallel/comm/nccl/nccl_abi.h"

#include <nccl.h>

#include <cstddef>

namespace {

using namespace lockstep::nccl;

static_assert(sizeof(Comm) == sizeof(ncclComm_t));
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && alignof(UniqueId) == alignof(ncclUniqueId));
static_assert(sizeof(Result) == sizeof(ncclResult_t) && sizeof(DataType) == sizeof(ncclDataType_t) &&
              sizeof(Op) == sizeof(ncclRedOp_t));

static_assert(int{kSuccess} == ncclSuccess && int{kUnhandledCudaError} == ncclUnhandledCudaError &&
              int{kSystemError} == ncclSystemError && int{kInternalError} == ncclInternalError &&
              int{kInvalidArgument} == ncclInvalidArgument && int{kInvalidUsage} == ncclInvalidUsage &&
              int{kRemoteError} == ncclRemoteError && int{kInProgress} == ncclInProgress);
static_assert(int{kUint8} == ncclUint8 && int{kInt32} == ncclInt32 && int{kInt64} == ncclInt64 &&
              int{kFloat16} == ncclFloat16 && int{kFloat32} == ncclFloat32 && int{kFloat64} == ncclFloat64 &&
              int{kBfloat16} == ncclBfloat16);
static_assert(int{kSum} == ncclSum && int{kProd} == ncclProd && int{kMax} == ncclMax && int{kMin} == ncclMin &&
              int{kAvg} == ncclAvg);

static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size) &&
              offsetof(Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking) && sizeof(Config) <= sizeof(ncclConfig_t));

using lockstep::DType;
using lockstep::RedOp;
static_assert(data_type(DType::f32) == kFloat32 && data_type(DType::f64) == kFloat64 &&
              data_type(DType::f16) == kFloat16 && data_type(DType::bf16) == kBfloat16 &&
              data_type(DType::i32) == kInt32 && data_type(DType::i64) == kInt64 && data_type(DType::u8) == kUint8 &&
              data_type(DType::boolean) == kUint8 && data_type(DType::i8) == kInt8);
static_assert(op_of(RedOp::sum, DType::f32) == kSum && op_of(RedOp::avg, DType::f32) == kAvg &&
              op_of(RedOp::max, DType::f32) == kMax && op_of(RedOp::min, DType::f32) == kMin &&
              op_of(RedOp::product, DType::f32) == kProd && op_of(RedOp::sum, DType::boolean) == kMax &&
              op_of(RedOp::product, DType::boolean) == kMin);

}  // namespace
#endif
