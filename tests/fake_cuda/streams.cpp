// Streams, events and host functions.
#include <algorithm>
#include <memory>
#include <utility>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

constexpr lockstep::Milliseconds kTimeout{120'000};  // of waits between streams: a deadlock ends as a failed stream

constexpr int kLeastPriority = 0, kGreatestPriority = -5;

cudaError_t make_stream(Call& call, cudaStream_t* stream, int priority = kLeastPriority) {
  State& machine = call.machine;
  const int device = call.thread.current;
  std::lock_guard lock(machine.mutex);
  const lockstep::detail::Schedule schedule(machine.options.seed, machine.streams_made++);
  // Not traced: what is recorded of CUDA devices is the backend's business.
  auto* host = new HostStream(Device::cuda(device), schedule, kTimeout, false);
  // The address of a byte that is never given back: no two streams have the same handle.
  *stream = reinterpret_cast<cudaStream_t>(new char);
  // As CUDA does it: a number beyond the range is its end.
  machine.streams[*stream] = {
      .device = device, .priority = std::clamp(priority, kGreatestPriority, kLeastPriority), .host = host};
  if (machine.checker) machine.checker->add_stream(order_handle(*stream), host->device(), host->ticks());
  return cudaSuccess;
}

// What has ended badly on a stream: only waits that never end.
cudaError_t outcome(const Completion& finished) { return finished.failure() ? cudaErrorLaunchTimeout : cudaSuccess; }

}  // namespace

std::shared_ptr<Completion> mark(State& machine, const void* handle, Stream& stream) {
  auto made = std::make_shared<Completion>();
  if (machine.checker) made->order = machine.checker->record(order_handle(handle));
  stream.host->record(made);
  return made;
}

void drain(State& machine, int device) {
  std::vector<std::shared_ptr<Completion>> marks;
  {
    std::lock_guard lock(machine.mutex);
    for (auto& [handle, stream] : machine.streams) {
      if (stream.device != device) continue;
      marks.push_back(std::make_shared<Completion>());
      stream.host->record(marks.back());
    }
    std::erase_if(machine.closing, [](const auto& each) { return each.second->finished(); });
    for (const auto& [on, last] : machine.closing) {
      if (on == device) marks.push_back(last);
    }
  }
  for (const auto& each : marks) (void)each->wait(lockstep::Deadline::after(kTimeout));
}

