// LOCKSTEP_CUDA_MEMORY=pool: raw memory from memory pools of CUDA's. Each case has a program, and a machine, of its
// own.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "fake_cuda/runtime/graph_test.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"

using namespace graph_test;  // NOLINT

namespace {

int mallocs() { return fake_cuda::calls_of("cudaMalloc") + fake_cuda::calls_of("cudaMallocAsync"); }

// A byte from one device to another and home.
int travel(Device from, Device to, int value) {
  const Stream source(from), destination(to);
  const Owned here(allocate(source, 5000)), there(allocate(destination, 5000));
  fill(*here, value, source);
  copy_bytes({there->data, to, here->data, from, 5000}, source, destination);
  return first_byte(*there, destination);
}

}  // namespace

// ctest: also fake_cuda/runtime_pool
TEST_CASE("raw memory comes from where LOCKSTEP_CUDA_MEMORY says") {
  const char* set = std::getenv("LOCKSTEP_CUDA_MEMORY");
  const bool pool = set && std::string_view(set) == "pool";
  const Stream stream(kDevice);
  empty_cache(kDevice);
  const int before = mallocs(), from_pools = fake_cuda::calls_of("cudaMallocFromPoolAsync");
  release(allocate(stream, 3 << 20));
  CHECK(mallocs() - before == (pool ? 0 : 1));
  CHECK(fake_cuda::calls_of("cudaMallocFromPoolAsync") - from_pools == (pool ? 1 : 0));
  CHECK((pool || fake_cuda::calls_of("cudaMemPoolCreate") == 0));
}

// ctest: fake_cuda/pool, where device 1 does not reach the memory of device 0
TEST_CASE("raw memory comes from a pool of each device and goes back to the GPU", "[.pool]") {
  {
    const Stream stream(Device::cuda(0)), other(Device::cuda(2)), denied(Device::cuda(1));
    const Owned block(allocate(stream, 5000));
    CHECK(fake_cuda::calls_of("cudaMemPoolCreate") == 3);
    CHECK(fake_cuda::calls_of("cudaMallocFromPoolAsync") == 1);
    fill(*block, 3, stream);
    CHECK(first_byte(*block, stream) == 3);
    // As a kernel of NCCL's does, which reads the other's memory where both are in one process.
    CHECK(fake_cuda::check_kernel_memory("kernel", native_stream(other), block->data, 64));
    CHECK(broken_rules() == "");
    CHECK_FALSE(fake_cuda::check_kernel_memory("kernel", native_stream(denied), block->data, 64));
    CHECK_THAT(broken_rules(), Catch::Matchers::Contains("was not given access"));
    CHECK(travel(Device::cuda(0), Device::cuda(2), 5) == 5);
    CHECK(travel(Device::cuda(2), Device::cuda(0), 6) == 6);
    CHECK(travel(Device::cuda(0), Device::cuda(1), 7) == 7);
    CHECK_THROWS_AS(allocate(stream, std::size_t{4} << 30), OutOfMemory);
    CHECK(travel(Device::cuda(0), Device::cuda(2), 8) == 8);
  }
  for (int i = 0; i < 3; ++i) empty_cache(Device::cuda(i));
  CHECK(fake_cuda::calls_of("cudaMemPoolTrimTo") == fake_cuda::calls_of("cudaFree"));
  CHECK(fake_cuda::calls_of("cudaMemPoolTrimTo") > 0);
  for (int i = 0; i < 3; ++i) CHECK(fake_cuda::used_bytes(i) == 0);
  CHECK(mallocs() == 0);
  cudaMemPool_t own = nullptr;
  std::uint64_t most = 1;
  REQUIRE(cudaDeviceGetDefaultMemPool(&own, 0) == cudaSuccess);
  CHECK(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemHigh, &most) == cudaSuccess);
  CHECK(most == 0);  // the default pool is the program's
  CHECK(broken_rules() == "");
}

// ctest: fake_cuda/pool_errors
TEST_CASE("an error on the way to a pool, or to its memory, leaves nothing behind", "[.pool_errors]") {
  for (const char* call : {"cudaMemPoolCreate", "cudaMemPoolSetAccess", "cudaStreamCreateWithFlags"}) {
    const fake_cuda::NothingLeft nothing;
    fake_cuda::inject({.call = call, .error = cudaErrorInvalidValue});
    CHECK_THROWS_WITH(Stream(kDevice), Catch::Matchers::Contains(call));
  }
  const Stream stream(kDevice);
  const MemoryStats before = memory_stats(kDevice);
  synchronize(stream);
  for (const char* call : {"cudaMallocFromPoolAsync", "cudaStreamQuery"}) {
    const fake_cuda::NothingLeft nothing;
    fake_cuda::inject({.call = call, .error = cudaErrorInvalidValue});
    CHECK_THROWS_WITH(allocate(stream, 3 << 20), Catch::Matchers::Contains(call));
    CHECK(memory_stats(kDevice).cached_bytes == before.cached_bytes);
    synchronize(stream);
  }
  CHECK(travel(kDevice, Device::cuda(3), 4) == 4);
  CHECK(mallocs() == 0);
  CHECK(broken_rules() == "");
}

// ctest: fake_cuda/pool_logical
TEST_CASE("logical devices have a pool and a share each, and use each other's memory by copies", "[.pool_logical]") {
  const int count = backend(DeviceType::cuda).device_count();
  REQUIRE(count == 5);  // of two GPUs
  for (int from = 0; from < count; ++from) {
    const int to = (from + 1) % count, twin = (from + 2) % count;
    CHECK(travel(Device::cuda(from), Device::cuda(to), 10 + from) == 10 + from);
    CHECK(travel(Device::cuda(from), Device::cuda(twin), 20 + from) == 20 + from);
  }
  CHECK(fake_cuda::calls_of("cudaMemPoolCreate") == count);
  const Stream stream(Device::cuda(0));
  CHECK_THROWS_AS(allocate(stream, properties(Device::cuda(0)).total_memory_bytes + 1), OutOfMemory);
  CHECK(mallocs() == 0);
  CHECK(broken_rules() == "");
}

// ctest: fake_cuda/no_pools
TEST_CASE("a GPU without memory pools is not supported with them, and says so", "[.no_pools]") {
  const fake_cuda::NothingLeft nothing;
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_AS(Stream(kDevice), NotSupported);
    CHECK_THROWS_WITH(Stream(kDevice), Catch::Matchers::Contains("[LOCKSTEP_CUDA_MEMORY] expected a GPU with memory "
                                                                 "pools for pool, got cuda:2 (Fake GPU 2), which has "
                                                                 "none: use device"));
  }
}

// ctest: fake_cuda/pool_unknown
TEST_CASE("where memory comes from is device or pool", "[.pool_unknown]") {
  CHECK_THROWS_WITH(Stream(kDevice), "[LOCKSTEP_CUDA_MEMORY] expected device or pool, got \"pol\"");
}
