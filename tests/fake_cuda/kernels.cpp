// Kernels: what nvcc's stubs register and launch. A launch is checked and computes nothing.
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <algorithm>
#include <cstring>

#include "fake_cuda/fatbin.h"
#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kSharedPerBlock = 48 << 10;

struct Functions {
  std::mutex mutex;
  std::map<const void*, Kernel> kernels;
};
Functions& functions() {
  static auto* const made = new Functions;
  return *made;
}

struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Launch> pushed;

// On the current device, loading its code there. Under the mutex.
LoadedKernel& load(const Call& call, const Kernel& kernel) {
  LoadedKernel& found = call.machine.devices[static_cast<std::size_t>(call.thread.current)].kernels[&kernel];
  if (!std::exchange(found.loaded, true) && call.machine.collectives > 0) {
    (void)call.fail(Rule::during_collective, lockstep::cat("the first use of ", kernel.name, " on device ",
                                                           call.thread.current, " loads its code"));
  }
  return found;
}

bool set_on_another_device(const State& machine, const Kernel& kernel, std::size_t shared_bytes) {
  return std::any_of(machine.devices.begin(), machine.devices.end(), [&](const DeviceState& device) {
    const auto found = device.kernels.find(&kernel);
    return found != device.kernels.end() &&
           static_cast<std::size_t>(found->second.max_dynamic_shared_bytes) >= shared_bytes;
  });
}

cudaError_t check_launch(Call& call, const Kernel* kernel, const Launch& launch) {
  State& machine = call.machine;
  std::lock_guard lock(machine.mutex);
  Stream* stream = find_stream(call, launch.stream);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (!kernel) return call.fail(Rule::bad_launch, "not a kernel of this program", cudaErrorInvalidDeviceFunction);
  if (stream->device != call.thread.current) {
    return call.fail(Rule::wrong_device,
                     lockstep::cat(kernel->name, " on a stream of device ", stream->device, " with device ",
                                   call.thread.current, " current"),
                     cudaErrorInvalidResourceHandle);
  }
  if (const cudaError_t broken = machine.broken_by(stream->device); broken != cudaSuccess) return broken;
  const dim3 &block = launch.block, &grid = launch.grid;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > static_cast<std::uint64_t>(kernel->max_threads) || block.x > 1024 || block.y > 1024 ||
      block.z > 64) {
    return call.fail(Rule::bad_launch,
                     lockstep::cat(kernel->name, ": expected 1 to ", kernel->max_threads,
                                   " threads in a block of at most (1024, 1024, 64), got (", block.x, ", ", block.y,
                                   ", ", block.z, ")"),
                     cudaErrorInvalidConfiguration);
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
    return call.fail(Rule::bad_launch,
                     lockstep::cat(kernel->name,
                                   ": expected a grid of 1 to (2147483647, 65535, "
                                   "65535) blocks, got (",
                                   grid.x, ", ", grid.y, ", ", grid.z, ")"),
                     cudaErrorInvalidConfiguration);
  }
  const LoadedKernel& loaded = load(call, *kernel);
  const std::size_t without_asking = kSharedPerBlock - std::min(kSharedPerBlock, kernel->static_shared_bytes);
  const std::size_t most = std::max(without_asking, static_cast<std::size_t>(loaded.max_dynamic_shared_bytes));
  if (launch.shared_bytes > most) {
    const bool elsewhere = set_on_another_device(machine, *kernel, launch.shared_bytes);
    return call.fail(
        elsewhere ? Rule::missing_attribute : Rule::bad_launch,
        lockstep::cat(kernel->name, ": expected at most ", most, " bytes of shared memory, got ", launch.shared_bytes,
                      elsewhere ? "; more was asked for, but on another device" : ""));
  }
  return put(call, launch.stream, *stream);
}