void learn_of_break(const Call& call, int device) {
  if (std::exchange(call.thread.knows_broken[static_cast<std::size_t>(device)], true)) return;
  drain(call.machine, device);
  std::lock_guard lock(call.machine.mutex);
  for (const auto& [handle, stream] : call.machine.streams) {
    if (stream.device != device) continue;
    judge(call, [&](OrderChecker& checker) { checker.host_wait(checker.record(order_handle(handle))); });
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return run_call("cudaStreamCreateWithFlags", context | raw, [&](Call& call) { return make_stream(call, stream); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int priority) {
  return run_call("cudaStreamCreateWithPriority", context | raw,
                  [&](Call& call) { return make_stream(call, stream, priority); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return run_call("cudaDeviceGetStreamPriorityRange", context, [&](Call&) {
    if (least) *least = kLeastPriority;
    if (greatest) *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return run_call("cudaStreamGetPriority", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const Stream* stream = find_stream(call, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    *priority = stream->priority;
    return cudaSuccess;
  });
}

// What it has is still run.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return run_call("cudaStreamDestroy", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Stream* stream = find_stream(call, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    call.machine.closing.emplace_back(stream->device, std::make_shared<Completion>());
    stream->host->record(call.machine.closing.back().second);
    if (call.machine.checker) call.machine.checker->remove_stream(order_handle(handle));
    stream->host->close();
    call.machine.streams.erase(handle);
    call.machine.dead.insert(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return run_call("cudaStreamQuery", context | query, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Stream* stream = find_stream(call, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t captured = end_capture_by(call, capture_of(call.machine, handle), "the stream is captured",
                                                    cudaErrorStreamCaptureUnsupported);
        captured != cudaSuccess) {
      return captured;
    }
    if (const cudaError_t broken = call.machine.broken_by(stream->device); broken != cudaSuccess) return broken;
    try {
      if (!stream->host->idle()) return cudaErrorNotReady;
    } catch (const std::exception&) {
      return cudaErrorLaunchTimeout;  // all that can go wrong on a stream here: a wait that never ends
    }
    // Nobody enqueues while the mutex is held: what has been enqueued is what has run.
    judge(call, [&](OrderChecker& checker) { checker.host_wait(checker.record(order_handle(handle))); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  return run_call("cudaStreamWaitEvent", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Stream* stream = find_stream(call, handle);
    Event* event = stream ? find_event(call, event_handle) : nullptr;
    if (!event) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
    if (!event->mark) return cudaSuccess;  // never recorded: nothing to wait for
    if (event->capture || capture_of(call.machine, handle)) return wait_in_capture(call, handle, *event);
    judge(call, [&](OrderChecker& checker) { checker.wait(order_handle(handle), event->mark->order); });
    stream->host->wait_for(event->mark);
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return run_call("cudaThreadExchangeStreamCaptureMode", nothing, [&](Call& call) {
    std::swap(call.thread.capture_mode, *mode);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return run_call("cudaEventCreateWithFlags", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    *event = reinterpret_cast<cudaEvent_t>(new char);
    call.machine.events[*event] = {.device = call.thread.current, .timing = !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return run_call("cudaEventDestroy", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    if (!find_event(call, handle)) return cudaErrorInvalidResourceHandle;
    call.machine.events.erase(handle);
    call.machine.dead.insert(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
  return run_call("cudaEventRecord", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Stream* stream = find_stream(call, handle);
    Event* event = stream ? find_event(call, event_handle) : nullptr;
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->device != stream->device) {
      return call.fail(Rule::wrong_device,
                       lockstep::cat("an event of device ", event->device, " cannot be recorded on a stream of device ",
                                     stream->device),
                       cudaErrorInvalidResourceHandle);
    }
    if (capture_of(call.machine, handle)) return record_in_capture(call, handle, *event);
    event->mark = mark(call.machine, handle, *stream);
    event->capture = nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return run_call("cudaEventQuery", context | query, [&](Call& call) {
    std::shared_ptr<Completion> last;
    {
      std::lock_guard lock(call.machine.mutex);
      Event* event = find_event(call, handle);
      if (!event) return cudaErrorInvalidResourceHandle;
      if (const cudaError_t captured =
              end_capture_by(call, event->capture.get(), "the event was recorded in a capture", cudaErrorCapturedEvent);
          captured != cudaSuccess) {
        return captured;
      }
      if (const cudaError_t broken = call.machine.broken_by(event->device); broken != cudaSuccess) return broken;
      last = event->mark;
    }
    if (!last) return cudaSuccess;
    if (!last->finished()) return cudaErrorNotReady;
    judge(call, [&](OrderChecker& checker) { checker.host_wait(last->order); });
    return outcome(*last);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return run_call("cudaEventElapsedTime", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Event* first = find_event(call, begin);
    Event* last = first ? find_event(call, end) : nullptr;
    if (!last) return cudaErrorInvalidResourceHandle;
    if (first->device != last->device) {
      return call.fail(Rule::wrong_device, "the two events are of two devices", cudaErrorInvalidResourceHandle);
    }
    if (!first->timing || !last->timing || !first->mark || !last->mark) return cudaErrorInvalidResourceHandle;
    if (!first->mark->finished() || !last->mark->finished()) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(last->mark->time() - first->mark->time()).count();
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return run_call("cudaLaunchHostFunc", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Stream* stream = find_stream(call, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!function) return cudaErrorInvalidValue;
    if (const cudaError_t broken = call.machine.broken_by(stream->device); broken != cudaSuccess) return broken;
    return put(call, handle, *stream, [&machine = call.machine, device = stream->device, function, data] {
      if (machine.broken_by(device) != cudaSuccess) return;
      ThreadState& thread = this_thread(machine);
      thread.in_host_function = true;
      function(data);
      thread.in_host_function = false;
    });
  });
}

}  // extern "C"
