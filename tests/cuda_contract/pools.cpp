// Memory pools.
#include "cuda_contract/support.h"

using namespace contract;  // NOLINT

namespace {

struct Pool {
  cudaMemPool_t handle = nullptr;
  explicit Pool(int device = 0) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    REQUIRE(cudaMemPoolCreate(&handle, &properties) == cudaSuccess);
  }
  Pool(const Pool&) = delete;
  ~Pool() { (void)cudaMemPoolDestroy(handle); }

  std::uint64_t attribute(cudaMemPoolAttr which) const {
    std::uint64_t value = 0;
    REQUIRE(cudaMemPoolGetAttribute(handle, which, &value) == cudaSuccess);
    return value;
  }
  cudaMemAccessFlags access(int device) const {
    cudaMemAccessFlags flags{};
    cudaMemLocation location{cudaMemLocationTypeDevice, device};
    REQUIRE(cudaMemPoolGetAccess(&flags, handle, &location) == cudaSuccess);
    return flags;
  }
  cudaError_t give_access(int device, cudaMemAccessFlags flags = cudaMemAccessFlagsProtReadWrite) const {
    const cudaMemAccessDesc wanted{{cudaMemLocationTypeDevice, device}, flags};
    return cudaMemPoolSetAccess(handle, &wanted, 1);
  }
};

bool has_pools() {
  if (!have_devices(1, "memory pools")) return false;
  int supported = 0;
  REQUIRE(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0) == cudaSuccess);
  if (!supported) WARN("unverified: memory pools (this device has none)");
  return supported != 0;
}

TEST_CASE("memory of a pool comes and goes in the order of streams, without the host waiting") {
  if (!has_pools()) return;
  const Stream stream, other;
  const Event allocated;
  const Pinned pinned;
  for (int i = 0; i < 64; ++i) pinned.data[i] = 0;
  {
    const Gate gate(stream.handle);
    void* memory = nullptr;
    REQUIRE(cudaMallocAsync(&memory, 256, stream.handle) == cudaSuccess);
    CHECK(memory != nullptr);
    CHECK(cudaEventRecord(allocated.handle, stream.handle) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other.handle, allocated.handle, 0) == cudaSuccess);
    CHECK(cudaMemsetAsync(memory, 1, 256, other.handle) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned.data, memory, 256, cudaMemcpyDeviceToHost, other.handle) == cudaSuccess);
    CHECK(cudaFreeAsync(memory, other.handle) == cudaSuccess);
    CHECK(cudaStreamQuery(other.handle) == cudaErrorNotReady);
    (void)cudaGetLastError();
  }
  CHECK(finish(other.handle) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(pinned.data[63] == 0x01010101);
}

TEST_CASE("memory of a pool may be freed by cudaFree once its work is through") {
  if (!has_pools()) return;
  const Stream stream;
  void* memory = nullptr;
  REQUIRE(cudaMallocAsync(&memory, 256, stream.handle) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory, 1, 256, stream.handle) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("a pool says what is used of it and keeps what its threshold says") {
  if (!has_pools()) return;
  const Stream stream;
  const Pool pool;
  CHECK(pool.attribute(cudaMemPoolAttrReleaseThreshold) == 0);
  std::uint64_t all = ~std::uint64_t{0};
  CHECK(cudaMemPoolSetAttribute(pool.handle, cudaMemPoolAttrReleaseThreshold, &all) == cudaSuccess);
  CHECK(pool.attribute(cudaMemPoolAttrReleaseThreshold) == all);
  void* memory = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&memory, 1 << 20, pool.handle, stream.handle) == cudaSuccess);
  CHECK(pool.attribute(cudaMemPoolAttrUsedMemCurrent) >= 1 << 20);
  CHECK(pool.attribute(cudaMemPoolAttrReservedMemCurrent) >= pool.attribute(cudaMemPoolAttrUsedMemCurrent));
  CHECK(cudaMemPoolTrimTo(pool.handle, 0) == cudaSuccess);  // not what is in use
  CHECK(pool.attribute(cudaMemPoolAttrReservedMemCurrent) >= 1 << 20);
  CHECK(cudaFreeAsync(memory, stream.handle) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(pool.attribute(cudaMemPoolAttrUsedMemCurrent) == 0);
  CHECK(pool.attribute(cudaMemPoolAttrUsedMemHigh) >= 1 << 20);
}

TEST_CASE("a pool may be destroyed before the memory that came from it, the default one never") {
  if (!has_pools()) return;
  const Stream stream;
  void* memory = nullptr;
  {
    const Pool pool;
    REQUIRE(cudaMallocFromPoolAsync(&memory, 256, pool.handle, stream.handle) == cudaSuccess);
  }
  CHECK(cudaMemsetAsync(memory, 1, 256, stream.handle) == cudaSuccess);
  CHECK(cudaFreeAsync(memory, stream.handle) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
  CHECK(cudaMemPoolDestroy(pool) == cudaErrorInvalidValue);
  (void)cudaGetLastError();
}

TEST_CASE("a pool is its device's alone until others are given access") {
  if (!has_pools()) return;
  const Pool pool;
  CHECK(pool.access(0) == cudaMemAccessFlagsProtReadWrite);
  if (!have_devices(2, "access to pools")) return;
  CHECK(pool.access(1) == cudaMemAccessFlagsProtNone);
  const Stream owner(0), stream(1);
  const Memory there(1);
  void* memory = nullptr;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  REQUIRE(cudaMallocFromPoolAsync(&memory, 256, pool.handle, owner.handle) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory, 1, 256, owner.handle) == cudaSuccess);
  CHECK(finish(owner.handle) == cudaSuccess);
  CHECK(cudaMemcpyPeerAsync(there.data, 1, memory, 0, 256, stream.handle) == cudaSuccess);  // needs none
  int possible = 0;
  REQUIRE(cudaDeviceCanAccessPeer(&possible, 1, 0) == cudaSuccess);
  if (possible) {
    CHECK(pool.give_access(1) == cudaSuccess);
    CHECK(pool.access(1) == cudaMemAccessFlagsProtReadWrite);
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    launch_fill(static_cast<int*>(memory), 1, 64, {1, 32, 0}, stream.handle);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(cudaFreeAsync(memory, owner.handle) == cudaSuccess);
  CHECK(finish(owner.handle) == cudaSuccess);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

}  // namespace
