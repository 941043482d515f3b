#include "lockstep/runtime/cuda/cuda_graph.h"

#include <atomic>
#include <utility>

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/host/completion.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::cuda {
namespace {

// What a launch tells the graph's tasks, in the order of the stream: the launch before may be running still.
struct Turn {
  CudaGraph& graph;
  DeviceSet depends_on;
  std::uint64_t sequence, caller;
};

void take_turn(void* memory) {
  const std::unique_ptr<Turn> turn(static_cast<Turn*>(memory));
  turn->graph.launch_depends_on = turn->depends_on;
  turn->graph.sequence = turn->sequence;
  turn->graph.caller = turn->caller;
  turn->graph.failed = false;
}

// As run_host_task, again and again.
void run_graph_task(void* memory) {
  GraphTask& t = *static_cast<GraphTask*>(memory);
  CudaGraph& graph = t.graph;
  if (graph.failed) return;
  if (const auto failure = failure_of(graph.launch_depends_on, graph.sequence, graph.caller))
    return failure->affects(graph.caller);
  try {
    t.task();
  } catch (...) {
    auto failure = std::make_shared<detail::Failure>(std::current_exception(), graph.device.device);
    failure->affects(graph.caller);
    graph.failed = true;
    graph.device.fail(graph.sequence, std::move(failure));
  }
}

}  // namespace

void check_records(const CudaStream& stream, const char* call) {
  const std::uint64_t own = this_capture ? this_capture->number : 0;
  const std::uint64_t records = stream.capture.load(std::memory_order_relaxed);
  if (records == own) [[likely]]
    return;
  if (own != 0 && detail::current_capture)
    detail::current_capture->refuse(call, cat("work on a stream of ", stream.device.device, " that is not captured"));
  throw Error(cat("[", call, "] expected a stream that no other thread captures, got one of ", stream.device.device));
}

void refuse_query(const CudaStream& stream) {
  check_records(stream, "query");
  detail::current_capture->refuse("query", cat("a question whether work on ", stream.device.device, " is done"));
}

void refuse_captured(const char* call, const CudaEvent& event) {
  throw InvalidArgument(cat("[", call, "] expected an event that marks work on a stream, got one of ",
                            event.device.device, " that was recorded in a capture; record it after a replay"));
}

void begin_capture(CudaStream& stream) {
  LOCKSTEP_CHECK(
      reinterpret_cast<std::uintptr_t>(stream.native) > reinterpret_cast<std::uintptr_t>(cudaStreamPerThread),
      "[capture] expected a stream that CUDA can capture, got a default stream of CUDA's (", stream.device.device, ")");
  static constinit std::atomic<std::uint64_t> numbers{1};
  auto capture = std::make_unique<CudaCapture>(
      CudaCapture{stream, {&stream}, std::make_unique<CudaGraph>(stream.device), numbers.fetch_add(1)});
  const CurrentDevice current(stream.device.device);
  // What other libraries call in this thread must not spoil the capture unnoticed, and other threads are free.
  LOCKSTEP_CUDA(stream.device.device, cudaStreamBeginCapture(stream.native, cudaStreamCaptureModeThreadLocal));
  stream.capture.store(capture->number, std::memory_order_relaxed);
  this_capture = capture.release();
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): end_capture() takes it from this_capture

CudaGraph* end_capture(CudaStream& stream, bool discard) {
  const std::unique_ptr<CudaCapture> capture(std::exchange(this_capture, nullptr));
  for (CudaStream* each : capture->streams) each->capture.store(0, std::memory_order_relaxed);
  const Device device = stream.device.device;
  const CurrentDevice current(device);
  cudaGraph_t recorded = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.native, &recorded);
  if (discard) {
    if (ended != cudaSuccess) (void)cudaGetLastError();
    if (recorded && cudaGraphDestroy(recorded) != cudaSuccess) (void)cudaGetLastError();
    return nullptr;
  }
  check(ended, device, "cudaStreamEndCapture");
  CudaGraph& graph = *capture->graph;
  cudaError_t made;
  {
    const detail::GrowthLock alone;  // it may load code, and allocates
    made = cudaGraphInstantiate(&graph.native, recorded, 0);
    if (made != cudaSuccess) (void)cudaGetLastError();  // before the next call
  }
  if (cudaGraphDestroy(recorded) != cudaSuccess) (void)cudaGetLastError();
  check(made, device, "cudaGraphInstantiate");
  for (const CudaStream* each : capture->streams) {
    graph.depends_on |= each->depends_on.load(std::memory_order_relaxed);
    graph.callers |= each->callers.load(std::memory_order_relaxed);
  }
  return capture->graph.release();
}

void capture_task(CudaStream& stream, UniqueFunction task) {
  std::list<GraphTask>& tasks = this_capture->graph->tasks;
  tasks.push_back({std::move(task), *this_capture->graph});
  LOCKSTEP_CUDA(stream.device.device, cudaLaunchHostFunc(stream.native, run_graph_task, &tasks.back()));
}

void launch_graph(CudaGraph& graph, CudaStream& stream) {
  const Device device = stream.device.device;
  const CurrentDevice current(device);
  add_caller(stream, lockstep::detail::caller());
  stream.callers.fetch_or(graph.callers, std::memory_order_relaxed);
  stream.depends_on.fetch_or(graph.depends_on, std::memory_order_relaxed);
  if (!graph.tasks.empty()) {
    std::unique_ptr<Turn> turn(new Turn{graph, stream.depends_on.load(std::memory_order_relaxed),
                                        detail::next_sequence(), lockstep::detail::caller()});
    LOCKSTEP_CUDA(device, cudaLaunchHostFunc(stream.native, take_turn, turn.get()));
    (void)turn.release();  // take_turn has it
  }
  LOCKSTEP_CUDA(device, cudaGraphLaunch(graph.native, stream.native));
}

void destroy_graph(CudaGraph* graph) noexcept try {
  const std::unique_ptr<CudaGraph> gone(graph);
  if (!graph || lost(graph->device.device)) return;
  const CurrentDevice current(graph->device.device);
  const detail::GrowthLock alone;
  if (cudaGraphExecDestroy(graph->native) != cudaSuccess) (void)cudaGetLastError();
} catch (...) {
}

}  // namespace lockstep::cuda
