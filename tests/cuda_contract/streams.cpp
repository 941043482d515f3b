// Streams, events, copies and host functions.
#include <algorithm>
#include <thread>

#include "cuda_contract/support.h"

using namespace contract;  // NOLINT

namespace {

TEST_CASE("a stream has the priority that it was made with, within the device's range, else the least one") {
  if (!have_devices(1, "priorities")) return;
  int least = -1, greatest = 1;
  REQUIRE(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
  CHECK(least == 0);
  CHECK(greatest <= least);
  const auto priority_of = [](cudaStream_t stream) {
    int priority = 1;
    CHECK(cudaStreamGetPriority(stream, &priority) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    return priority;
  };
  for (const int wanted : {greatest, greatest - 1, least}) {
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, wanted) == cudaSuccess);
    CHECK(priority_of(stream) == std::max(wanted, greatest));
  }
  cudaStream_t plain = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&plain, cudaStreamNonBlocking) == cudaSuccess);
  CHECK(priority_of(plain) == least);
}

TEST_CASE("an event that was never recorded is done and holds nobody up") {
  if (!have_devices(1, "events")) return;
  const Stream stream;
  const Event event;
  CHECK(cudaEventQuery(event.handle) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(stream.handle, event.handle, 0) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
}

TEST_CASE("not ready is an answer that stays the last error until it is asked for") {
  if (!have_devices(1, "not ready")) return;
  const Stream stream;
  const Event event;
  Gate gate(stream.handle);
  CHECK(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
  CHECK(cudaEventQuery(event.handle) == cudaErrorNotReady);
  CHECK(cudaPeekAtLastError() == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaStreamQuery(stream.handle) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  gate.open();
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(cudaEventQuery(event.handle) == cudaSuccess);
}

TEST_CASE("an event marks what was enqueued before it and nothing after") {
  if (!have_devices(1, "events")) return;
  const Stream stream;
  const Event event;
  CHECK(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  const Gate gate(stream.handle);
  CHECK(cudaEventQuery(event.handle) == cudaSuccess);
}

TEST_CASE("recording again does not disturb a stream that waits for the record before") {
  if (!have_devices(1, "recording again")) return;
  const Stream first, second;
  const Event event;
  Gate gate(first.handle);
  CHECK(cudaEventRecord(event.handle, first.handle) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(second.handle, event.handle, 0) == cudaSuccess);
  CHECK(gate.reached());  // or the other gate's host function could be the one that keeps this one from running
  const Stream third;
  Gate never(third.handle);
  CHECK(cudaEventRecord(event.handle, third.handle) == cudaSuccess);
  gate.open();
  CHECK(finish(second.handle) == cudaSuccess);  // although the event is marked anew and not reached
  CHECK(cudaEventQuery(event.handle) == cudaErrorNotReady);
  (void)cudaGetLastError();
  never.open();
  CHECK(finish(third.handle) == cudaSuccess);
}

TEST_CASE("an event may be destroyed while a stream waits for it") {
  if (!have_devices(1, "events")) return;
  const Stream first, second;
  Gate gate(first.handle);
  {
    const Event event;
    CHECK(cudaEventRecord(event.handle, first.handle) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(second.handle, event.handle, 0) == cudaSuccess);
  }
  CHECK(cudaStreamQuery(second.handle) == cudaErrorNotReady);
  (void)cudaGetLastError();
  gate.open();
  CHECK(finish(second.handle) == cudaSuccess);
}

TEST_CASE("timing events measure, others refuse") {
  if (!have_devices(1, "timing")) return;
  const Stream stream;
  const Event begin(0, cudaEventDefault), end(0, cudaEventDefault), plain;
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle) == cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();  // never recorded
  CHECK(cudaEventRecord(begin.handle, stream.handle) == cudaSuccess);
  CHECK(cudaEventRecord(plain.handle, stream.handle) == cudaSuccess);
  {
    const Gate gate(stream.handle);
    CHECK(cudaEventRecord(end.handle, stream.handle) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle) == cudaErrorNotReady);
    (void)cudaGetLastError();
  }
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle) == cudaSuccess);
  CHECK(milliseconds >= 0);
  CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, plain.handle) == cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
}

