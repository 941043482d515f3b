// The machines that the fake can be, and the faults it injects.
#include <cstdlib>
#include <stdexcept>

#include "fake_cuda/rules_test.h"

using namespace fake_test;  // NOLINT

namespace {

// Bytes that travel from device to device to the host.
bool arrives(int from, int to) {
  cudaStream_t stream = make_stream(to);
  int *source = make_memory(from), *destination = make_memory(to), *pinned = make_pinned();
  for (int i = 0; i < 16; ++i) pinned[i] = i + 1;
  OnDevice current(to);
  REQUIRE(cudaMemcpyAsync(destination, pinned + 32, 64, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  cudaStream_t at_source = make_stream(from);
  REQUIRE(cudaMemcpyAsync(source, pinned, 64, cudaMemcpyHostToDevice, at_source) == cudaSuccess);
  REQUIRE(finish(at_source) == cudaSuccess);
  REQUIRE(cudaMemcpyPeerAsync(destination, to, source, from, 64, stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(pinned + 64, destination, 64, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  REQUIRE(finish(stream) == cudaSuccess);
  return std::equal(pinned, pinned + 16, pinned + 64);
}

TEST_CASE("devices have memories and multiprocessors of their own, in any order") {
  const Machine machine(
      {.devices = 3, .memory_bytes = {1 << 20, 2 << 20, 4 << 20}, .multiprocessors = {10, 20, 30}, .order = {2, 0, 1}});
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  REQUIRE(count == 3);
  const std::size_t bytes[] = {4 << 20, 1 << 20, 2 << 20};
  const int multiprocessors[] = {30, 10, 20};
  for (int i = 0; i < 3; ++i) {
    cudaDeviceProp properties;
    REQUIRE(cudaGetDeviceProperties(&properties, i) == cudaSuccess);
    CHECK(properties.totalGlobalMem == bytes[i]);
    CHECK(properties.multiProcessorCount == multiprocessors[i]);
    int value = 0;
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, i) == cudaSuccess);
    CHECK(value == multiprocessors[i]);
    OnDevice current(i);
    std::size_t free_bytes = 0, total_bytes = 0;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    CHECK(total_bytes == bytes[i]);
  }
  CHECK(broken() == none());
}

TEST_CASE("memory is limited per device and comes back") {
  const Machine machine({.devices = 2, .memory_bytes = {1 << 20, 2 << 20}});
  int* all = make_memory(0, 1 << 20);
  void* more = nullptr;
  CHECK(cudaMalloc(&more, 1) == cudaErrorMemoryAllocation);
  CHECK(more == nullptr);
  (void)forget_error();
  make_memory(1, 2 << 20);
  OnDevice current(0);
  CHECK(fake_cuda::used_bytes(0) == 1 << 20);
  CHECK(cudaFree(all) == cudaSuccess);
  CHECK(fake_cuda::used_bytes(0) == 0);
  make_memory(0, 1 << 20);
  CHECK(broken() == none());
}

TEST_CASE("some pairs have no peer access, some lose what is written") {
  const Machine machine({.devices = 4, .no_peer = {{0, 1}}, .lossy_peer = {{2, 3}}});
  int possible = -1;
  CHECK(cudaDeviceCanAccessPeer(&possible, 0, 1) == cudaSuccess);
  CHECK(possible == 0);
  CHECK(cudaDeviceCanAccessPeer(&possible, 1, 0) == cudaSuccess);
  CHECK(possible == 1);
  {
    OnDevice current(0);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessUnsupported);
    (void)forget_error();
  }
  CHECK(arrives(1, 0));  // the driver goes through the host
  CHECK(arrives(2, 3));
  OnDevice current(3);
  CHECK(cudaDeviceEnablePeerAccess(2, 0) == cudaSuccess);
  CHECK_FALSE(arrives(2, 3));
  CHECK(arrives(3, 2));
  CHECK(broken() == none());
}

TEST_CASE("lines of NVLink have ranks and native atomics, other pairs are on PCIe") {
  const Machine machine({.devices = 4, .no_peer = {{0, 3}}, .nvlinks = {{0, 1, 0}, {2, 1, 1}}});
  const auto answer = [](cudaDeviceP2PAttr attribute, int from, int to) {
    int value = -1;
    CHECK(cudaDeviceGetP2PAttribute(&value, attribute, from, to) == cudaSuccess);
    return value;
  };
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(1, 0)}) {
    CHECK(answer(cudaDevP2PAttrPerformanceRank, a, b) == 0);
    CHECK(answer(cudaDevP2PAttrNativeAtomicSupported, a, b) == 1);
  }
  CHECK(answer(cudaDevP2PAttrPerformanceRank, 1, 2) == 1);
  CHECK(answer(cudaDevP2PAttrPerformanceRank, 0, 2) == 2);
  CHECK(answer(cudaDevP2PAttrNativeAtomicSupported, 0, 2) == 0);
  CHECK(answer(cudaDevP2PAttrAccessSupported, 0, 3) == 0);
  CHECK(answer(cudaDevP2PAttrAccessSupported, 3, 0) == 1);
  int value = 0;
  CHECK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrPerformanceRank, 1, 1) == cudaErrorInvalidDevice);
  (void)forget_error();
  CHECK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrPerformanceRank, 1, 4) == cudaErrorInvalidDevice);
  (void)forget_error();
  CHECK(fake_cuda::devices_with_context().empty());
  CHECK(broken() == none());
}

