// Each rule broken on purpose: exactly that failure is written down, and the correct use next to it is not.
#include "fake_cuda/rules_test.h"

#include <thread>

using namespace fake_test;  // NOLINT

namespace {

TEST_CASE("a kernel is launched with its stream's device current") {
  const Machine machine;
  cudaStream_t stream = make_stream(1);
  int* memory = make_memory(1);
  contract::launch_fill(memory, 1, 4, {1, 32, 0}, stream);
  REQUIRE(cudaGetLastError() == cudaSuccess);
  CHECK(broken() == none());
  OnDevice other(0);
  contract::launch_fill(memory, 1, 4, {1, 32, 0}, stream);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(broken() == only(Rule::wrong_device));
}

TEST_CASE("an event is recorded on a stream of its device and waited for by any") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(1);
  cudaEvent_t event = make_event(0);
  CHECK(cudaEventRecord(event, stream) == cudaSuccess);  // with device 0 current by make_event
  CHECK(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
  CHECK(broken() == none());
  CHECK(cudaEventRecord(event, other) == cudaErrorInvalidResourceHandle);
  (void)forget_error();
  CHECK(broken() == only(Rule::wrong_device));
}

TEST_CASE("a capture of a stream bears only what cannot wait, but where the thread's mode is relaxed") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  cudaEvent_t event = make_event(0);
  cudaGraph_t graph = nullptr;
  const auto begin = [&](cudaStreamCaptureMode mode) { CHECK(cudaStreamBeginCapture(stream, mode) == cudaSuccess); };
  const auto elsewhere = [](auto&& work) { std::thread(work).join(); };
  const auto ask = [&] { (void)(cudaEventQuery(event) == cudaSuccess || cudaGetLastError() == cudaSuccess); };
  bool good = false;  // threads do not assert
  const auto ask_relaxed = [&] {
    auto mode = cudaStreamCaptureModeRelaxed;
    void* memory = nullptr;
    good = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess && mode == cudaStreamCaptureModeGlobal &&
           cudaEventQuery(event) == cudaSuccess && cudaMalloc(&memory, 64) == cudaSuccess &&
           cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess && mode == cudaStreamCaptureModeRelaxed;
  };
  SECTION("of any mode") {
    for (const auto mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
      begin(mode);
      ask_relaxed();
      CHECK(good);
      elsewhere(ask_relaxed);
      CHECK(good);
      CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
      CHECK(cudaGraphDestroy(graph) == cudaSuccess);
      CHECK(broken() == none());
    }
  }
  SECTION("the thread's own") {
    begin(cudaStreamCaptureModeThreadLocal);
    elsewhere(ask);
    CHECK(broken() == none());
    ask();
    CHECK(broken() == only(Rule::during_capture));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    (void)forget_error();
  }
  SECTION("another thread's") {
    begin(cudaStreamCaptureModeGlobal);
    elsewhere(ask);
    CHECK(broken() == only(Rule::during_capture));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    (void)forget_error();
  }
}

TEST_CASE("memory of another device is used by copies and by peers only") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  int *mine = make_memory(0), *other = make_memory(1);
  CHECK(cudaMemcpyPeerAsync(mine, 0, other, 1, 64, stream) == cudaSuccess);
  CHECK(fake_cuda::check_kernel_memory("kernel", stream, mine, 64));
  CHECK(finish(stream) == cudaSuccess);
  CHECK(broken() == none());
  SECTION("fill") {
    CHECK(cudaMemsetAsync(other, 0, 64, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::foreign_memory));
  }
  SECTION("kernel operand") {
    CHECK_FALSE(fake_cuda::check_kernel_memory("kernel", stream, other, 64));
    CHECK(broken() == only(Rule::foreign_memory));
  }
  SECTION("copy without peer access, then with") {
    CHECK(cudaMemcpyAsync(mine, other, 64, cudaMemcpyDeviceToDevice, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::foreign_memory));
    OnDevice current(0);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
    CHECK(cudaMemcpyAsync(mine, other, 64, cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
    CHECK(broken() == none());
  }
  SECTION("named as another device's") {
    CHECK(cudaMemcpyPeerAsync(mine, 1, other, 1, 64, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::foreign_memory));
  }
  SECTION("the kind of copy says otherwise") {
    CHECK(cudaMemcpyAsync(mine, other, 64, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::foreign_memory));
  }
  CHECK(finish(stream) == cudaSuccess);
}

TEST_CASE("memory is used within its bounds") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  int* memory = make_memory(0, 256);
  CHECK(cudaMemsetAsync(memory, 1, 256, stream) == cudaSuccess);
  CHECK(broken() == none());
  CHECK(cudaMemsetAsync(memory, 1, 257, stream) == cudaErrorInvalidValue);
  (void)forget_error();
  CHECK(broken() == only(Rule::out_of_bounds));
  CHECK_FALSE(fake_cuda::check_kernel_memory("kernel", stream, memory + 32, 256));
  CHECK(broken() == only(Rule::out_of_bounds));
}