TEST_CASE("a stream that is destroyed runs what it has") {
  if (!have_devices(1, "destroying streams")) return;
  const Event event;
  Pinned seen;
  seen.data[0] = 0;
  auto* gate = [&] {
    const Stream stream;
    auto* made = new Gate(stream.handle);
    REQUIRE(cudaLaunchHostFunc(
                stream.handle, [](void* memory) { *static_cast<int*>(memory) = 7; }, seen.data) == cudaSuccess);
    REQUIRE(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
    return made;
  }();
  CHECK(cudaEventQuery(event.handle) == cudaErrorNotReady);
  (void)cudaGetLastError();
  delete gate;
  CHECK(answer([&] { return cudaEventQuery(event.handle); }) == cudaSuccess);
  CHECK(seen.data[0] == 7);
}

TEST_CASE("host functions run in stream order and may not call CUDA") {
  if (!have_devices(1, "host functions")) return;
  const Stream stream;
  static std::vector<int> order;
  static std::atomic<int> answer;
  order.clear();
  for (int i = 0; i < 8; ++i) {
    REQUIRE(cudaLaunchHostFunc(
                stream.handle,
                [](void* number) { order.push_back(static_cast<int>(reinterpret_cast<std::intptr_t>(number))); },
                reinterpret_cast<void*>(std::intptr_t{i})) == cudaSuccess);
  }
  REQUIRE(cudaLaunchHostFunc(
              stream.handle,
              [](void*) {
                void* memory = nullptr;
                answer = cudaMalloc(&memory, 16);
                (void)cudaGetLastError();
              },
              nullptr) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(answer == cudaErrorNotPermitted);
  refused("CUDA in a host function");
}

// Nothing relies on either; who writes a host function that waits for another one wants to know.
TEST_CASE("host functions of two streams run side by side, or one after the other") {
  if (!have_devices(1, "host functions of two streams")) return;
  const Stream first, second;
  Gate gate(first.handle);
  CHECK(gate.reached());
  Gate other(second.handle);
  if (other.reached(std::chrono::milliseconds(500))) {
    WARN("found: host functions of two streams run side by side");
  } else {
    WARN("found: host functions of two streams run one after the other");
  }
  gate.open();
  CHECK(other.reached());
  other.open();
  CHECK(finish(first.handle) == cudaSuccess);
  CHECK(finish(second.handle) == cudaSuccess);
}

TEST_CASE("copies and fills are asynchronous and in stream order") {
  if (!have_devices(1, "copies")) return;
  const Stream stream;
  const Memory memory, other;
  const Pinned pinned;
  for (int i = 0; i < 64; ++i) pinned.data[i] = i;
  {
    const Gate gate(stream.handle);
    CHECK(cudaMemcpyAsync(memory.data, pinned.data, 256, cudaMemcpyHostToDevice, stream.handle) == cudaSuccess);
    CHECK(cudaMemcpyAsync(other.data, memory.data, 256, cudaMemcpyDeviceToDevice, stream.handle) == cudaSuccess);
    CHECK(cudaMemsetAsync(memory.data, 0, 256, stream.handle) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned.data + 64, other.data, 256, cudaMemcpyDeviceToHost, stream.handle) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned.data + 128, memory.data, 256, cudaMemcpyDefault, stream.handle) == cudaSuccess);
    CHECK(cudaStreamQuery(stream.handle) == cudaErrorNotReady);
    (void)cudaGetLastError();
  }
  CHECK(finish(stream.handle) == cudaSuccess);
  bool same = true, zero = true;
  for (int i = 0; i < 64; ++i) {
    same = same && pinned.data[64 + i] == i;
    zero = zero && pinned.data[128 + i] == 0;
  }
  CHECK(same);
  CHECK(zero);
}

TEST_CASE("nothing is copied and nothing is wrong when there are no bytes") {
  if (!have_devices(1, "copies")) return;
  const Stream stream;
  const Memory memory;
  CHECK(cudaMemsetAsync(memory.data, 1, 0, stream.handle) == cudaSuccess);
  CHECK(cudaMemcpyAsync(memory.data, memory.data, 0, cudaMemcpyDeviceToDevice, stream.handle) == cudaSuccess);
  CHECK(cudaFree(nullptr) == cudaSuccess);
}

TEST_CASE("streams may be waited for, queried and copied on with another device current") {
  if (!have_devices(2, "streams of devices that are not current")) return;
  const Stream stream(1), other(0);
  const Event event(1);
  const Memory memory(1);
  const Pinned pinned;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaMemcpyAsync(memory.data, pinned.data, 64, cudaMemcpyHostToDevice, stream.handle) == cudaSuccess);
  CHECK(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(other.handle, event.handle, 0) == cudaSuccess);
  CHECK(finish(stream.handle) == cudaSuccess);
  CHECK(finish(other.handle) == cudaSuccess);
  CHECK(cudaEventQuery(event.handle) == cudaSuccess);
}

TEST_CASE("an event cannot be recorded on another device's stream") {
  if (!have_devices(2, "events of another device")) return;
  const Stream stream(1);
  const Event event(0);
  CHECK(cudaEventRecord(event.handle, stream.handle) == cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
  refused("wrong device");
}

// What an event that is over answers to another thread.
struct Answers {
  cudaError_t query = cudaErrorUnknown, allocation = cudaSuccess;
};
Answers ask_elsewhere(cudaEvent_t event, bool relaxed) {
  Answers answers;
  std::thread([&] {
    (void)cudaSetDevice(0);
    auto mode = cudaStreamCaptureModeRelaxed;
    if (relaxed) (void)cudaThreadExchangeStreamCaptureMode(&mode);
    answers.query = cudaEventQuery(event);
    (void)cudaGetLastError();
    if (!relaxed) return;
    void* memory = nullptr;
    answers.allocation = cudaMalloc(&memory, 64);
    (void)cudaGetLastError();
    (void)cudaFree(memory);
  }).join();
  return answers;
}

TEST_CASE("a question to an event ends another thread's capture, unless the mode of who asks is relaxed") {
  if (!have_devices(1, "captures")) return;
  const Stream captured, stream;
  const Event event;
  cudaGraph_t graph = nullptr;  // empty
  REQUIRE(cudaEventRecord(event.handle, stream.handle) == cudaSuccess);
  REQUIRE(finish(stream.handle) == cudaSuccess);

  REQUIRE(cudaStreamBeginCapture(captured.handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
  Answers answers = ask_elsewhere(event.handle, true);
  CHECK(answers.query == cudaSuccess);
  CHECK(answers.allocation == cudaSuccess);
  CHECK(cudaStreamEndCapture(captured.handle, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);

  REQUIRE(cudaStreamBeginCapture(captured.handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
  answers = ask_elsewhere(event.handle, false);
  CHECK(answers.query == cudaErrorStreamCaptureUnsupported);
  refused("during a capture");
  CHECK(cudaStreamEndCapture(captured.handle, &graph) == cudaErrorStreamCaptureInvalidated);
  (void)cudaGetLastError();
}

}  // namespace
