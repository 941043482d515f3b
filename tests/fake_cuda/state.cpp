#include "fake_cuda/state.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/runtime/error.h"

namespace fake_cuda {
namespace {

std::mutex machine_mutex;
std::atomic<State*> the_machine{nullptr};
std::atomic<std::uint64_t> generations{0};

template <class T>
T at_or_last(const std::vector<T>& list, int index) {
  return list[std::min(static_cast<std::size_t>(index), list.size() - 1)];
}

bool is_notice(cudaError_t error) { return error == cudaErrorNotReady; }

// What CUDA calls potentially unsafe ends captures: the thread's own, and those that others have begun in global mode.
// Not where the thread's mode, or that of its own capture, is relaxed. Under the mutex.
bool ends_captures(const Call& call) {
  bool ended = false;
  for (auto& [stream, capture] : call.machine.captures) {
    const bool own = capture->thread == &call.thread;
    if (call.thread.capture_mode == cudaStreamCaptureModeRelaxed || capture->mode == cudaStreamCaptureModeRelaxed)
      continue;
    if (!own &&
        (call.thread.capture_mode != cudaStreamCaptureModeGlobal || capture->mode != cudaStreamCaptureModeGlobal))
      continue;
    capture->valid = false;
    ended = true;
  }
  return ended;
}

}  // namespace

State::State(const Options& with, const State* replaced)
    : options(with),
      generation(++generations),
      before(replaced),
      checker(with.check_order ? &OrderChecker::start() : nullptr) {
  for (int i = 0; i < options.devices; ++i) {
    const int hardware = i < static_cast<int>(options.order.size()) ? options.order[static_cast<std::size_t>(i)] : i;
    devices.push_back({.memory_bytes = at_or_last(options.memory_bytes, hardware),
                       .multiprocessors = at_or_last(options.multiprocessors, hardware),
                       .hardware = hardware});
  }
}

std::pair<const std::uintptr_t, Piece>* State::piece_at(const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  auto found = pieces.upper_bound(at);
  if (found == pieces.begin()) return nullptr;
  --found;
  return at < found->first + std::max<std::size_t>(found->second.bytes, 1) ? &*found : nullptr;
}

State& state() {
  if (State* machine = the_machine.load(std::memory_order_acquire)) return *machine;
  reset_from_environment();
  return *the_machine.load(std::memory_order_acquire);
}

void reset(const Options& options) {
  std::lock_guard lock(machine_mutex);
  the_machine.store(new State(options, the_machine.load()), std::memory_order_release);
}

ThreadState& this_thread(State& machine) {
  thread_local ThreadState mine;
  if (mine.generation != machine.generation) {
    const bool in_host_function = mine.in_host_function;
    mine = {.generation = machine.generation, .in_host_function = in_host_function};
  }
  return mine;
}

cudaError_t Call::fail(Rule rule, const std::string& text, cudaError_t error) const {
  record_failure(rule, name, text, thread.current, stream);
  return error;
}

void make_context(const Call& call, int device) {
  DeviceState& made = call.machine.devices[static_cast<std::size_t>(device)];
  if (std::exchange(made.has_context, true)) return;
  const std::vector<int>& only = call.machine.options.only;
  if (!only.empty() && std::find(only.begin(), only.end(), device) == only.end()) {
    (void)call.fail(Rule::unwanted_context,
                    lockstep::cat("device ", device, " gets a context and nobody asked for it"));
  }
}

cudaError_t enter(Call& call, unsigned need) {
  State& machine = call.machine;
  ThreadState& thread = call.thread;
  if (thread.in_host_function) {
    return call.fail(Rule::cuda_in_host_function, "a host function must not call CUDA", cudaErrorNotPermitted);
  }
  if (!thread.looked_at && !((need & query) && is_notice(thread.last))) {
    thread.looked_at = true;
    (void)call.fail(Rule::unchecked_error,
                    lockstep::cat("nobody looked at ", cudaGetErrorName(thread.last), " from ", thread.last_call));
  }
  if (call.device == kNoDevice && (need & context)) call.device = thread.current;
  int late = 0;
  cudaError_t injected = cudaSuccess;
  {
    std::lock_guard lock(machine.mutex);
    ++machine.calls[call.name];
    for (Injection& injection : machine.injections) {
      if (injection.call != call.name || injection.times <= 0) continue;
      if (--injection.nth > 0) continue;
      --injection.times;
      late = injection.delay_microseconds;
      injected = static_cast<cudaError_t>(injection.error);
      call.breaks_device = injection.breaks_device;
      machine.strikes.push_back({call.name, call.device, injection.error});
      break;
    }
  }
  if (late > 0) std::this_thread::sleep_for(std::chrono::microseconds(late));
  if (injected != cudaSuccess) {
    if (call.breaks_device != 0) break_device(call.device, call.breaks_device);
    return injected;
  }

  if (driver_of(machine) / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  std::lock_guard lock(machine.mutex);
  if (machine.devices.empty() && (need & context)) return cudaErrorNoDevice;
  if (need & context) {
    if (thread.foreign) {
      return call.fail(Rule::wrong_device, "a context that is not the device's primary one is current",
                       cudaErrorInvalidResourceHandle);
    }
    thread.bound = true;
    make_context(call, thread.current);
    const cudaError_t broken = machine.broken_by(thread.current);
    if (broken != cudaSuccess) return broken;
  }
  if ((need & (raw | query)) && ends_captures(call)) {
    return call.fail(Rule::during_capture, "the thread's mode is not relaxed: the call invalidates a capture",
                     cudaErrorStreamCaptureUnsupported);
  }
  if ((need & raw) && machine.collectives > 0) {
    (void)call.fail(Rule::during_collective, "while a collective spins: the call waits for it, and it for later work");
  }
  return cudaSuccess;
}

cudaError_t leave(const Call& call, cudaError_t result) {
  if (call.breaks_device != 0) break_device(call.device, call.breaks_device);
  if (result == cudaSuccess) return result;
  if (call.device != kNoDevice && call.machine.broken_by(call.device) == result) learn_of_break(call, call.device);
  call.thread.last = result;
  call.thread.last_call = call.name;
  call.thread.looked_at = false;
  return result;
}

Stream* find_stream(Call& call, const void* handle) {
  call.stream = handle;
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value <= reinterpret_cast<std::uintptr_t>(cudaStreamPerThread)) {
    (void)call.fail(Rule::default_stream, "a stream of one's own is expected, got a default stream");
    return nullptr;
  }
  const std::string_view name = call.name;
  if (!call.machine.awaited.empty() && name != "cudaStreamQuery" && name != "cudaStreamDestroy") {
    if (const auto awaited = call.machine.awaited.find(handle); awaited != call.machine.awaited.end()) {
      (void)call.fail(Rule::nccl_in_progress,
                      lockstep::cat("NCCL has not enqueued ", awaited->second, " on the stream yet"));
    }
  }
  const auto found = call.machine.streams.find(handle);
  if (found != call.machine.streams.end()) return &found->second;
  (void)call.fail(Rule::dead_handle, call.machine.dead.contains(handle) ? "the stream was destroyed" : "not a stream");
  return nullptr;
}

Event* find_event(Call& call, const void* handle) {
  const auto found = call.machine.events.find(handle);
  if (found != call.machine.events.end()) return &found->second;
  (void)call.fail(Rule::dead_handle, call.machine.dead.contains(handle) ? "the event was destroyed" : "not an event");
  return nullptr;
}

// --- What tests ask and order ----------------------------------------------------------------------------------------

void inject(const Injection& injection) {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  machine.injections.push_back(injection);
}

void forget_injections() {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  machine.injections.clear();
}

std::vector<Strike> strikes() {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  return machine.strikes;
}

void break_device(int device, int error) {
  state().broken.at(static_cast<std::size_t>(device)).store(error, std::memory_order_relaxed);
}

int calls_of(std::string_view call) {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  const auto found = machine.calls.find(call);
  return found == machine.calls.end() ? 0 : found->second;
}

SpinningCollective::SpinningCollective() {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  ++machine.collectives;
}

SpinningCollective::~SpinningCollective() {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  --machine.collectives;
}

KeepsCurrentDevice::KeepsCurrentDevice(std::string what) : what_(std::move(what)) {
  State& machine = state();
  const int current = this_thread(machine).current;
  std::lock_guard lock(machine.mutex);
  if (current < static_cast<int>(machine.devices.size()) &&
      machine.devices[static_cast<std::size_t>(current)].has_context) {
    device_ = current;
  }
  generation_ = machine.generation;
}

KeepsCurrentDevice::~KeepsCurrentDevice() {
  State& machine = state();
  const int current = this_thread(machine).current;
  if (device_ < 0 || current == device_ || generation_ != machine.generation) return;
  record_failure(Rule::current_device_changed, what_.c_str(),
                 lockstep::cat("the caller's device was ", device_, " and is ", current), current, nullptr);
}

ForeignContext::ForeignContext(int device) : device_(device), before_(this_thread(state()).current) {
  ThreadState& thread = this_thread(state());
  thread.current = device;
  thread.foreign = this;
}

ForeignContext::~ForeignContext() {
  ThreadState& thread = this_thread(state());
  if (thread.foreign != this) {
    record_failure(Rule::current_device_changed, "ForeignContext", "the context of the caller is not current any more",
                   thread.current, nullptr);
  }
  thread.foreign = nullptr;
  thread.current = before_;
}

std::size_t used_bytes(int device) {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  return machine.devices.at(static_cast<std::size_t>(device)).used_bytes;
}

std::vector<int> devices_with_context() {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  std::vector<int> found;
  for (std::size_t i = 0; i < machine.devices.size(); ++i) {
    if (machine.devices[i].has_context) found.push_back(static_cast<int>(i));
  }
  return found;
}

}  // namespace fake_cuda