cudaError_t set_attribute(Call& call, const Kernel* kernel, cudaFuncAttribute attribute, int value) {
  std::lock_guard lock(call.machine.mutex);
  if (!kernel) return call.fail(Rule::bad_launch, "not a kernel of this program", cudaErrorInvalidDeviceFunction);
  LoadedKernel& loaded = load(call, *kernel);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<std::size_t>(value) + kernel->static_shared_bytes >
                       static_cast<std::size_t>(call.machine.options.shared_bytes)) {
    return cudaErrorInvalidValue;
  }
  loaded.max_dynamic_shared_bytes = value;
  return cudaSuccess;
}

const Kernel* from_handle(cudaKernel_t handle) { return reinterpret_cast<const Kernel*>(handle); }

}  // namespace

const Kernel* kernel_of(const void* host_function) {
  Functions& all = functions();
  std::lock_guard lock(all.mutex);
  const auto found = all.kernels.find(host_function);
  return found == all.kernels.end() ? nullptr : &found->second;
}

bool check_kernel_memory(const char* kernel, const void* stream_handle, const void* data, std::size_t bytes) {
  State& machine = state();
  Call call{kernel, machine, this_thread(machine)};
  std::lock_guard lock(machine.mutex);
  const Stream* stream = find_stream(call, stream_handle);
  return stream && (bytes == 0 || check_operand(call, data, bytes, stream->device, "an operand"));
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

extern "C" {

void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

void __cudaRegisterFunction(void** module, const char* host_function, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  const KernelNeeds needs = needs_of(*module, name);
  Functions& all = functions();
  std::lock_guard lock(all.mutex);
  all.kernels[host_function] = {.name = name,
                                .module = module,
                                .static_shared_bytes = needs.static_shared_bytes,
                                .max_threads = needs.max_threads};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  pushed.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (pushed.empty()) return cudaErrorMissingConfiguration;
  const Launch launch = pushed.back();
  pushed.pop_back();
  *grid = launch.grid;
  *block = launch.block;
  *shared_bytes = launch.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<Kernel*>(kernel_of(host_function)));
  return *kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

// Launches through <<< >>> go here; they are one kind of call to tests.
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, std::size_t shared_bytes,
                               cudaStream_t stream) {
  return run_call("cudaLaunchKernel", context, [&](Call& call) {
    return check_launch(call, from_handle(kernel), {grid, block, shared_bytes, stream});
  });
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, std::size_t shared_bytes,
                             cudaStream_t stream) {
  return run_call("cudaLaunchKernel", context, [&](Call& call) {
    return check_launch(call, kernel_of(function), {grid, block, shared_bytes, stream});
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
  return run_call("cudaLaunchKernel", context, [&](Call& call) {
    return check_launch(call, kernel_of(function),
                        {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream});
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return run_call("cudaFuncSetAttribute", context,
                  [&](Call& call) { return set_attribute(call, kernel_of(function), attribute, value); });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return run_call("cudaFuncGetAttributes", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const Kernel* kernel = kernel_of(function);
    if (!kernel) return call.fail(Rule::bad_launch, "not a kernel of this program", cudaErrorInvalidDeviceFunction);
    const LoadedKernel& loaded = load(call, *kernel);
    *attributes = {};
    attributes->sharedSizeBytes = kernel->static_shared_bytes;
    attributes->maxThreadsPerBlock = kernel->max_threads;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes =
        loaded.max_dynamic_shared_bytes > 0
            ? loaded.max_dynamic_shared_bytes
            : static_cast<int>(kSharedPerBlock - std::min(kSharedPerBlock, kernel->static_shared_bytes));
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   std::size_t shared_bytes, unsigned int) {
  return run_call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const Kernel* kernel = kernel_of(function);
    if (!kernel) return call.fail(Rule::bad_launch, "not a kernel of this program", cudaErrorInvalidDeviceFunction);
    (void)load(call, *kernel);
    if (threads <= 0) return cudaErrorInvalidValue;
    const std::size_t shared = shared_bytes + kernel->static_shared_bytes + 1024;
    *blocks = std::min({32, 2048 / threads, static_cast<int>((std::size_t{228} << 10) / shared)});
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

}  // extern "C"
