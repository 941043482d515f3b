// What the program around the library does with CUDA itself, and the library must bear with.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

struct Release {
  void operator()(MemoryBlock* block) const { release(block); }
};
using Owned = std::unique_ptr<MemoryBlock, Release>;

// Raw memory, pinned memory, streams, events, copies, questions and waits. False where bytes have been lost, or an
// error was thrown: not every caller may assert.
bool use(Device device) try {
  constexpr std::size_t kBytes = 3 << 20;
  Stream stream(device);
  const Stream host = default_stream(Device::cpu());
  std::vector<unsigned char> sent(kBytes, 7), received(kBytes);
  {
    const Owned block(allocate(stream, kBytes));
    copy_bytes({block->data, device, sent.data(), Device::cpu(), kBytes}, host, stream);
    copy_bytes({received.data(), Device::cpu(), block->data, device, kBytes}, stream, host);
  }
  backend(device).free_pinned(backend(device).allocate_pinned(kBytes));
  Event event;
  event.record(stream);
  (void)event.query();
  (void)stream.query();
  synchronize(stream);
  synchronize(device);
  empty_cache(device);
  return received == sent;
} catch (const Error&) {
  return false;
}

}  // namespace

TEST_CASE("the library works in primary contexts, and leaves the caller's own one current") {
  for (const int ordinal : {native_ordinal(Device::cuda(2)), native_ordinal(Device::cuda(5))}) {
    const fake_cuda::ForeignContext context(ordinal);
    CHECK(use(Device::cuda(2)));
    CHECK(use(Device::cuda(1)));
    CHECK(use(Device::cuda(2)));
    int current = -1;
    CHECK(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == ordinal);
  }
  CHECK(fake_cuda::take_failures().empty());
}

TEST_CASE("memory that the program has pinned or registered itself is copied straight") {
  const Device device = Device::cuda(2);
  constexpr std::size_t kBytes = std::size_t{5} << 19;  // three pieces of staging
  const Stream stream = default_stream(device), host = default_stream(Device::cpu());
  const Owned block(allocate(stream, kBytes));
  // The calls that it takes there and back.
  const auto copies = [&](unsigned char* sent, unsigned char* received) {
    std::fill_n(sent, kBytes, static_cast<unsigned char>(9));
    const int before = fake_cuda::calls_of("cudaMemcpyAsync");
    copy_bytes({block->data, device, sent, Device::cpu(), kBytes}, host, stream);
    copy_bytes({received, Device::cpu(), block->data, device, kBytes}, stream, host);
    CHECK(std::equal(sent, sent + kBytes, received));
    return fake_cuda::calls_of("cudaMemcpyAsync") - before;
  };
  std::vector<unsigned char> sent(kBytes), received(kBytes);
  CHECK(copies(sent.data(), received.data()) == 6);
  REQUIRE(cudaHostRegister(sent.data(), kBytes, cudaHostRegisterDefault) == cudaSuccess);
  CHECK(copies(sent.data(), received.data()) == 4);
  CHECK(cudaHostUnregister(sent.data()) == cudaSuccess);
  CHECK(copies(sent.data(), received.data()) == 6);
  void *pinned = nullptr, *other = nullptr;
  REQUIRE(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&other, kBytes, cudaHostAllocDefault) == cudaSuccess);
  CHECK(copies(static_cast<unsigned char*>(pinned), static_cast<unsigned char*>(other)) == 2);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFreeHost(other) == cudaSuccess);
  CHECK(fake_cuda::take_failures().empty());
}

TEST_CASE("the library invalidates no capture of the program around it, in no thread") {
  const Device device = Device::cuda(2);
  int before = 0;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  REQUIRE(cudaSetDevice(native_ordinal(device)) == cudaSuccess);
  cudaStream_t captured = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking) == cudaSuccess);
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    REQUIRE(cudaStreamBeginCapture(captured, mode) == cudaSuccess);
    CHECK(use(device));
    CHECK(use(Device::cuda(1)));
    bool used = false;
    std::thread([&] { used = use(device); }).join();
    CHECK(used);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(captured, &graph) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    auto own = cudaStreamCaptureModeRelaxed;
    CHECK(cudaThreadExchangeStreamCaptureMode(&own) == cudaSuccess);
    CHECK(own == cudaStreamCaptureModeGlobal);  // the thread's, as it was
    CHECK(cudaThreadExchangeStreamCaptureMode(&own) == cudaSuccess);
  }
  CHECK(fake_cuda::take_failures().empty());
  CHECK(cudaStreamDestroy(captured) == cudaSuccess);
  CHECK(cudaSetDevice(before) == cudaSuccess);
}