TEST_CASE("the k-th call fails, and those after it work") {
  const Machine machine;
  fake_cuda::inject({.call = "cudaMalloc", .nth = 2, .error = cudaErrorMemoryAllocation});
  make_memory(0);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 64) == cudaErrorMemoryAllocation);
  (void)forget_error();
  make_memory(0);
  CHECK(fake_cuda::calls_of("cudaMalloc") == 3);
  CHECK(fake_cuda::calls_of("cudaFree") == 0);

  fake_cuda::inject({.call = "cudaLaunchKernel", .error = cudaErrorLaunchFailure});
  cudaStream_t stream = make_stream(0);
  contract::launch_fill(nullptr, 1, 0, {1, 32, 0}, stream);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  contract::launch_fill(nullptr, 1, 0, {1, 32, 0}, stream);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(broken() == none());
}

TEST_CASE("a call may be late") {
  const Machine machine;
  fake_cuda::inject({.call = "cudaMalloc", .error = cudaSuccess, .delay_microseconds = 20'000});
  const auto begin = std::chrono::steady_clock::now();
  make_memory(0);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
}

TEST_CASE("a device that broke answers every call with its error, the others work") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(1);
  cudaEvent_t event = make_event(0);
  OnDevice first(0);
  static std::atomic<bool> ran;
  ran = false;
  {
    Gate gate(stream);
    REQUIRE(cudaLaunchHostFunc(
                stream, [](void*) { ran = true; }, nullptr) == cudaSuccess);
    REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
    fake_cuda::break_device(0, cudaErrorIllegalAddress);
  }
  CHECK(cudaStreamQuery(stream) == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaEventQuery(event) == cudaErrorIllegalAddress);
  (void)forget_error();
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 64) == cudaErrorIllegalAddress);
  (void)forget_error();
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(finish(other) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaErrorIllegalAddress);
  (void)forget_error();
  CHECK_FALSE(ran);
  CHECK(broken() == none());
}

TEST_CASE("a call may break its device, with its error or after it, and what was struck is known") {
  const Machine machine;
  cudaStream_t first = make_stream(0), second = make_stream(1);
  cudaEvent_t event = make_event(1);
  {
    OnDevice on(0);
    fake_cuda::inject(
        {.call = "cudaStreamQuery", .error = cudaErrorIllegalAddress, .breaks_device = cudaErrorIllegalAddress});
    CHECK(cudaStreamQuery(first) == cudaErrorIllegalAddress);
    (void)forget_error();
  }
  OnDevice on(1);
  fake_cuda::inject({.call = "cudaEventRecord", .error = cudaSuccess, .breaks_device = cudaErrorLaunchFailure});
  CHECK(cudaEventRecord(event, second) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorLaunchFailure);
  (void)forget_error();
  fake_cuda::inject({.call = "cudaGetDevice", .error = cudaErrorInvalidValue});
  fake_cuda::forget_injections();
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  const std::vector<fake_cuda::Strike> struck = fake_cuda::strikes();
  REQUIRE(struck.size() == 2);
  CHECK((struck[0].call == "cudaStreamQuery" && struck[0].device == 0 && struck[0].error == cudaErrorIllegalAddress));
  CHECK((struck[1].call == "cudaEventRecord" && struck[1].device == 1 && struck[1].error == cudaSuccess));
  CHECK(broken() == none());
}

TEST_CASE("no devices is an error of the count") {
  const Machine machine({.devices = 0});
  int count = -1;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(count == 0);
  (void)forget_error();
}

TEST_CASE("a machine may have no memory pools") {
  const Machine machine({.devices = 1, .pools = false});
  int supported = 1;
  CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0) == cudaSuccess);
  CHECK(supported == 0);
  cudaMemPool_t pool = nullptr;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaErrorNotSupported);
  (void)forget_error();
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  CHECK(cudaMemPoolCreate(&pool, &properties) == cudaErrorNotSupported);
  (void)forget_error();
  CHECK(broken() == none());
}

TEST_CASE("the environment says what machine it is") {
  setenv("LOCKSTEP_FAKE_CUDA",
         "devices=3,seed=5,memory=1M/2M,multiprocessors=7/9,deny=0-1,order=permuted,fail=cudaMalloc:1:2", 1);
  fake_cuda::reset_from_environment();
  int count = 0, possible = 1;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 3);
  CHECK(cudaDeviceCanAccessPeer(&possible, 0, 1) == cudaSuccess);
  CHECK(possible == 0);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 64) == cudaErrorMemoryAllocation);
  (void)forget_error();
  for (const char* bad : {"devices", "devices=x", "devices=17", "lose=1", "nothing=1"}) {
    setenv("LOCKSTEP_FAKE_CUDA", bad, 1);
    CHECK_THROWS_AS(fake_cuda::reset_from_environment(), std::invalid_argument);
  }
  unsetenv("LOCKSTEP_FAKE_CUDA");
  fake_cuda::reset();
  CHECK(broken() == none());
}

}  // namespace
