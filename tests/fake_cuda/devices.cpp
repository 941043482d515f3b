// Devices, contexts, peers and errors.
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

constexpr int kSharedPerBlock = 48 << 10;

bool exists(const State& machine, int device) {
  return device >= 0 && device < static_cast<int>(machine.devices.size());
}

bool reaches(const State& machine, int from, int to) {
  const auto& denied = machine.options.no_peer;
  return from != to && std::find(denied.begin(), denied.end(), std::pair(from, to)) == denied.end();
}

// As on an H100, and on a V100 of a mesh.
int copy_engines(const State& machine) { return machine.options.nvlinks.empty() ? 3 : 6; }

cudaError_t last_error_of(State& machine, ThreadState& thread) {
  thread.looked_at = true;
  std::lock_guard lock(machine.mutex);
  const bool works =
      exists(machine, thread.current) && machine.devices[static_cast<std::size_t>(thread.current)].has_context;
  const cudaError_t broken = works ? machine.broken_by(thread.current) : cudaSuccess;
  return broken != cudaSuccess ? broken : thread.last;
}

// cuDevicePrimaryCtxGetState
CUresult context_state(CUdevice device, unsigned int* flags, int* active) {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  if (!exists(machine, device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = machine.devices[static_cast<std::size_t>(device)].has_context;
  return CUDA_SUCCESS;
}

// A primary context is known by its device.
CUcontext primary_of(State& machine, int device) {
  return reinterpret_cast<CUcontext>(&machine.devices[static_cast<std::size_t>(device)]);
}

// cuDevicePrimaryCtxRetain
CUresult retain_context(CUcontext* context, CUdevice device) {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  if (!exists(machine, device)) return CUDA_ERROR_INVALID_DEVICE;
  machine.devices[static_cast<std::size_t>(device)].has_context = true;
  *context = primary_of(machine, device);
  return CUDA_SUCCESS;
}

// cuCtxGetCurrent
CUresult current_context(CUcontext* context) {
  State& machine = state();
  const ThreadState& thread = this_thread(machine);
  *context = thread.foreign ? reinterpret_cast<CUcontext>(const_cast<ForeignContext*>(thread.foreign))
             : thread.bound ? primary_of(machine, thread.current)
                            : nullptr;
  return CUDA_SUCCESS;
}

// cuCtxSetCurrent
CUresult set_context(CUcontext context) {
  State& machine = state();
  ThreadState& thread = this_thread(machine);
  thread.foreign = nullptr;
  thread.bound = context != nullptr;
  for (int i = 0; i < machine.options.devices; ++i) {
    if (context == primary_of(machine, i)) return thread.current = i, CUDA_SUCCESS;
  }
  if (!context) return CUDA_SUCCESS;
  thread.foreign = reinterpret_cast<const ForeignContext*>(context);
  thread.current = thread.foreign->device();
  return CUDA_SUCCESS;
}

struct DriverFunction {
  const char* name;
  void* function;
};
const DriverFunction kDriver[] = {{"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(context_state)},
                                  {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain_context)},
                                  {"cuCtxGetCurrent", reinterpret_cast<void*>(current_context)},
                                  {"cuCtxSetCurrent", reinterpret_cast<void*>(set_context)}};

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT: this file speaks the other side's language

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return run_call("cudaGetDeviceCount", nothing, [&](Call& call) {
    *count = call.machine.options.devices;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return run_call("cudaGetDevice", nothing, [&](Call& call) {
    *device = call.thread.current;
    return cudaSuccess;
  });
}

// Since CUDA 12 it makes the device's context.
cudaError_t cudaSetDevice(int device) {
  return run_call("cudaSetDevice", nothing, device, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    if (!exists(call.machine, device)) return cudaErrorInvalidDevice;
    if (const cudaError_t broken = call.machine.broken_by(device); broken != cudaSuccess) return broken;
    call.thread.current = device;
    call.thread.foreign = nullptr;
    call.thread.bound = true;
    make_context(call, device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return run_call("cudaDeviceGetAttribute", nothing, [&](Call& call) {
    if (!exists(call.machine, device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = call.machine.devices[static_cast<std::size_t>(device)].multiprocessors;
        return cudaSuccess;
      case cudaDevAttrAsyncEngineCount:
        *value = copy_engines(call.machine);
        return cudaSuccess;
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2048;
        return cudaSuccess;
      case cudaDevAttrMaxBlocksPerMultiprocessor:
        *value = 32;
        return cudaSuccess;
      case cudaDevAttrMaxBlockDimX:
      case cudaDevAttrMaxBlockDimY:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrMaxBlockDimZ:
        *value = 64;
        return cudaSuccess;
      case cudaDevAttrMaxGridDimX:
        *value = 2147483647;
        return cudaSuccess;
      case cudaDevAttrMaxGridDimY:
      case cudaDevAttrMaxGridDimZ:
        *value = 65535;
        return cudaSuccess;
      case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = kSharedPerBlock;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = call.machine.options.shared_bytes;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = 228 << 10;
        return cudaSuccess;
      case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrMaxRegistersPerBlock:
      case cudaDevAttrMaxRegistersPerMultiprocessor:
        *value = 65536;
        return cudaSuccess;
      case cudaDevAttrL2CacheSize:
        *value = 50 << 20;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrCooperativeLaunch:
      case cudaDevAttrConcurrentKernels:
        *value = 1;
        return cudaSuccess;
      case cudaDevAttrMemoryPoolsSupported:
        *value = call.machine.options.pools;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return run_call("cudaGetDeviceProperties", nothing, [&](Call& call) {
    if (!exists(call.machine, device)) return cudaErrorInvalidDevice;
    const DeviceState& found = call.machine.devices[static_cast<std::size_t>(device)];
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "Fake GPU %d", found.hardware);
    properties->pciBusID = found.hardware + 1;
    properties->uuid.bytes[0] = static_cast<char>(found.hardware + 1);
    properties->totalGlobalMem = found.memory_bytes;
    properties->multiProcessorCount = found.multiprocessors;
    properties->major = 9;
    properties->warpSize = 32;
    properties->sharedMemPerBlock = kSharedPerBlock;
    properties->sharedMemPerBlockOptin = static_cast<std::size_t>(call.machine.options.shared_bytes);
    properties->sharedMemPerMultiprocessor = 228 << 10;
    properties->reservedSharedMemPerBlock = 1024;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->l2CacheSize = 50 << 20;
    const int block[] = {1024, 1024, 64}, grid[] = {2147483647, 65535, 65535};
    std::memcpy(properties->maxThreadsDim, block, sizeof block);
    std::memcpy(properties->maxGridSize, grid, sizeof grid);
    properties->unifiedAddressing = properties->concurrentKernels = properties->canMapHostMemory = 1;
    properties->asyncEngineCount = copy_engines(call.machine);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* possible, int from, int to) {
  return run_call("cudaDeviceCanAccessPeer", nothing, from, [&](Call& call) {
    if (!exists(call.machine, from) || !exists(call.machine, to)) return cudaErrorInvalidDevice;
    *possible = reaches(call.machine, from, to);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  return run_call("cudaDeviceGetP2PAttribute", nothing, from, [&](Call& call) {
    if (!exists(call.machine, from) || !exists(call.machine, to) || from == to) return cudaErrorInvalidDevice;
    const NvLink* line = nullptr;
    int slowest = -1;
    for (const NvLink& each : call.machine.options.nvlinks) {
      slowest = std::max(slowest, each.rank);
      if (std::minmax(each.a, each.b) == std::minmax(from, to)) line = &each;
    }
    switch (attribute) {
      case cudaDevP2PAttrPerformanceRank:
        *value = line ? line->rank : slowest + 1;
        return cudaSuccess;
      case cudaDevP2PAttrAccessSupported:
        *value = reaches(call.machine, from, to);
        return cudaSuccess;
      case cudaDevP2PAttrNativeAtomicSupported:
        *value = line != nullptr;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return run_call("cudaDeviceEnablePeerAccess", context | raw, [&](Call& call) {
    const int from = call.thread.current;
    std::lock_guard lock(call.machine.mutex);
    if (flags != 0) return cudaErrorInvalidValue;
    if (!exists(call.machine, peer) || peer == from) return cudaErrorInvalidDevice;
    if (!reaches(call.machine, from, peer)) return cudaErrorPeerAccessUnsupported;
    make_context(call, peer);
    bool& enabled = call.machine.devices[static_cast<std::size_t>(from)].peers[static_cast<std::size_t>(peer)];
    return std::exchange(enabled, true) ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
  });
}

// An error stays the last one until it is asked for here; those that break the device stay for ever.
cudaError_t cudaGetLastError() {
  State& machine = state();
  ThreadState& thread = this_thread(machine);
  const cudaError_t seen = last_error_of(machine, thread);
  thread.last = cudaSuccess;
  return seen;
}

cudaError_t cudaPeekAtLastError() {
  State& machine = state();
  return last_error_of(machine, this_thread(machine));
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define LOCKSTEP_NAME(name) \
  case name:                \
    return #name
    LOCKSTEP_NAME(cudaSuccess);
    LOCKSTEP_NAME(cudaErrorInvalidValue);
    LOCKSTEP_NAME(cudaErrorMemoryAllocation);
    LOCKSTEP_NAME(cudaErrorInitializationError);
    LOCKSTEP_NAME(cudaErrorInvalidConfiguration);
    LOCKSTEP_NAME(cudaErrorInsufficientDriver);
    LOCKSTEP_NAME(cudaErrorInvalidDeviceFunction);
    LOCKSTEP_NAME(cudaErrorNoDevice);
    LOCKSTEP_NAME(cudaErrorInvalidDevice);
    LOCKSTEP_NAME(cudaErrorECCUncorrectable);
    LOCKSTEP_NAME(cudaErrorPeerAccessUnsupported);
    LOCKSTEP_NAME(cudaErrorInvalidResourceHandle);
    LOCKSTEP_NAME(cudaErrorNotReady);
    LOCKSTEP_NAME(cudaErrorIllegalAddress);
    LOCKSTEP_NAME(cudaErrorLaunchOutOfResources);
    LOCKSTEP_NAME(cudaErrorLaunchTimeout);
    LOCKSTEP_NAME(cudaErrorPeerAccessAlreadyEnabled);
    LOCKSTEP_NAME(cudaErrorLaunchFailure);
    LOCKSTEP_NAME(cudaErrorNotPermitted);
    LOCKSTEP_NAME(cudaErrorNotSupported);
    LOCKSTEP_NAME(cudaErrorStreamCaptureUnsupported);
    LOCKSTEP_NAME(cudaErrorStreamCaptureInvalidated);
    LOCKSTEP_NAME(cudaErrorUnknown);
#undef LOCKSTEP_NAME
    default:
      return "cudaErrorOther";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an error of the fake";
  }
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_of(state());
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return run_call("cudaGetDriverEntryPointByVersion", nothing, [&](Call&) {
    const auto* known = std::find_if(std::begin(kDriver), std::end(kDriver),
                                     [&](const DriverFunction& each) { return std::strcmp(symbol, each.name) == 0; });
    *function = known != std::end(kDriver) ? known->function : nullptr;
    if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

}  // extern "C"
