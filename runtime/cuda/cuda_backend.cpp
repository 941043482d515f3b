#include "lockstep/runtime/cuda/cuda_backend.h"

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_copy.h"
#include "lockstep/runtime/cuda/cuda_device.h"
#include "lockstep/runtime/cuda/cuda_graph.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/gpu_links.h"
#include "lockstep/runtime/cuda/host_task.h"
#include "lockstep/runtime/cuda/nvtx.h"
#include "lockstep/runtime/cuda/patience.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/stream/growth_lock.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/runtime/stream/work_scope.h"
#include "lockstep/runtime/trace/trace_environment.h"

namespace lockstep::cuda {
namespace {

CudaDevice& started(int index) {
  CudaDevice& device = cuda_device(Device::cuda(index));
  device.start();
  return device;
}

// Null where there is none.
CudaDevice* find_started() {
  const CudaLayout& layout = cuda_layout();
  for (int i = 0; i < layout.count; ++i) {
    if (layout.devices[i]->started() && !lost(layout.devices[i]->device)) return layout.devices[i];
  }
  return nullptr;
}

// Pinned memory is no device's, but asking for it makes a context: on a GPU that has one, if there is any.
CudaDevice& any_started() {
  CudaDevice* const found = find_started();
  return found ? *found : started(0);
}

// What the program around the library has pinned, registered or made managed. Where CUDA gives no answer, nothing.
bool known_to_cuda(const void* memory) try {
  const CudaDevice* const device = find_started();
  if (!device) return false;
  const CurrentDevice current(device->device);
  cudaPointerAttributes found{};
  LOCKSTEP_CUDA(device->device, cudaPointerGetAttributes(&found, memory));
  return found.type != cudaMemoryTypeUnregistered;
} catch (const DeviceError&) {
  return false;
}

class CudaBackend final : public Backend {
 public:
  DeviceType type() const noexcept override { return DeviceType::cuda; }
  int device_count() const noexcept override { return cuda_layout().count; }
  const DeviceProperties& properties(int index) const override { return cuda_device(Device::cuda(index)).properties; }
  std::string hardware(int index) const override { return gpu_identity(Device::cuda(index)); }

  void bind_thread(int index) override {
    CudaDevice& device = started(index);
    LOCKSTEP_CUDA(device.device, cudaSetDevice(static_cast<int>(device.ordinal)));
  }

  void* allocate(int index, std::size_t bytes) override { return started(index).allocate(bytes); }
  void free(int index, void* memory) noexcept override { cuda_device(Device::cuda(index)).free(memory); }

