// Order between Lockstep's streams and those of other libraries on the same CUDA devices. A native stream is a
// cudaStream_t of the device's GPU, or what CUDA has for its default ones: 1 (legacy) and 2 (per thread). It must live
// as long as the call; nothing here blocks. All of it throws NotSupported for other devices than CUDA's,
// InvalidArgument for absent ones, and DeviceError.
#pragma once

#include <optional>

#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

// The cudaStream_t behind the stream, for other libraries to enqueue on; it lives as long as the process.
LOCKSTEP_API void* native_stream(const Stream& stream);
// Later work of `stream` runs after what is on `native` now.
LOCKSTEP_API void wait_for_native(const Stream& stream, void* native);
// Later work on `native` runs after what is on `stream` now.
LOCKSTEP_API void native_waits_for(void* native, const Stream& stream);

// The GPU of a CUDA device as CUDA numbers them in this process, and the first logical device on a GPU, if any.
LOCKSTEP_API int native_ordinal(Device device);
LOCKSTEP_API std::optional<Device> device_at_ordinal(int ordinal);

}  // namespace lockstep
