// The rules of captures and graphs: what a capture bears, and how it ends.
#include <thread>

#include "fake_cuda/rules_test.h"

using namespace fake_test;  // NOLINT

namespace {

constexpr auto kMode = cudaStreamCaptureModeThreadLocal;

void begin(cudaStream_t stream) { REQUIRE(cudaStreamBeginCapture(stream, kMode) == cudaSuccess); }
cudaGraph_t end(cudaStream_t stream, cudaError_t expected = cudaSuccess) {
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == expected);
  (void)forget_error();
  CHECK((graph != nullptr) == (expected == cudaSuccess));
  cudaStreamCaptureStatus status{};
  CHECK(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusNone);
  return graph;
}
cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  return exec;
}
cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  CHECK(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
  return status;
}
void fill(int* memory, int value, cudaStream_t stream) {
  CHECK(cudaMemsetAsync(memory, value, 64, stream) == cudaSuccess);
}

TEST_CASE("what is captured does not run before the graph is launched, and then every time") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  int *memory = make_memory(0), *host = make_pinned();
  int calls = 0;
  begin(stream);
  fill(memory, 1, stream);
  CHECK(cudaLaunchHostFunc(
            stream, [](void* count) { ++*static_cast<int*>(count); }, &calls) == cudaSuccess);
  contract::launch_fill(memory, 1, 4, {1, 32, 0}, stream);
  CHECK(cudaMemcpyAsync(host, memory, 64, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  CHECK(status_of(stream) == cudaStreamCaptureStatusActive);
  cudaGraphExec_t exec = instantiate(end(stream));
  REQUIRE(finish(stream) == cudaSuccess);
  CHECK(calls == 0);
  for (int launches = 1; launches <= 3; ++launches) {
    host[0] = 0;
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    REQUIRE(finish(stream) == cudaSuccess);
    CHECK(calls == launches);
    CHECK(host[0] == 0x01010101);
  }
  CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
  CHECK(broken() == none());
}

TEST_CASE("a stream that is captured, and an event in it, are not asked whether work is done") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  cudaEvent_t event = make_event(0);
  auto mode = cudaStreamCaptureModeRelaxed;  // whatever the thread's mode
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  begin(stream);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  CHECK(broken() == none());
  SECTION("the stream") { CHECK(cudaStreamQuery(stream) == cudaErrorStreamCaptureUnsupported); }
  SECTION("the event") { CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent); }
  (void)forget_error();
  CHECK(broken() == only(Rule::during_capture));
  CHECK(status_of(stream) == cudaStreamCaptureStatusInvalidated);
  int* memory = make_memory(0);
  CHECK(cudaMemsetAsync(memory, 0, 4, stream) == cudaErrorStreamCaptureInvalidated);
  (void)forget_error();
  CHECK(cudaEventRecord(event, stream) == cudaErrorStreamCaptureInvalidated);
  (void)forget_error();
  end(stream, cudaErrorStreamCaptureInvalidated);
  CHECK(broken() == none());
  fill(memory, 0, stream);  // it is a stream again
  CHECK(finish(stream) == cudaSuccess);
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
}

TEST_CASE("a capture waits for its own events alone") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(0);
  cudaEvent_t event = make_event(0), never = make_event(0);
  SECTION("one from outside") {
    REQUIRE(cudaEventRecord(event, other) == cudaSuccess);
    begin(stream);
    CHECK(cudaStreamWaitEvent(stream, never, 0) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(stream, event, 0) == cudaErrorStreamCaptureIsolation);
  }
  SECTION("another capture's") {
    begin(other);
    REQUIRE(cudaEventRecord(event, other) == cudaSuccess);
    begin(stream);
    CHECK(cudaStreamWaitEvent(stream, event, 0) == cudaErrorStreamCaptureMerge);
    (void)forget_error();
    end(other, cudaErrorStreamCaptureInvalidated);
  }
  (void)forget_error();
  CHECK(broken() == only(Rule::during_capture));
  end(stream, cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("an event of a capture that is over marks nothing") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(0);
  cudaEvent_t event = make_event(0);
  begin(stream);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  CHECK(cudaGraphDestroy(end(stream)) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(other, event, 0) == cudaErrorCapturedEvent);
  (void)forget_error();
  CHECK(broken() == only(Rule::during_capture));
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
  CHECK(finish(other) == cudaSuccess);
  CHECK(broken() == none());
}

TEST_CASE("a stream that joins a capture is waited for before its end") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), fork = make_stream(0);
  cudaEvent_t event = make_event(0), back = make_event(0);
  int* memory = make_memory(0);
  begin(stream);
  fill(memory, 1, stream);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(fork, event, 0) == cudaSuccess);
  CHECK(status_of(fork) == cudaStreamCaptureStatusActive);
  SECTION("it is") {
    fill(memory, 2, fork);
    REQUIRE(cudaEventRecord(back, fork) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(stream, back, 0) == cudaSuccess);
    cudaGraphExec_t exec = instantiate(end(stream));
    int* host = make_pinned();
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(host, memory, 64, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    REQUIRE(finish(stream) == cudaSuccess);
    CHECK(host[0] == 0x02020202);
    CHECK(broken() == none());
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
  }
  SECTION("not at all") {
    fill(memory, 2, fork);
    end(stream, cudaErrorStreamCaptureUnjoined);
    CHECK(broken() == only(Rule::during_capture));
  }
  SECTION("not for its last work") {
    REQUIRE(cudaEventRecord(back, fork) == cudaSuccess);
    fill(memory, 2, fork);
    REQUIRE(cudaStreamWaitEvent(stream, back, 0) == cudaSuccess);
    end(stream, cudaErrorStreamCaptureUnjoined);
    CHECK(broken() == only(Rule::during_capture));
  }
  CHECK(status_of(fork) == cudaStreamCaptureStatusNone);
}

