// Captures of streams, and graphs: what is recorded runs at a launch, in the order in which it came.
#include <algorithm>
#include <memory>
#include <utility>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

void see(Seen& seen, const Seen& more) {
  for (const auto& [stream, count] : more) seen[stream] = std::max(seen[stream], count);
}

// Nothing of it is left to be recorded.
void close(State& machine, Capture& capture) {
  capture.ended = true;
  for (const auto& [stream, seen] : capture.streams) machine.captures.erase(stream);
}

template <class Handle>
Handle new_handle(State& machine, int device) {
  const auto handle = reinterpret_cast<Handle>(new char);  // never given back: no two are the same
  machine.handles[handle] = device;
  return handle;
}

cudaError_t destroy(Call& call, const void* handle) {
  if (call.machine.handles.erase(handle) == 0) {
    return call.fail(Rule::dead_handle, call.machine.dead.contains(handle) ? "the graph was destroyed" : "not a graph");
  }
  call.machine.dead.insert(handle);
  return cudaSuccess;
}

// What its work uses is still there.
bool check_operands(const Call& call, const Capture& recorded) {
  for (const auto& [memory, bytes] : recorded.operands) {
    const auto* const piece = call.machine.piece_at(memory);
    if (piece && !piece->second.freed) continue;
    (void)call.fail(Rule::use_after_free, "the graph uses memory that was freed");
    return false;
  }
  return true;
}

}  // namespace

Capture* capture_of(const State& machine, const void* stream) {
  if (machine.captures.empty()) return nullptr;
  const auto found = machine.captures.find(stream);
  return found == machine.captures.end() ? nullptr : found->second.get();
}

bool captures(const Call& call) {
  const std::map<const void*, std::shared_ptr<Capture>>& all = call.machine.captures;
  return std::any_of(all.begin(), all.end(), [&](const auto& each) { return each.second->thread == &call.thread; });
}

cudaError_t end_capture_by(const Call& call, Capture* capture, const char* what, cudaError_t error) {
  if (!capture) return cudaSuccess;
  capture->valid = false;
  return call.fail(Rule::during_capture, what, error);
}

cudaError_t put(Call& call, const void* handle, const Stream& stream, std::function<void()> task) {
  Capture* const capture = capture_of(call.machine, handle);
  if (!capture) {
    if (task) stream.host->run(std::move(task));
    return cudaSuccess;
  }
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  ++capture->streams[handle][handle];
  if (task) capture->nodes.push_back(std::move(task));
  return cudaSuccess;
}

cudaError_t record_in_capture(Call& call, const void* handle, Event& event) {
  State& machine = call.machine;
  const std::shared_ptr<Capture>& capture = machine.captures.at(handle);
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  event.mark = std::make_shared<Completion>();  // of no work
  if (machine.checker) event.mark->order = machine.checker->record(order_handle(handle));
  event.capture = capture;
  event.seen = capture->streams[handle];
  return cudaSuccess;
}

