// The one way to call the CUDA runtime: LOCKSTEP_CUDA(device, cudaXxx(…)) throws what the call returns. Private to the
// library.
#pragma once

#include <cuda_runtime_api.h>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"

namespace lockstep::cuda {

// Throws DeviceError "[cudaXxx] expected success, got cudaErrorYyy (text)" for anything but success; an error after
// which the context is of no use marks the device as lost. `call` is the text of the call.
void check(cudaError_t result, Device device, const char* call);

// What happened to the device when it was lost: later calls fail with the same words, at once. Null while it works.
// All logical devices of one GPU are lost together.
const char* lost(Device device) noexcept;
void throw_if_lost(Device device);

}  // namespace lockstep::cuda

#define LOCKSTEP_CUDA(device, call) ::lockstep::cuda::check((call), (device), #call)