TEST_CASE("a capture ends on its stream, in its thread, once") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), fork = make_stream(0);
  cudaEvent_t event = make_event(0);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
  (void)forget_error();
  begin(stream);
  CHECK(cudaStreamBeginCapture(stream, kMode) == cudaErrorIllegalState);
  (void)forget_error();
  CHECK(broken() == none());
  SECTION("on another stream") {
    REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(fork, event, 0) == cudaSuccess);
    CHECK(cudaStreamEndCapture(fork, &graph) == cudaErrorStreamCaptureUnmatched);
    (void)forget_error();
  }
  SECTION("in another thread") {
    cudaError_t ended = cudaSuccess;
    std::thread([&] {
      ended = cudaStreamEndCapture(stream, &graph);
      (void)forget_error();
    }).join();
    CHECK(ended == cudaErrorStreamCaptureWrongThread);
  }
  CHECK(broken() == only(Rule::during_capture));
  end(stream, cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("a thread that captures allocates only where its mode is relaxed") {
  const Machine machine;
  cudaStream_t stream = make_stream(0);
  void* memory = nullptr;
  begin(stream);
  auto mode = cudaStreamCaptureModeRelaxed;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(cudaMalloc(&memory, 64) == cudaSuccess);
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  cudaError_t elsewhere = cudaErrorUnknown;
  std::thread([&] { elsewhere = cudaMalloc(&memory, 64); }).join();
  CHECK(elsewhere == cudaSuccess);
  CHECK(broken() == none());
  CHECK(cudaMalloc(&memory, 64) == cudaErrorStreamCaptureUnsupported);
  (void)forget_error();
  CHECK(broken() == only(Rule::during_capture));
  end(stream, cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("the legacy default stream is not captured") {
  const Machine machine;
  CHECK(cudaStreamBeginCapture(nullptr, kMode) == cudaErrorStreamCaptureUnsupported);
  (void)forget_error();
  CHECK(broken() == only(Rule::default_stream));
}

TEST_CASE("a graph is launched on its device, while it and its memory live") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), elsewhere = make_stream(1);
  int* memory = make_memory(0);
  OnDevice first(0);
  begin(stream);
  fill(memory, 1, stream);
  cudaGraph_t graph = end(stream);
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  {
    const fake_cuda::Alive now = fake_cuda::alive();
    CHECK(now.handles == 2);
  }
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(broken() == none());
  SECTION("another device") {
    CHECK(cudaGraphLaunch(exec, elsewhere) == cudaErrorInvalidValue);
    CHECK(broken() == only(Rule::wrong_device));
  }
  SECTION("into a capture") {
    cudaStream_t captured = make_stream(0);
    begin(captured);
    CHECK(cudaGraphLaunch(exec, captured) == cudaErrorStreamCaptureUnsupported);
    CHECK(broken() == only(Rule::during_capture));
    (void)forget_error();
    end(captured, cudaErrorStreamCaptureInvalidated);
  }
  SECTION("memory that was freed") {
    REQUIRE(finish(stream) == cudaSuccess);
    REQUIRE(cudaFree(memory) == cudaSuccess);
    CHECK(cudaGraphLaunch(exec, stream) == cudaErrorInvalidValue);
    CHECK(broken() == only(Rule::use_after_free));
  }
  SECTION("a graph that was destroyed") {
    REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaGraphLaunch(exec, stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(cudaGraphDestroy(graph) == cudaErrorInvalidValue);
    CHECK(broken() == std::vector<std::string>(3, std::string(name_of(Rule::dead_handle))));
    CHECK(fake_cuda::alive().handles == 0);
  }
  SECTION("a device that is lost") {
    fake_cuda::break_device(0, cudaErrorIllegalAddress);
    CHECK(cudaGraphLaunch(exec, stream) == cudaErrorIllegalAddress);
  }
  (void)forget_error();
}

TEST_CASE("launches of one graph come after each other, on whichever streams") {
  const Machine machine;
  cudaStream_t stream = make_stream(0), other = make_stream(0);
  int* memory = make_memory(0);
  begin(stream);
  fill(memory, 1, stream);
  cudaGraphExec_t exec = instantiate(end(stream));
  Gate gate(stream);
  REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(exec, other) == cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(cudaStreamQuery(other) == cudaErrorNotReady);
  (void)forget_error();
  gate.open();
  CHECK(finish(other) == cudaSuccess);
  CHECK(finish(stream) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
  CHECK(broken() == none());
}

}  // namespace
