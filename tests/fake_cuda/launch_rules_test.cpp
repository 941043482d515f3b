// The rules of launches, peers, collectives, contexts and what is left behind.
#include <cublasLt.h>

#include "fake_cuda/rules_test.h"

using namespace fake_test;  // NOLINT

namespace {

TEST_CASE("a launch has as many threads as a block may have") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  int* memory = make_memory(0);
  contract::launch_fill(memory, 1, 4, {1, 1024, 0}, stream);
  contract::launch_bounded(memory, 1, {1, 64, 0}, stream);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(broken() == none());
  SECTION("1025 threads") { contract::launch_fill(memory, 1, 4, {1, 1025, 0}, stream); }
  SECTION("none") { contract::launch_fill(memory, 1, 4, {1, 0, 0}, stream); }
  SECTION("an empty grid") { contract::launch_fill(memory, 1, 4, {0, 32, 0}, stream); }
  SECTION("more than __launch_bounds__") { contract::launch_bounded(memory, 1, {1, 65, 0}, stream); }
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(broken() == only(Rule::bad_launch));
}

TEST_CASE("more than 48 KiB of shared memory is asked for, on each device") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(1);
  int *memory = make_memory(0), *there = make_memory(1);
  OnDevice first(0);
  contract::launch_fill(memory, 1, 4, {1, 32, 48 << 10}, stream);
  CHECK(cudaGetLastError() == cudaSuccess);
  contract::launch_static_shared(memory, 1, {1, 32, 9000}, stream);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(broken() == none());
  SECTION("not asked for") {
    contract::launch_fill(memory, 1, 4, {1, 32, 64 << 10}, stream);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(broken() == only(Rule::bad_launch));
  }
  SECTION("static shared memory counts") {
    contract::launch_static_shared(memory, 1, {1, 32, 10000}, stream);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(broken() == only(Rule::bad_launch));
  }
  SECTION("asked for on another device only") {
    REQUIRE(cudaFuncSetAttribute(contract::fill_function(), cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10) ==
            cudaSuccess);
    contract::launch_fill(memory, 1, 4, {1, 32, 64 << 10}, stream);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(broken() == none());
    OnDevice second(1);
    contract::launch_fill(there, 1, 4, {1, 32, 64 << 10}, other);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(broken() == only(Rule::missing_attribute));
  }
  SECTION("more than there is") {
    CHECK(cudaFuncSetAttribute(contract::fill_function(), cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10) ==
          cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(cudaFuncSetAttribute(contract::static_shared_function(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               200 << 10) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == none());
  }
  SECTION("not a kernel") {
    CHECK(cudaFuncSetAttribute(&memory, cudaFuncAttributeMaxDynamicSharedMemorySize, 1) ==
          cudaErrorInvalidDeviceFunction);
    (void)forget_error();
    CHECK(broken() == only(Rule::bad_launch));
  }
}

TEST_CASE("peer access that is enabled twice is an error to be cleared") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  int* memory = make_memory(0);
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
  SECTION("cleared") {
    CHECK(cudaGetLastError() == cudaErrorPeerAccessAlreadyEnabled);
    contract::launch_fill(memory, 1, 4, {1, 32, 0}, stream);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(broken() == none());
  }
  SECTION("not cleared: the next launch is blamed") {
    contract::launch_fill(memory, 1, 4, {1, 32, 0}, stream);
    CHECK(cudaGetLastError() == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(broken() == only(Rule::unchecked_error));
  }
}

TEST_CASE("raw memory, handles, modules and peers wait until no collective spins") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  int *memory = make_memory(0), *pinned = make_pinned();
  contract::launch_fill(memory, 1, 4, {1, 32, 0}, stream);
  REQUIRE(cudaGetLastError() == cudaSuccess);
  CHECK(finish(stream) == cudaSuccess);
  cublasLtHandle_t handle = nullptr;
  {
    const fake_cuda::SpinningCollective collective;
    // Work goes on.
    contract::launch_fill(memory, 1, 4, {1, 32, 0}, stream);
    CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    cudaEvent_t event = make_event(0);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    CHECK(finish(stream) == cudaSuccess);
    CHECK(broken() == none());

    SECTION("cudaMalloc") { make_memory(0); }
    SECTION("cudaFree") { CHECK(cudaFree(memory) == cudaSuccess); }
    SECTION("cudaHostAlloc") { make_pinned(); }
    SECTION("cudaFreeHost") { CHECK(cudaFreeHost(pinned) == cudaSuccess); }
    SECTION("cudaStreamCreate") { make_stream(0); }
    SECTION("cublasLtCreate") { CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
    SECTION("peer access") { CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess); }
    SECTION("the first launch of a kernel loads it") {
      contract::launch_bounded(memory, 1, {1, 32, 0}, stream);
      CHECK(cudaGetLastError() == cudaSuccess);
    }
    SECTION("so do its attributes") {
      CHECK(cudaFuncSetAttribute(contract::static_shared_function(), cudaFuncAttributeMaxDynamicSharedMemorySize, 64) ==
            cudaSuccess);
    }
    CHECK(broken() == only(Rule::during_collective));
  }
  CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  CHECK(broken() == none());
}

