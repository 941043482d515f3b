// The rules of memory pools broken on purpose, and the correct use next to it.
#include "fake_cuda/rules_test.h"

using namespace fake_test;  // NOLINT

namespace {

int* from_pool(cudaMemPool_t pool, cudaStream_t stream, std::size_t bytes = 1024) {
  void* memory = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&memory, bytes, pool, stream) == cudaSuccess);
  return static_cast<int*>(memory);
}
int* from_default_pool(cudaStream_t stream, std::size_t bytes = 1024) {
  void* memory = nullptr;
  REQUIRE(cudaMallocAsync(&memory, bytes, stream) == cudaSuccess);
  return static_cast<int*>(memory);
}
cudaMemPool_t make_pool(int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaMemPoolCreate(&pool, &properties) == cudaSuccess);
  return pool;
}
cudaError_t give_access(cudaMemPool_t pool, int device, cudaMemAccessFlags flags = cudaMemAccessFlagsProtReadWrite) {
  const cudaMemAccessDesc wanted{{cudaMemLocationTypeDevice, device}, flags};
  return cudaMemPoolSetAccess(pool, &wanted, 1);
}
std::uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  std::uint64_t value = 0;
  REQUIRE(cudaMemPoolGetAttribute(pool, which, &value) == cudaSuccess);
  return value;
}

TEST_CASE("memory of a pool is used by its device and by those that were given access") {
  const Machine machine;
  cudaStream_t owner = make_stream(0), stream = make_stream(1);
  int* mine = make_memory(1);
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
  int* memory = from_default_pool(owner);
  CHECK(fake_cuda::check_kernel_memory("kernel", owner, memory, 64));
  REQUIRE(finish(owner) == cudaSuccess);
  OnDevice current(1);
  REQUIRE(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess);  // says nothing about pools
  CHECK(cudaMemcpyPeerAsync(mine, 1, memory, 0, 64, stream) == cudaSuccess);
  CHECK(broken() == none());
  SECTION("kernel operand") {
    CHECK_FALSE(fake_cuda::check_kernel_memory("kernel", stream, memory, 64));
    CHECK(broken() == only(Rule::pool_access));
  }
  SECTION("copy") {
    CHECK(cudaMemcpyAsync(mine, memory, 64, cudaMemcpyDeviceToDevice, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::pool_access));
  }
  SECTION("fill") {
    CHECK(cudaMemsetAsync(memory, 0, 64, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::pool_access));
  }
  SECTION("with access, until it is taken away") {
    CHECK(give_access(pool, 1) == cudaSuccess);
    CHECK(fake_cuda::check_kernel_memory("kernel", stream, memory, 64));
    CHECK(cudaMemcpyAsync(mine, memory, 64, cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
    CHECK(cudaMemsetAsync(memory, 0, 64, stream) == cudaSuccess);
    CHECK(broken() == none());
    CHECK(give_access(pool, 1, cudaMemAccessFlagsProtNone) == cudaSuccess);
    CHECK_FALSE(fake_cuda::check_kernel_memory("kernel", stream, memory, 64));
    CHECK(broken() == only(Rule::pool_access));
  }
  SECTION("access that is another pool's") {
    CHECK(give_access(make_pool(0), 1) == cudaSuccess);
    CHECK_FALSE(fake_cuda::check_kernel_memory("kernel", stream, memory, 64));
    CHECK(broken() == only(Rule::pool_access));
  }
  CHECK(finish(stream) == cudaSuccess);
}

TEST_CASE("access to a pool is given to devices that reach it, and its own keeps it") {
  const Machine machine({.devices = 2, .no_peer = {{1, 0}}});
  cudaMemPool_t pool = make_pool(0);
  CHECK(give_access(pool, 1) == cudaErrorInvalidDevice);
  (void)forget_error();
  CHECK(give_access(pool, 0, cudaMemAccessFlagsProtNone) == cudaErrorInvalidValue);
  (void)forget_error();
  CHECK(give_access(make_pool(1), 0) == cudaSuccess);
  CHECK(broken() == none());
}

TEST_CASE("memory of a pool is copied with the stream's device current") {
  const Machine machine;
  cudaStream_t stream = make_stream(1);
  int *memory = from_default_pool(stream), *pinned = make_pinned();
  OnDevice other(0);
  CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidValue);
  (void)forget_error();
  CHECK(broken() == only(Rule::wrong_device));
  OnDevice own(1);
  CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  CHECK(broken() == none());
}

TEST_CASE("memory of a pool is used between its allocation and its end in the streams' order") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(0);
  cudaEvent_t event = make_event(0);
  int* memory = from_default_pool(stream);
  SECTION("in order") {
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
    CHECK(cudaMemsetAsync(memory, 1, 64, other) == cudaSuccess);
    CHECK(cudaFreeAsync(memory, other) == cudaSuccess);  // in flight
    CHECK(finish(other) == cudaSuccess);
    CHECK(fake_cuda::used_bytes(0) == 0);
  }
#ifndef __SANITIZE_THREAD__  // which would report these races too, and rightly
  SECTION("before the allocation") {
    CHECK(cudaMemsetAsync(memory, 1, 64, other) == cudaSuccess);
    CHECK(broken() == only(Rule::unordered));
  }
  SECTION("freed in flight") {
    CHECK(cudaMemsetAsync(memory, 1, 64, stream) == cudaSuccess);
    CHECK(broken() == none());
    CHECK(cudaFreeAsync(memory, other) == cudaSuccess);
    CHECK(broken() == only(Rule::unordered));
  }
  SECTION("freed in flight, by the call that has no stream") {
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(broken() == only(Rule::unordered));
  }
#endif
  SECTION("after its end") {
    CHECK(cudaFreeAsync(memory, stream) == cudaSuccess);
    CHECK(broken() == none());
    CHECK(cudaMemsetAsync(memory, 1, 64, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::use_after_free));
    CHECK(cudaFreeAsync(memory, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::use_after_free));
  }
  SECTION("that is not a pool's") {
    int* raw = make_memory(0);
    CHECK(cudaFreeAsync(raw, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::foreign_memory));
  }
  CHECK(finish(stream) == cudaSuccess);
  CHECK(finish(other) == cudaSuccess);
  CHECK(broken() == none());
}