  void* allocate_pinned(std::size_t bytes) override {
    CudaDevice& device = any_started();
    const CurrentDevice current(device.device);
    const detail::GrowthLock alone;
    void* memory = nullptr;
    const cudaError_t result = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (result == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check(result, device.device, "cudaHostAlloc");
    std::lock_guard lock(pinned_mutex_);
    pinned_.emplace(reinterpret_cast<std::uintptr_t>(memory), bytes);
    return memory;
  }

  void free_pinned(void* memory) noexcept override try {
    if (!memory) return;
    {
      std::lock_guard lock(pinned_mutex_);
      pinned_.erase(reinterpret_cast<std::uintptr_t>(memory));
    }
    const CurrentDevice current(any_started().device);
    const detail::GrowthLock alone;
    if (cudaFreeHost(memory) != cudaSuccess) (void)cudaGetLastError();
  } catch (...) {
  }

  bool pageable(const void* memory) const override {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    {
      std::shared_lock lock(pinned_mutex_);
      auto after = pinned_.upper_bound(address);
      if (after != pinned_.begin() && address < (--after)->first + after->second) return false;
    }
    return !known_to_cuda(memory);
  }

  StreamHandle create_stream(int index, StreamPriority priority) override {
    CudaDevice& device = started(index);
    const CurrentDevice current(device.device);
    const detail::GrowthLock alone;
    std::unique_ptr<CudaStream> stream(new CudaStream{device, nullptr, bit(device)});
    // Not blocking: the legacy default stream of other libraries must not serialise with ours.
    if (priority == StreamPriority::normal) {
      LOCKSTEP_CUDA(device.device, cudaStreamCreateWithFlags(&stream->native, cudaStreamNonBlocking));
    } else {
      int least = 0, greatest = 0;
      LOCKSTEP_CUDA(device.device, cudaDeviceGetStreamPriorityRange(&least, &greatest));
      LOCKSTEP_CUDA(device.device, cudaStreamCreateWithPriority(&stream->native, cudaStreamNonBlocking, greatest));
    }
    const auto handle = reinterpret_cast<StreamHandle>(stream.release());
    if (auto* checker = detail::OrderChecker::active()) checker->alias(handle, native_handle(handle));
    return handle;
  }

  StreamHandle adopt_stream(int index, void* native) override {
    CudaDevice& device = started(index);
    auto* const stream = new CudaStream{
        .device = device, .native = static_cast<cudaStream_t>(native), .depends_on = bit(device), .adopted = true};
    const auto handle = reinterpret_cast<StreamHandle>(stream);
    if (auto* checker = detail::OrderChecker::active()) checker->alias(handle, native_handle(handle));
    return handle;
  }

  void destroy_stream(StreamHandle handle) noexcept override try {
    const std::unique_ptr<CudaStream> stream(&as_stream(handle));
    if (auto* checker = detail::OrderChecker::active()) checker->remove_alias(handle);
    if (stream->adopted || lost(stream->device.device)) return;
    const CurrentDevice current(stream->device.device);
    if (cudaStreamDestroy(stream->native) != cudaSuccess) (void)cudaGetLastError();
  } catch (...) {
  }

  bool is_lost(int index) const noexcept override { return lost(Device::cuda(index)); }
  bool traced_by_tasks() const noexcept override { return true; }

  bool query_stream(StreamHandle handle) override {
    CudaStream& stream = as_stream(handle);
    if (stream.capture.load(std::memory_order_relaxed) != 0) [[unlikely]]
      refuse_query(stream);
    const CurrentDevice current(stream.device.device);
    if (!ready(cudaStreamQuery(stream.native), stream.device.device, "cudaStreamQuery")) return false;
    surface(stream.depends_on.load(std::memory_order_relaxed), stream.callers.load(std::memory_order_relaxed),
            detail::next_sequence(), detail::caller());
    return true;
  }

  // Errors are told by device and caller: asking for them here would take one from whoever waits for the caller's work.
  bool renew_stream(StreamHandle handle) override {
    CudaStream& stream = as_stream(handle);
    if (stream.capture.load(std::memory_order_relaxed) != 0) return false;
    const CurrentDevice current(stream.device.device);
    if (!ready(cudaStreamQuery(stream.native), stream.device.device, "cudaStreamQuery")) return false;
    stream.depends_on.store(bit(stream.device), std::memory_order_relaxed);
    stream.callers.store(0, std::memory_order_relaxed);
    return true;
  }

  void* native_stream(StreamHandle stream) override { return as_stream(stream).native; }

  EventHandle create_event(int index, bool timing) override {
    CudaDevice& device = started(index);
    const CurrentDevice current(device.device);
    std::unique_ptr<CudaEvent> event(new CudaEvent{device, nullptr, timing});
    LOCKSTEP_CUDA(device.device,
                  cudaEventCreateWithFlags(&event->native, timing ? cudaEventDefault : cudaEventDisableTiming));
    return reinterpret_cast<EventHandle>(event.release());
  }

  void destroy_event(EventHandle handle) noexcept override try {
    const std::unique_ptr<CudaEvent> event(&as_event(handle));
    if (lost(event->device.device)) return;
    const CurrentDevice current(event->device.device);
    if (cudaEventDestroy(event->native) != cudaSuccess) (void)cudaGetLastError();
  } catch (...) {
  }

  void record_event(EventHandle event_handle, StreamHandle stream_handle) override {
    CudaEvent& event = as_event(event_handle);
    CudaStream& stream = as_stream(stream_handle);
    (void)lockstep::detail::caller();  // has work from now on
    const std::uint64_t capture = stream.capture.load(std::memory_order_relaxed);
    if (capture != 0) [[unlikely]]
      check_records(stream, "record");
    const CurrentDevice current(stream.device.device);
    LOCKSTEP_CUDA(stream.device.device, cudaEventRecord(event.native, stream.native));
    event.capture.store(capture, std::memory_order_relaxed);
    event.depends_on.store(stream.depends_on.load(std::memory_order_relaxed), std::memory_order_relaxed);
    event.callers.store(stream.callers.load(std::memory_order_relaxed), std::memory_order_relaxed);
    event.sequence.store(detail::next_sequence(), std::memory_order_relaxed);
    event.caller.store(detail::caller(), std::memory_order_relaxed);
  }

  void stream_wait_event(StreamHandle stream_handle, EventHandle event_handle) override {
    CudaStream& stream = as_stream(stream_handle);
    CudaEvent& event = as_event(event_handle);
    if (const std::uint64_t capture = event.capture.load(std::memory_order_relaxed)) [[unlikely]] {
      if (!this_capture || this_capture->number != capture) refuse_captured("wait", event);
      if (stream.capture.load(std::memory_order_relaxed) == 0) {
        this_capture->streams.push_back(&stream);
        stream.capture.store(capture, std::memory_order_relaxed);
      }
    }
    try {
      const CurrentDevice current(stream.device.device);
      LOCKSTEP_CUDA(stream.device.device, cudaStreamWaitEvent(stream.native, event.native, cudaEventWaitDefault));
    } catch (...) {
      // The caller gives up what it has enqueued for good, as if it were in order: the host waits in the stream's
      // place.
      wait_until_over(event);
      throw;
    }
    stream.depends_on.fetch_or(event.depends_on.load(std::memory_order_relaxed), std::memory_order_relaxed);
    stream.callers.fetch_or(event.callers.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }

  bool query_event(EventHandle handle) override {
    CudaEvent& event = as_event(handle);
    if (event.capture.load(std::memory_order_relaxed) != 0) [[unlikely]]
      return !captured(handle);  // of a capture that is over: there is no work
    const CurrentDevice current(event.device.device);
    return ready(cudaEventQuery(event.native), event.device.device, "cudaEventQuery");
  }

  bool event_failed(EventHandle handle) override {
    const CudaEvent& event = as_event(handle);
    return failure_of(event.depends_on.load(std::memory_order_relaxed), event.sequence.load(std::memory_order_relaxed),
                      event.caller.load(std::memory_order_relaxed)) != nullptr;
  }

  bool wait_event(EventHandle handle, Deadline deadline) override {
    CudaEvent& event = as_event(handle);
    if (event.capture.load(std::memory_order_relaxed) != 0) [[unlikely]]
      refuse_captured("wait", event);
    const CurrentDevice current(event.device.device);
    for (Patience patience; !ready(cudaEventQuery(event.native), event.device.device, "cudaEventQuery");) {
      if (deadline.passed()) return false;
      patience.pass();
    }
    const DeviceSet devices = event.depends_on.load(std::memory_order_relaxed);
    surface(devices, event.callers.load(std::memory_order_relaxed), event.sequence.load(std::memory_order_relaxed),
            event.caller.load(std::memory_order_relaxed));
    tell_losses(devices & ~bit(event.device));
    return true;
  }

  double elapsed_milliseconds(EventHandle begin_handle, EventHandle end_handle) override {
    CudaEvent& begin = as_event(begin_handle);
    CudaEvent& end = as_event(end_handle);
    LOCKSTEP_CHECK(begin.timing && end.timing && begin.depends_on.load() != 0 && end.depends_on.load() != 0,
                   "[elapsed_milliseconds] expected two recorded timing events, got one that is not");
    const CurrentDevice current(begin.device.device);
    float milliseconds = 0;
    LOCKSTEP_CUDA(begin.device.device, cudaEventElapsedTime(&milliseconds, begin.native, end.native));
    return milliseconds;
  }

  void copy(const CopyArgs& args, StreamHandle stream) override {
    if (args.bytes > 0) enqueue_copy(args, stream);
  }

  void fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle handle) override {
    if (bytes == 0) return;
    CudaStream& stream = as_stream(handle);
    check_records(stream, "fill");
    const CurrentDevice current(stream.device.device);
    const trace::detail::RangeScope range("fill");
    const TraceSpan span(stream, handle, {.name = "fill", .kind = trace::Kind::fill, .bytes = bytes, .source = {}});
    LOCKSTEP_CUDA(stream.device.device, cudaMemsetAsync(memory, value, bytes, stream.native));
  }

  bool can_access_peer(int from, int to) const override {
    const CudaDevice& accessing = cuda_device(Device::cuda(from));
    const CudaDevice& accessed = cuda_device(Device::cuda(to));
    if (accessing.ordinal == accessed.ordinal) return true;
    int possible = 0;
    LOCKSTEP_CUDA(accessing.device, cudaDeviceCanAccessPeer(&possible, static_cast<int>(accessing.ordinal),
                                                            static_cast<int>(accessed.ordinal)));
    return possible != 0;
  }

  void enable_peer_access(int from, int to) override {
    CudaDevice& accessing = started(from);
    CudaDevice& accessed = started(to);
    if (accessing.ordinal == accessed.ordinal) return;
    const CurrentDevice current(accessing.device);
    const detail::GrowthLock alone;
    const cudaError_t result = cudaDeviceEnablePeerAccess(static_cast<int>(accessed.ordinal), 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled)
      (void)cudaGetLastError();  // by the program around us, or before
    else
      check(result, accessing.device, "cudaDeviceEnablePeerAccess");
  }

  DeviceLink link(int from, int to) const override { return link_between(from, to); }

  void begin_capture(StreamHandle stream) override { cuda::begin_capture(as_stream(stream)); }
  GraphHandle end_capture(StreamHandle stream, bool discard) override {
    return reinterpret_cast<GraphHandle>(cuda::end_capture(as_stream(stream), discard));
  }
  bool captured(EventHandle event) const noexcept override {
    return this_capture && as_event(event).capture.load(std::memory_order_relaxed) == this_capture->number;
  }
  void launch_graph(GraphHandle graph, StreamHandle stream) override {
    cuda::launch_graph(*reinterpret_cast<CudaGraph*>(graph), as_stream(stream));
  }
  void destroy_graph(GraphHandle graph) noexcept override { cuda::destroy_graph(reinterpret_cast<CudaGraph*>(graph)); }

  void enqueue(StreamHandle handle, UniqueFunction task) override {
    CudaStream& stream = as_stream(handle);
    check_records(stream, "enqueue");
    const CurrentDevice current(stream.device.device);
    if (this_capture) [[unlikely]]
      return capture_task(stream, std::move(task));
    // Of work in a WorkScope the scope is the span.
    const bool traced = trace::active() && !trace::detail::in_work_scope();
    const trace::Token token = traced ? trace::enqueued(handle, stream.device.device) : 0;
    add_caller(stream, detail::caller());
    std::unique_ptr<HostTask> host_task(new HostTask{std::move(task), stream.device,
                                                     stream.depends_on.load(std::memory_order_relaxed),
                                                     detail::next_sequence(), detail::caller(), token});
    LOCKSTEP_CUDA(stream.device.device, cudaLaunchHostFunc(stream.native, run_host_task, host_task.get()));
    (void)host_task.release();  // run_host_task has it
  }

 private:
  // Whatever comes in between, unless the device is lost or answers with errors alone.
  static void wait_until_over(CudaEvent& event) noexcept {
    if (event.capture.load(std::memory_order_relaxed) != 0) return;
    const Deadline deadline = Deadline::after(kDefaultTimeout);
    int errors = 0;
    for (Patience patience; !lost(event.device.device) && !deadline.passed(); patience.pass()) {
      try {
        const CurrentDevice current(event.device.device);
        if (ready(cudaEventQuery(event.native), event.device.device, "cudaEventQuery")) return;
        errors = 0;
      } catch (...) {
        if (++errors == detail::kMostErrorsInARow) return;
      }
    }
  }

  static StreamHandle native_handle(StreamHandle handle) {
    return reinterpret_cast<StreamHandle>(as_stream(handle).native);
  }

  mutable std::shared_mutex pinned_mutex_;
  std::map<std::uintptr_t, std::size_t> pinned_;
};

}  // namespace

}  // namespace lockstep::cuda

namespace lockstep::detail {

Backend* make_cuda_backend() {
  if (cuda::cuda_layout().count == 0) return nullptr;
  cuda::install_nvtx();
  static auto* const backend = new cuda::CudaBackend;
  callers_matter.store(true, std::memory_order_relaxed);
  return backend;
}

}  // namespace lockstep::detail
