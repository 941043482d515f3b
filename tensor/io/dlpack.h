// Tensors that other libraries own, and tensors for other libraries, without a copy: DLPack 1.x
// (https://dmlc.github.io/dlpack/latest/c_api.html) with the ordering of the array API standard
// (https://data-apis.org/array-api/latest/design_topics/data_interchange.html).
//
// The structs have the layout of dlpack.h and names of their own, so that a program may include both and cast.
#pragma once

#include <cstdint>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

namespace dlpack {

struct Version {
  std::uint32_t major, minor;
};
inline constexpr Version kVersion{1, 0};

enum DeviceCode : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct DeviceId {
  std::int32_t type, id;
};
struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct TensorView {  // DLTensor
  void* data;
  DeviceId device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // elements; null: row-major
  std::uint64_t byte_offset;
};
struct ManagedTensor {  // DLManagedTensor
  TensorView tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor* self);
};
inline constexpr std::uint64_t kReadOnly = 1, kCopied = 2;  // flags
struct ManagedTensorVersioned {                             // DLManagedTensorVersioned
  Version version;
  void* manager_context;
  void (*deleter)(ManagedTensorVersioned* self);
  std::uint64_t flags;
  TensorView tensor;
};

}  // namespace dlpack

struct DLPackExportOptions {
  // The stream of the tensor's device on which the consumer will use the elements: it waits for what is on the current
  // stream now, the host does not, and the memory outlives what is on it when the deleter runs. Null: the consumer uses
  // them from the host, or as it likes, and is done with them when the deleter runs; this call blocks until they are
  // computed.
  Stream stream = {};
  // For a CUDA tensor, instead: the consumer's own stream, as the array API hands it over (a cudaStream_t, or 1 and 2
  // for the default ones; see runtime/cuda/native_stream.h). It must live until the deleter has run.
  void* native_stream = nullptr;
  // Tells the consumer not to write. Versioned capsules only.
  bool read_only = false;
  Milliseconds timeout = kDefaultTimeout;  // of the wait
};

// The tensor's own elements for another library, which calls `deleter` once, from any thread; until then they stay.
// Views keep their strides; a graph stays behind. cpu and host devices are kDLCPU (a host device's memory can be read
// by the host), CUDA devices kDLCUDA with the ordinal of their GPU. Throws InvalidArgument for an undefined tensor or a
// stream of another device, NotSupported for read_only without a version, TimeoutError, DeviceError.
//
// What the consumer writes is not seen by version counters: work saved for backward and mirrors of parameters do not
// notice. For the elements of a parameter (its home tensor) the deleter counts as a write, unless read_only; call
// mark_changed() after writes that are to be seen before.
LOCKSTEP_API dlpack::ManagedTensorVersioned* to_dlpack(const Tensor& tensor, const DLPackExportOptions& options = {});
LOCKSTEP_API dlpack::ManagedTensor* to_dlpack_unversioned(const Tensor& tensor,
                                                          const DLPackExportOptions& options = {});

struct DLPackImportOptions {
  // Of an imported tensor that is read-only there is a copy, as Lockstep has no tensors that cannot be written to; with
  // this it is an alias that the caller promises not to write to.
  bool alias_read_only = false;
  // Of elements on a CUDA device: the native stream by which their owner orders what it does with the memory. The
  // device's current stream waits for what is on it, and it waits for the last work on the tensor before the deleter is
  // called; it must live until then. Null: the elements are ready for the current stream (the producer was told of it:
  // native_stream(current_stream(device))), and whoever drops the last tensor waits for the work on it.
  void* native_stream = nullptr;
};

// A tensor over the elements of another library's tensor: on cpu (kDLCPU, kDLCUDAHost), where they must be ready for
// the host to use (the producer sees to that), or on the first logical device of a GPU (kDLCUDA). Takes ownership:
// `deleter`, which may be null, is called when the last tensor is gone, in the thread that drops it, or at once after a
// copy. What throws leaves the capsule to the caller: InvalidArgument for a struct that makes no sense; NotSupported
// for another major version (nothing but its deleter may be used then), other devices, dtypes that Lockstep does not
// have, vectors (lanes), negative strides, elements that are not aligned, more than 8 dimensions.
LOCKSTEP_API Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed, const DLPackImportOptions& options = {});
LOCKSTEP_API Tensor from_dlpack(dlpack::ManagedTensor* managed, const DLPackImportOptions& options = {});

}  // namespace lockstep