TEST_CASE("a pool keeps memory up to its threshold and takes no more than the device has") {
  const Machine machine({.devices = 1, .memory_bytes = {1 << 20}});
  cudaStream_t stream = make_stream(0);
  cudaMemPool_t pool = make_pool(0);
  CHECK(cudaFreeAsync(from_pool(pool, stream, 1 << 19), stream) == cudaSuccess);
  CHECK(finish(stream) == cudaSuccess);
  CHECK(fake_cuda::used_bytes(0) == 0);
  std::uint64_t threshold = 1 << 18;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
  CHECK(cudaFreeAsync(from_pool(pool, stream, 1 << 19), stream) == cudaSuccess);
  CHECK(finish(stream) == cudaSuccess);
  CHECK(fake_cuda::used_bytes(0) == 1 << 18);
  void* more = nullptr;
  CHECK(cudaMalloc(&more, 1 << 20) == cudaErrorMemoryAllocation);
  (void)forget_error();
  CHECK(cudaMallocFromPoolAsync(&more, (1 << 20) + 1, pool, stream) == cudaErrorMemoryAllocation);
  (void)forget_error();
  CHECK(attribute(pool, cudaMemPoolAttrReservedMemCurrent) == 1 << 18);
  CHECK(attribute(pool, cudaMemPoolAttrUsedMemHigh) == 1 << 19);
  CHECK(cudaMemPoolTrimTo(pool, 100) == cudaSuccess);
  CHECK(attribute(pool, cudaMemPoolAttrReservedMemCurrent) == 100);
  CHECK(cudaMemPoolTrimTo(pool, 0) == cudaSuccess);
  CHECK(fake_cuda::used_bytes(0) == 0);
  CHECK(broken() == none());
}

TEST_CASE("pools are given back, and what was allocated from one is freed") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  SECTION("both") {
    const fake_cuda::NothingLeft all;
    cudaMemPool_t pool = make_pool(0);
    int* memory = from_pool(pool, stream);
    CHECK(cudaMemPoolDestroy(pool) == cudaSuccess);  // the memory stays
    CHECK(cudaMemsetAsync(memory, 1, 64, stream) == cudaSuccess);
    CHECK(cudaFreeAsync(memory, stream) == cudaSuccess);
  }
  SECTION("neither") {
    {
      const fake_cuda::NothingLeft all;
      from_pool(make_pool(0), stream, 64);
    }
    CHECK(broken() == std::vector<std::string>(3, "left alive"));  // an allocation, 64 bytes, a pool
  }
  SECTION("twice, and the default one") {
    cudaMemPool_t pool = make_pool(0);
    CHECK(cudaMemPoolDestroy(pool) == cudaSuccess);
    CHECK(cudaMemPoolDestroy(pool) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::dead_handle));
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
    CHECK(cudaMemPoolDestroy(pool) == cudaErrorInvalidValue);
    (void)forget_error();
  }
  CHECK(finish(stream) == cudaSuccess);
  CHECK(broken() == none());
}

}  // namespace