cudaError_t wait_in_capture(Call& call, const void* handle, const Event& event) {
  State& machine = call.machine;
  Capture* const waits = capture_of(machine, handle);
  Capture* const waited = event.capture.get();
  if (waits && !waits->valid) return cudaErrorStreamCaptureInvalidated;
  if (waited && waited->ended) {
    (void)end_capture_by(call, waits, "a wait for an event of another capture", cudaErrorStreamCaptureIsolation);
    return call.fail(Rule::during_capture, "the capture in which the event was recorded is over",
                     cudaErrorCapturedEvent);
  }
  if (!waited)
    return end_capture_by(call, waits, "a wait for an event from outside of it", cudaErrorStreamCaptureIsolation);
  if (waits && waits != waited) {
    waited->valid = false;
    return end_capture_by(call, waits, "a wait for an event of another capture", cudaErrorStreamCaptureMerge);
  }
  if (!waited->valid) return cudaErrorStreamCaptureInvalidated;
  if (!waits) machine.captures[handle] = event.capture;
  see(waited->streams[handle], event.seen);
  judge(call, [&](OrderChecker& checker) { checker.wait(order_handle(handle), event.mark->order); });
  return cudaSuccess;
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return run_call("cudaStreamBeginCapture", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const Stream* const stream = find_stream(call, handle);
    if (!stream) return cudaErrorStreamCaptureUnsupported;  // a default stream, say
    if (capture_of(call.machine, handle)) return cudaErrorIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = &call.thread;
    capture->origin = handle;
    capture->device = stream->device;
    capture->streams[handle] = {};
    call.machine.captures[handle] = std::move(capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return run_call("cudaStreamEndCapture", context, [&](Call& call) {
    State& machine = call.machine;
    std::lock_guard lock(machine.mutex);
    *graph = nullptr;
    const auto found = machine.captures.find(handle);
    if (found == machine.captures.end()) return cudaErrorIllegalState;
    const std::shared_ptr<Capture> capture = found->second;
    Kept kept;
    if (capture->origin != handle)
      return end_capture_by(call, capture.get(), "ended on another stream", cudaErrorStreamCaptureUnmatched);
    if (capture->thread != &call.thread && capture->mode != cudaStreamCaptureModeRelaxed)
      return end_capture_by(call, capture.get(), "ended in another thread", cudaErrorStreamCaptureWrongThread);
    close(machine, *capture);
    kept.swap(capture->kept);
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    for (const auto& [stream, seen] : capture->streams) {
      const auto own = seen.find(stream);
      if (own != seen.end() && capture->streams[handle][stream] < own->second)
        return end_capture_by(call, capture.get(), "the origin has not waited for all of another stream's work",
                              cudaErrorStreamCaptureUnjoined);
    }
    *graph = new_handle<cudaGraph_t>(machine, capture->device);
    machine.graphs[*graph] = {capture, std::move(kept)};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return run_call("cudaStreamIsCapturing", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    if (!find_stream(call, handle)) return cudaErrorInvalidResourceHandle;
    const Capture* const capture = capture_of(call.machine, handle);
    *status = !capture         ? cudaStreamCaptureStatusNone
              : capture->valid ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return run_call("cudaGraphDestroy", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    call.machine.graphs.erase(graph);
    return destroy(call, graph);
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return run_call("cudaGraphInstantiate", context | raw, [&](Call& call) {
    State& machine = call.machine;
    std::lock_guard lock(machine.mutex);
    const auto found = machine.graphs.find(graph);
    if (found == machine.graphs.end())
      return call.fail(Rule::dead_handle, machine.dead.contains(graph) ? "the graph was destroyed" : "not a graph");
    if (flags != 0) return cudaErrorInvalidValue;
    *exec = new_handle<cudaGraphExec_t>(machine, found->second.recorded->device);
    machine.graph_execs[*exec] = {found->second.recorded, found->second.kept};
    return cudaSuccess;
  });
}

// Launches of one graph come after each other, whatever their streams.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  return run_call("cudaGraphLaunch", context, [&](Call& call) {
    State& machine = call.machine;
    std::shared_ptr<const Capture> recorded;
    {
      std::lock_guard lock(machine.mutex);
      const auto found = machine.graph_execs.find(exec);
      if (found != machine.graph_execs.end()) recorded = found->second.recorded;
    }
    for (std::size_t i = 0; recorded && i < recorded->launches.size(); ++i)
      if (!recorded->launches[i](call)) return cudaErrorInvalidValue;
    std::lock_guard lock(machine.mutex);
    Stream* const stream = find_stream(call, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const auto found = machine.graph_execs.find(exec);
    if (found == machine.graph_execs.end())
      return call.fail(Rule::dead_handle, machine.dead.contains(exec) ? "the graph was destroyed" : "not a graph");
    GraphExec& graph = found->second;
    if (const cudaError_t broken = machine.broken_by(stream->device); broken != cudaSuccess) return broken;
    if (graph.recorded->device != stream->device) {
      return call.fail(Rule::wrong_device, lockstep::cat("a graph of device ", graph.recorded->device,
                                                         " on a stream of device ", stream->device));
    }
    if (Capture* const capture = capture_of(machine, handle))
      return end_capture_by(call, capture, "a graph inside another is not played here",
                            cudaErrorStreamCaptureUnsupported);
    if (!check_operands(call, *graph.recorded)) return cudaErrorInvalidValue;
    if (graph.last) stream->host->wait_for(graph.last);
    stream->host->run([recorded, kept = graph.kept] {
      for (const auto& node : recorded->nodes) node();
    });
    graph.last = std::make_shared<Completion>();
    stream->host->record(graph.last);
    return cudaSuccess;
  });
}

// What runs goes on running.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return run_call("cudaGraphExecDestroy", context | raw, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    call.machine.graph_execs.erase(exec);
    return destroy(call, exec);
  });
}

}  // extern "C"
