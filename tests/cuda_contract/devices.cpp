// Devices, contexts, errors, memory and launches.
#include <cuda.h>

#include "cuda_contract/support.h"

using namespace contract;  // NOLINT

namespace {

bool has_context(int device) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  REQUIRE(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000, cudaEnableDefault, &found) ==
          cudaSuccess);
  REQUIRE(found == cudaDriverEntryPointSuccess);
  unsigned flags = 0;
  int active = 0;
  REQUIRE(reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(function)(device, &flags, &active) == CUDA_SUCCESS);
  return active != 0;
}

// Runs first (names are in order of declaration), while no test has made a context on the last device.
TEST_CASE("asking makes no context, choosing a device makes one") {
  if (!have_devices(1, "contexts")) return;
  const int last = device_count() - 1;
  if (has_context(last)) {
    WARN("unverified: contexts (run this test alone)");
    return;
  }
  int device = -1, value = 0;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, last) == cudaSuccess);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, last) == cudaSuccess);
  CHECK(value == properties.multiProcessorCount);
  CHECK_FALSE(has_context(last));
  CHECK(cudaSetDevice(last) == cudaSuccess);
  CHECK(has_context(last));
  if (last > 0) CHECK_FALSE(has_context(0));
  CHECK(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("the current device is the thread's") {
  if (!have_devices(2, "the current device of threads")) return;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  int device = -1;
  std::thread([&] { (void)cudaGetDevice(&device); }).join();
  CHECK(device == 0);
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 1);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("an error is the thread's last one until it is asked for") {
  if (!have_devices(1, "last errors")) return;
  CHECK(cudaSetDevice(1000) == cudaErrorInvalidDevice);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
  std::thread([] { CHECK_NOTHROW(cudaGetLastError() == cudaSuccess ? 0 : throw 1); }).join();
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
}

TEST_CASE("a call that succeeds does not clear the last error") {
  if (!have_devices(1, "last errors")) return;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaSetDevice(1000) == cudaErrorInvalidDevice);
  std::size_t free_bytes = 0, total_bytes = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  refused("unchecked error");
}

TEST_CASE("an allocation that is too large is an error to be cleared, and no more") {
  if (!have_devices(1, "running out of memory")) return;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, std::size_t{1} << 46) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  const Memory works;
  CHECK(works.data != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(works.data) % 256 == 0);
}

TEST_CASE("pointers say what they point to") {
  if (!have_devices(1, "pointer attributes")) return;
  const Memory memory;
  const Pinned pinned;
  int plain = 0;
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, memory.data + 3) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(attributes.device == 0);
  CHECK(cudaPointerGetAttributes(&attributes, pinned.data) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(cudaPointerGetAttributes(&attributes, &plain) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  void* mapped = nullptr;
  CHECK(cudaHostGetDevicePointer(&mapped, pinned.data, 0) == cudaSuccess);
  CHECK(mapped == pinned.data);  // one address space
}

TEST_CASE("a launch that cannot be is an error of the launch, and the next one works") {
  if (!have_devices(1, "launches")) return;
  const Stream stream;
  const Memory memory;
  launch_fill(memory.data, 1, 64, {1, 1025, 0}, stream.handle);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  refused("bad launch");
  launch_fill(memory.data, 1, 64, {0, 32, 0}, stream.handle);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  refused("bad launch");
  launch_bounded(memory.data, 1, {1, 65, 0}, stream.handle);
  CHECK(cudaGetLastError() != cudaSuccess);
  refused("bad launch");
  launch_fill(memory.data, 1, 64, {1, 1024, 0}, stream.handle);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
}

TEST_CASE("more than 48 KiB of dynamic shared memory must be asked for") {
  if (!have_devices(1, "shared memory")) return;
  const Stream stream;
  const Memory memory;
  launch_fill(memory.data, 1, 64, {1, 32, 48 << 10}, stream.handle);
  CHECK(cudaGetLastError() == cudaSuccess);
  launch_fill(memory.data, 1, 64, {1, 32, 64 << 10}, stream.handle);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  refused("bad launch");
  launch_static_shared(memory.data, 1, {1, 32, 9000}, stream.handle);
  CHECK(cudaGetLastError() == cudaSuccess);
  launch_static_shared(memory.data, 1, {1, 32, 10000}, stream.handle);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  refused("bad launch");
  CHECK(cudaFuncSetAttribute(fill_function(), cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20) ==
        cudaErrorInvalidValue);
  (void)cudaGetLastError();
  CHECK(cudaFuncSetAttribute(fill_function(), cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10) == cudaSuccess);
  launch_fill(memory.data, 1, 64, {1, 32, 64 << 10}, stream.handle);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  if (!have_devices(2, "attributes are set per device")) return;
  const Stream other(1);
  const Memory there(1);
  launch_fill(there.data, 1, 64, {1, 32, 64 << 10}, other.handle);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  refused("missing attribute");
}

TEST_CASE("a kernel's attributes say how much static shared memory it has") {
  if (!have_devices(1, "attributes of kernels")) return;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, static_shared_function()) == cudaSuccess);
  CHECK(attributes.sharedSizeBytes == 40000);
}

TEST_CASE("a kernel needs its stream's device current") {
  if (!have_devices(2, "launches with another device current")) return;
  const Stream stream(1);
  const Memory memory(1);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  launch_fill(memory.data, 1, 64, {1, 32, 0}, stream.handle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  refused("wrong device");
}

TEST_CASE("peer access is enabled once per direction") {
  if (!have_devices(2, "peer access")) return;
  int possible = 0;
  REQUIRE(cudaDeviceCanAccessPeer(&possible, 0, 1) == cudaSuccess);
  if (!possible) {
    WARN("unverified: peer access (there is none between devices 0 and 1)");
    return;
  }
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
  CHECK(cudaGetLastError() == cudaErrorPeerAccessAlreadyEnabled);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorInvalidDevice);
  (void)cudaGetLastError();
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("copies between devices need no peer access") {
  if (!have_devices(2, "copies between devices")) return;
  const Stream stream(1), at_source(0);
  const Memory source(0), destination(1);
  const Pinned pinned;
  for (int i = 0; i < 64; ++i) pinned.data[i] = i;
  CHECK(cudaMemcpyAsync(source.data, pinned.data, 256, cudaMemcpyHostToDevice, at_source.handle) == cudaSuccess);
  CHECK(finish(at_source.handle) == cudaSuccess);
  CHECK(cudaMemcpyPeerAsync(destination.data, 1, source.data, 0, 256, stream.handle) == cudaSuccess);
  CHECK(cudaMemcpyAsync(pinned.data + 64, destination.data, 256, cudaMemcpyDeviceToHost, stream.handle) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  bool same = true;
  for (int i = 0; i < 64; ++i) same = same && pinned.data[64 + i] == i;
  CHECK(same);
}

TEST_CASE("freed memory is waited for by what uses it") {
  if (!have_devices(1, "freeing")) return;
  const Stream stream;
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 4096) == cudaSuccess);
  std::atomic<bool> freed{false};
  Gate gate(stream.handle);
  std::thread other([&] {
    (void)cudaSetDevice(0);
    (void)cudaFree(memory);
    freed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(freed);  // it waits for the whole device
  gate.open();
  other.join();
  CHECK(finish(stream.handle) == cudaSuccess);
}

}  // namespace
