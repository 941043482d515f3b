// Captures and graphs: what the library's graphs rely on.
#include <thread>

#include "cuda_contract/support.h"

namespace {

using namespace contract;

constexpr auto kMode = cudaStreamCaptureModeThreadLocal;  // the library's
constexpr std::size_t kBytes = 64;

// While it lives the thread's mode is relaxed, as it is in the library's calls.
struct Relaxed {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  Relaxed() { REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess); }
  Relaxed(const Relaxed&) = delete;
  ~Relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
};

struct Exec {
  cudaGraphExec_t handle = nullptr;
  // Ends the capture.
  explicit Exec(const Stream& stream) {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&handle, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  }
  Exec(const Exec&) = delete;
  ~Exec() { (void)cudaGraphExecDestroy(handle); }
};

cudaError_t end(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t result = cudaStreamEndCapture(stream.handle, &graph);
  (void)cudaGetLastError();
  CHECK((graph != nullptr) == (result == cudaSuccess));
  if (graph) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  return result;
}

int first_of(const Memory& memory, const Stream& stream) {
  const Pinned host;
  REQUIRE(cudaMemcpyAsync(host.data, memory.data, kBytes, cudaMemcpyDeviceToHost, stream.handle) == cudaSuccess);
  REQUIRE(finish(stream.handle) == cudaSuccess);
  return host.data[0];
}