TEST_CASE("a handle of cublasLt is used with its device and while it lives") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(1);
  int *memory = make_memory(0), *there = make_memory(1);
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
  OnDevice first(0);
  REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 2, 2, 2) == CUBLAS_STATUS_SUCCESS);
  const auto multiply = [&](int* at, cudaStream_t on) {
    return cublasLtMatmul(handle, operation, nullptr, at, layout, at, layout, nullptr, at, layout, at, layout, nullptr,
                          nullptr, 0, on);
  };
  CHECK(multiply(memory, stream) == CUBLAS_STATUS_SUCCESS);
  CHECK(broken() == none());
  SECTION("another device's stream") {
    OnDevice second(1);
    CHECK(multiply(there, other) != CUBLAS_STATUS_SUCCESS);
    CHECK(broken() == only(Rule::wrong_device));
  }
  SECTION("another device's memory") {
    CHECK(multiply(there, stream) != CUBLAS_STATUS_SUCCESS);
    CHECK(broken() == only(Rule::foreign_memory));
  }
  SECTION("destroyed") {
    CHECK(cublasLtMatrixLayoutDestroy(layout) == CUBLAS_STATUS_SUCCESS);
    CHECK(multiply(memory, stream) != CUBLAS_STATUS_SUCCESS);
    CHECK(broken() == only(Rule::dead_handle));
  }
  SECTION("its code is loaded beside a collective") {
    const fake_cuda::SpinningCollective collective;
    CHECK(multiply(memory, stream) == CUBLAS_STATUS_SUCCESS);
    CHECK(broken() == none());
    REQUIRE(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(multiply(memory, stream) == CUBLAS_STATUS_SUCCESS);
    CHECK(broken() == only(Rule::during_collective));
  }
}

TEST_CASE("what is made is given back, but for what is kept on purpose") {
  const Machine machine;
  cudaStream_t stream = nullptr;
  int* memory = nullptr;
  {
    const fake_cuda::NothingLeft scope;
    stream = make_stream(0);
    memory = make_memory(0);
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  }
  CHECK(broken() == none());
  {
    const fake_cuda::NothingLeft scope({.streams = 1, .device_allocations = 1});
    stream = make_stream(0);
    memory = make_memory(0);
  }
  CHECK(broken() == none());
  SECTION("stream") {
    const fake_cuda::NothingLeft scope;
    make_stream(0);
  }
  SECTION("event") {
    const fake_cuda::NothingLeft scope;
    make_event(0);
  }
  SECTION("pinned memory") {
    const fake_cuda::NothingLeft scope;
    make_pinned();
  }
  SECTION("handle") {
    const fake_cuda::NothingLeft scope;
    cublasLtHandle_t handle = nullptr;
    CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  }
  SECTION("memory, and more bytes") {
    const fake_cuda::NothingLeft scope({.device_bytes = 4096});
    make_memory(0);
  }
  CHECK(broken() == only(Rule::left_alive));
}

TEST_CASE("what a program leaves alive at its end is written down, but for what it keeps") {
  const Machine machine;
  static std::atomic<int> asked;
  asked = 0;
  fake_cuda::keep_at_end([] {
    ++asked;
    return fake_cuda::Alive{.streams = 1};
  });
  make_stream(0);
  SECTION("nothing else") {
    fake_cuda::check_end();
    CHECK(asked == 1);
    CHECK(broken() == none());
  }
  SECTION("a stream, an event, device memory and its bytes, pinned memory, a handle") {
    make_stream(1);
    make_event(0);
    make_memory(0);
    make_pinned();
    cublasLtHandle_t handle = nullptr;
    CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    fake_cuda::check_end(1);
    CHECK(broken() == std::vector<std::string>(6, "left alive"));
  }
  SECTION("what somebody is about to give back") {
    cudaEvent_t event = make_event(0);
    std::thread other([event] {
      while (asked.load() < 2) std::this_thread::yield();
      (void)cudaEventDestroy(event);
    });
    fake_cuda::check_end();
    other.join();
    CHECK(broken() == none());
  }
  SECTION("what went with a broken device") {
    make_memory(1);
    make_event(1);
    fake_cuda::break_device(1, cudaErrorIllegalAddress);
    fake_cuda::check_end(1);
    CHECK(broken() == none());
  }
  fake_cuda::keep_at_end(nullptr);
}

TEST_CASE("contexts are made where they are asked for") {
  const Machine machine({.only = {2, 3}});
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
  CHECK(fake_cuda::devices_with_context().empty());
  make_memory(3);
  CHECK(fake_cuda::devices_with_context() == std::vector<int>{3});
  CHECK(broken() == none());
  SECTION("by choosing a device") { OnDevice back(0); }
  SECTION("by working on the one that a new thread has") {
    std::thread([] {
      void* memory = nullptr;
      (void)cudaMalloc(&memory, 64);
    }).join();
  }
  SECTION("by peer access") { CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess); }
  CHECK(broken() == only(Rule::unwanted_context));
}

TEST_CASE("the caller's current device stays") {
  const Machine machine;
  {
    const fake_cuda::KeepsCurrentDevice keeps;  // device 0 has no context: it need not be kept
    make_memory(1);
  }
  CHECK(broken() == none());
  {
    const fake_cuda::KeepsCurrentDevice keeps;
    make_memory(2);
    OnDevice back(1);
  }
  CHECK(broken() == none());
  {
    const fake_cuda::KeepsCurrentDevice keeps;
    make_memory(2);
  }
  CHECK(broken() == only(Rule::current_device_changed));
}

TEST_CASE("a failure says where") {
  const Machine machine;
  cudaStream_t stream = make_stream(1);
  OnDevice other(0);
  contract::launch_fill(nullptr, 1, 0, {1, 32, 0}, stream);
  (void)forget_error();
  const std::vector<Failure> failures = fake_cuda::take_failures();
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].call == "cudaLaunchKernel");
  CHECK(failures[0].device == 0);
  CHECK(failures[0].stream == stream);
  CHECK(failures[0].test == "a failure says where");
  CHECK_FALSE(failures[0].place.empty());
  CHECK_FALSE(failures[0].thread.empty());
  CHECK(to_string(failures[0]).find("fill") != std::string::npos);
}

}  // namespace