TEST_CASE("reads and writes are ordered by the stream, an event or a host wait") {
  const Machine machine;
  cudaStream_t writer = make_stream(0), reader = make_stream(0);
  int *memory = make_memory(0), *pinned = make_pinned();
  REQUIRE(cudaMemsetAsync(memory, 1, 64, writer) == cudaSuccess);
#ifndef __SANITIZE_THREAD__  // which would report these races too, and rightly
  SECTION("nothing orders them") {
    CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, reader) == cudaSuccess);
    CHECK(broken() == only(Rule::unordered));
  }
  SECTION("an event that was recorded too early") {
    cudaEvent_t event = make_event(0);
    CHECK(cudaEventRecord(event, writer) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(memory, 2, 64, writer) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(reader, event, 0) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, reader) == cudaSuccess);
    CHECK(broken() == only(Rule::unordered));
  }
#endif
  SECTION("an event") {
    cudaEvent_t event = make_event(0);
    CHECK(cudaEventRecord(event, writer) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(reader, event, 0) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, reader) == cudaSuccess);
  }
  SECTION("a host wait") {
    CHECK(finish(writer) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, reader) == cudaSuccess);
  }
  CHECK(finish(writer) == cudaSuccess);
  CHECK(finish(reader) == cudaSuccess);
  CHECK(broken() == none());
}

TEST_CASE("memory is not used after it was freed, nor freed in flight") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  int* memory = make_memory(0);
  REQUIRE(cudaMemsetAsync(memory, 1, 64, stream) == cudaSuccess);
  SECTION("in flight") {
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(broken() == only(Rule::unordered));
  }
  SECTION("later") {
    CHECK(finish(stream) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(broken() == none());
    CHECK(cudaMemsetAsync(memory, 1, 64, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::use_after_free));
    CHECK_FALSE(fake_cuda::check_kernel_memory("kernel", stream, memory, 64));
    CHECK(broken() == only(Rule::use_after_free));
    CHECK(cudaFree(memory) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::use_after_free));
  }
  SECTION("pinned memory") {
    int* pinned = make_pinned();
    CHECK(finish(stream) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::use_after_free));
  }
  SECTION("by the wrong function") {
    CHECK(finish(stream) == cudaSuccess);
    CHECK(cudaFreeHost(memory) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::foreign_memory));
  }
}

TEST_CASE("handles are used while they live") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  cudaEvent_t event = make_event(0);
  SECTION("stream") {
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(broken() == none());
    CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
  }
  SECTION("event") {
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    CHECK(broken() == none());
    CHECK(cudaEventQuery(event) == cudaErrorInvalidResourceHandle);
  }
  SECTION("twice") {
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    CHECK(broken() == none());
    CHECK(cudaEventDestroy(event) == cudaErrorInvalidResourceHandle);
  }
  (void)forget_error();
  CHECK(broken() == only(Rule::dead_handle));
}

TEST_CASE("nothing goes to the default streams") {
  const Machine machine;
  int* memory = make_memory(0);
  for (cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    CHECK(cudaMemsetAsync(memory, 1, 64, stream) == cudaErrorInvalidResourceHandle);
    (void)forget_error();
    CHECK(broken() == only(Rule::default_stream));
  }
}

TEST_CASE("host functions do not call CUDA") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  static std::atomic<int> returned{-1};
  REQUIRE(cudaLaunchHostFunc(
              stream,
              [](void*) {
                void* memory = nullptr;
                returned = cudaMalloc(&memory, 64);
                (void)cudaGetLastError();
              },
              nullptr) == cudaSuccess);
  CHECK(finish(stream) == cudaSuccess);
  CHECK(returned == cudaErrorNotPermitted);
  CHECK(broken() == only(Rule::cuda_in_host_function));
}

TEST_CASE("asynchronous copies use pinned memory") {
  cudaStream_t stream = nullptr;
  std::vector<int> pageable(16, 7);
  SECTION("checked") {
    const Machine machine;
    stream = make_stream(0);
    int* memory = make_memory(0);
    CHECK(cudaMemcpyAsync(memory, pageable.data(), 64, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(broken() == only(Rule::pageable_copy));
  }
  SECTION("allowed: it blocks") {
    const Machine machine({.allow_pageable = true});
    stream = make_stream(0);
    int* memory = make_memory(0);
    CHECK(cudaMemcpyAsync(memory, pageable.data(), 64, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaStreamQuery(stream) == cudaSuccess);
    std::vector<int> back(16);
    CHECK(cudaMemcpyAsync(back.data(), memory, 64, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(back == pageable);
    CHECK(broken() == none());
  }
}

TEST_CASE("errors are looked at before the next call") {
  const Machine machine;
  make_memory(0);
  CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);
  SECTION("asked for") {
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    make_memory(0);
    CHECK(broken() == none());
  }
  SECTION("not asked for before the next call") {
    make_memory(0);
    CHECK(broken() == only(Rule::unchecked_error));
    (void)forget_error();
  }
  SECTION("not asked for before the test ends") {
    fake_cuda::end_test();
    CHECK(broken() == only(Rule::unchecked_error));
    (void)forget_error();
  }
  CHECK(broken() == none());
}

TEST_CASE("an answer of not ready is cleared before other calls, and may be repeated") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  Gate gate(stream);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(broken() == none());
  make_memory(0);
  CHECK(broken() == only(Rule::unchecked_error));
  (void)forget_error();
  gate.open();
  CHECK(finish(stream) == cudaSuccess);
}

}  // namespace