TEST_CASE("a capture runs nothing, and each launch of its graph all of it, with what pinned memory has then") {
  if (!have_devices(1, "captures")) return;
  const Stream stream;
  const Memory memory, copied;
  const Pinned pinned;
  int calls = 0;
  REQUIRE(cudaMemsetAsync(copied.data, 0, kBytes, stream.handle) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
  CHECK(cudaMemcpyAsync(memory.data, pinned.data, kBytes, cudaMemcpyHostToDevice, stream.handle) == cudaSuccess);
  CHECK(cudaMemcpyAsync(copied.data, memory.data, kBytes, cudaMemcpyDeviceToDevice, stream.handle) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(
            stream.handle, [](void* count) { ++*static_cast<int*>(count); }, &calls) == cudaSuccess);
  const Exec graph(stream);
  CHECK(first_of(copied, stream) == 0);
  CHECK(calls == 0);
  for (int i = 1; i <= 3; ++i) {
    pinned.data[0] = i;
    REQUIRE(cudaGraphLaunch(graph.handle, stream.handle) == cudaSuccess);
    CHECK(first_of(copied, stream) == i);
    CHECK(calls == i);
  }
}

TEST_CASE("a question to a captured stream, or to an event in it, ends the capture in any mode") {
  if (!have_devices(1, "questions in captures")) return;
  const Stream stream;
  const Event event;
  const Relaxed relaxed;
  for (const bool of_stream : {true, false}) {
    REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
    REQUIRE(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
    if (of_stream)
      CHECK(cudaStreamQuery(stream.handle) == cudaErrorStreamCaptureUnsupported);
    else
      CHECK(cudaEventQuery(event.handle) == cudaErrorCapturedEvent);
    (void)cudaGetLastError();
    refused("during a capture");
    CHECK(end(stream) == cudaErrorStreamCaptureInvalidated);
  }
  CHECK(finish(stream.handle) == cudaSuccess);
}

TEST_CASE("a capture does not wait for an event from outside, and one that is over may be asked about") {
  if (!have_devices(1, "events from outside of captures")) return;
  const Stream stream, other;
  const Event event, never;
  REQUIRE(cudaEventRecord(event.handle, other.handle) == cudaSuccess);
  REQUIRE(finish(other.handle) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
  {
    const Relaxed relaxed;
    CHECK(cudaEventQuery(event.handle) == cudaSuccess);
    // Other streams wait, record and run meanwhile.
    CHECK(cudaStreamWaitEvent(other.handle, event.handle, 0) == cudaSuccess);
    CHECK(cudaEventRecord(never.handle, other.handle) == cudaSuccess);
  }
  CHECK(cudaStreamWaitEvent(stream.handle, event.handle, 0) == cudaErrorStreamCaptureIsolation);
  (void)cudaGetLastError();
  refused("during a capture");
  CHECK(end(stream) == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("a stream that waits for a captured one is captured, and has to be waited for") {
  if (!have_devices(1, "forks of captures")) return;
  const Stream stream, fork;
  const Event out, back;
  const Memory memory;
  for (const bool joined : {true, false}) {
    REQUIRE(cudaMemsetAsync(memory.data, 0, kBytes, stream.handle) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
    REQUIRE(cudaEventRecord(out.handle, stream.handle) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(fork.handle, out.handle, 0) == cudaSuccess);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(fork.handle, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusActive);
    CHECK(cudaMemsetAsync(memory.data, 1, kBytes, fork.handle) == cudaSuccess);
    if (joined) {
      REQUIRE(cudaEventRecord(back.handle, fork.handle) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(stream.handle, back.handle, 0) == cudaSuccess);
      const Exec graph(stream);
      CHECK(first_of(memory, stream) == 0);
      REQUIRE(cudaGraphLaunch(graph.handle, stream.handle) == cudaSuccess);
      CHECK(first_of(memory, stream) == 0x01010101);
    } else {
      CHECK(end(stream) == cudaErrorStreamCaptureUnjoined);
      refused("during a capture");
    }
    CHECK(cudaStreamIsCapturing(fork.handle, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusNone);
    CHECK(finish(fork.handle) == cudaSuccess);
  }
}

TEST_CASE("a stream that has joined a capture and done nothing need not be waited for, and may be") {
  if (!have_devices(1, "empty forks of captures")) return;
  const Stream stream, fork;
  const Event out, back;
  for (const bool joined : {true, false}) {
    REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
    REQUIRE(cudaEventRecord(out.handle, stream.handle) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(fork.handle, out.handle, 0) == cudaSuccess);
    if (joined) {
      REQUIRE(cudaEventRecord(back.handle, fork.handle) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(stream.handle, back.handle, 0) == cudaSuccess);
    }
    CHECK(end(stream) == cudaSuccess);
  }
}

TEST_CASE("the thread that captures allocates where its mode is relaxed, and others always") {
  if (!have_devices(1, "memory in captures")) return;
  const Stream stream;
  void *memory = nullptr, *other = nullptr, *pinned = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
  {
    const Relaxed relaxed;
    CHECK(cudaMalloc(&memory, 64) == cudaSuccess);
    CHECK(cudaHostAlloc(&pinned, 64, cudaHostAllocPortable) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
  }
  cudaError_t elsewhere = cudaErrorUnknown;
  std::thread([&] {
    (void)cudaSetDevice(0);
    elsewhere = cudaMalloc(&other, 64);
    (void)cudaFree(other);
  }).join();
  CHECK(elsewhere == cudaSuccess);
  CHECK(cudaMalloc(&memory, 64) == cudaErrorStreamCaptureUnsupported);
  (void)cudaGetLastError();
  refused("during a capture");
  CHECK(end(stream) == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("a capture ends in its thread, and on its stream") {
  if (!have_devices(1, "ends of captures")) return;
  const Stream stream, fork;
  const Event out;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
  CHECK(cudaStreamBeginCapture(stream.handle, kMode) == cudaErrorIllegalState);
  (void)cudaGetLastError();
  cudaError_t elsewhere = cudaSuccess;
  std::thread([&] {
    (void)cudaSetDevice(0);
    elsewhere = cudaStreamEndCapture(stream.handle, &graph);
    (void)cudaGetLastError();
  }).join();
  CHECK(elsewhere == cudaErrorStreamCaptureWrongThread);
  refused("during a capture");
  CHECK(end(stream) == cudaErrorStreamCaptureInvalidated);

  REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
  REQUIRE(cudaEventRecord(out.handle, stream.handle) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(fork.handle, out.handle, 0) == cudaSuccess);
  CHECK(cudaStreamEndCapture(fork.handle, &graph) == cudaErrorStreamCaptureUnmatched);
  (void)cudaGetLastError();
  refused("during a capture");
  CHECK(end(stream) == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("launches of one graph come after each other on two streams, and it may go before they are over") {
  if (!have_devices(1, "launches of one graph")) return;
  const Stream stream, other;
  const Memory memory;
  REQUIRE(cudaStreamBeginCapture(stream.handle, kMode) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory.data, 1, kBytes, stream.handle) == cudaSuccess);
  {
    const Exec graph(stream);
    Gate gate(stream.handle);
    REQUIRE(cudaGraphLaunch(graph.handle, stream.handle) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(graph.handle, other.handle) == cudaSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(cudaStreamQuery(other.handle) == cudaErrorNotReady);
    (void)cudaGetLastError();
    gate.open();
  }
  CHECK(finish(other.handle) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(first_of(memory, stream) == 0x01010101);
}

}  // namespace
