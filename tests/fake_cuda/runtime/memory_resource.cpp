// A memory resource that calls CUDA itself.
#include "lockstep/runtime/memory/memory_resource.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#include "fake_cuda/runtime/graph_test.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/stream/growth_lock.h"

using namespace graph_test;  // NOLINT

namespace {

// cudaMalloc, with the GPU made current and given back, and in the relaxed mode of captures.
class Malloc {
 public:
  Malloc() {
    empty_cache(kDevice);
    set_memory_resource(kDevice, {.allocate = [this](Device device, std::size_t bytes) -> void* {
                                    void* memory = nullptr;
                                    const auto call = [&] { return cudaMalloc(&memory, bytes); };
                                    right = on(device, call) && right;
                                    ++allocations;
                                    return memory;
                                  },
                                  .free =
                                      [this](Device device, void* memory, std::size_t) {
                                        const auto call = [&] { return cudaFree(memory); };
                                        right = on(device, call) && right;
                                        ++frees;
                                      }});
  }
  Malloc(const Malloc&) = delete;
  Malloc& operator=(const Malloc&) = delete;
  ~Malloc() {
    set_memory_resource(kDevice, {});
    empty_cache(kDevice);
  }

  int allocations = 0, frees = 0;
  bool right = true;

 private:
  template <class Call>
  static bool on(Device device, Call call) {
    int before = 0;
    auto mode = cudaStreamCaptureModeRelaxed;
    bool fine = cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(native_ordinal(device)) == cudaSuccess &&
                cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
    fine = call() == cudaSuccess && fine;
    return cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess && cudaSetDevice(before) == cudaSuccess && fine;
  }
};

}  // namespace

TEST_CASE("a memory resource may call cudaMalloc and cudaFree, beside a collective too") {
  Malloc resource;
  const Stream stream(kDevice);
  const Owned held(allocate(stream, 3 << 20));
  CHECK(resource.allocations == 1);
  release(allocate(stream, 5 << 20));
  std::exception_ptr error;
  std::thread grows;
  const int before = fake_cuda::calls_of("cudaMalloc") + fake_cuda::calls_of("cudaFree");
  const auto calls = [&] { return fake_cuda::calls_of("cudaMalloc") + fake_cuda::calls_of("cudaFree") - before; };
  {
    lockstep::detail::begin_collective();
    auto spinning = std::make_unique<fake_cuda::SpinningCollective>();
    grows = std::thread([&] {
      try {
        empty_cache(kDevice);
        release(allocate(stream, 7 << 20));
      } catch (...) {
        error = std::current_exception();
      }
    });
    // Time for a call that does not wait; one that does gives none.
    for (int i = 0; i < 50 && calls() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(calls() == 0);
    spinning.reset();
    lockstep::detail::end_collective();
  }
  grows.join();
  CHECK(!error);
  CHECK(calls() == 2);
  CHECK(resource.right);
  CHECK(broken_rules() == "");
}

TEST_CASE("a collective inside a memory resource is an error and no hang") {
  bool refused = false;
  set_memory_resource(kDevice, {.allocate = [&](Device, std::size_t) -> void* {
                                  try {
                                    lockstep::detail::begin_collective();
                                    lockstep::detail::end_collective();
                                  } catch (const InvalidArgument&) {
                                    refused = true;
                                  }
                                  return nullptr;
                                },
                                .free = [](Device, void*, std::size_t) {}});
  const Stream stream(kDevice);
  empty_cache(kDevice);
  CHECK_THROWS_AS(allocate(stream, 9 << 20), OutOfMemory);
  CHECK(refused);
  set_memory_resource(kDevice, {});
}

TEST_CASE("a memory resource is asked in a capture, and its graph runs") {
  Malloc resource;
  const Stream stream(kDevice);
  {
    const Owned block(allocate(stream, 1000));
    const int before = resource.allocations;
    Graph graph = capture(stream, [&] {
      const Owned made(allocate(stream, 5 << 20));
      fill(*made, 3, stream);
      fill(*block, 4, stream);
    });
    CHECK(resource.allocations == before + 1);
    graph.replay(stream);
    CHECK(first_byte(*block, stream) == 4);
  }
  synchronize(stream);
  empty_cache(kDevice);
  CHECK(resource.frees == resource.allocations);
  CHECK(resource.right);
  CHECK(broken_rules() == "");
}
