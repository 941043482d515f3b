// The machine that the fake plays. Private to the fake.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_stream.h"
#include "lockstep/runtime/order/order_checker.h"

namespace fake_cuda {

using lockstep::Device;
using lockstep::detail::Completion;
using lockstep::detail::HostStream;
using lockstep::detail::OrderChecker;

struct Piece {  // of memory, by where it begins
  std::size_t bytes = 0, mapped_bytes = 0;
  int device = 0;  // where it is, or that was current for pinned memory
  bool pinned = false;
  bool registered = false;  // the program's own memory, pinned
  bool freed = false;
  const void* pool = nullptr;  // that it came from
};

// Memory in the order of streams. Addresses are never used again.
struct Pool {
  int device = 0;
  bool made = false;  // by the program, that has to destroy it; else the device's default pool
  bool destroyed = false;
  std::array<bool, kMostDevices> access{};  // whose work may use its memory
  std::uint64_t threshold_bytes = 0, used_bytes = 0, reserved_bytes = 0, most_used_bytes = 0, most_reserved_bytes = 0;
};

struct Stream {
  int device = 0, priority = 0;
  HostStream* host = nullptr;
};

// How much of the work of each stream of a capture comes before something.
using Seen = std::map<const void*, std::size_t>;

// What is kept for a graph.
using Kept = std::vector<std::shared_ptr<const void>>;

struct Call;
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  const void* thread = nullptr;  // that began it
  const void* origin = nullptr;  // the stream
  int device = 0;                // the origin's
  bool valid = true, ended = false;
  std::map<const void*, Seen> streams = {};          // that record, each with its own work
  std::vector<std::function<void()>> nodes = {};     // in the order in which they came
  std::map<const void*, std::size_t> operands = {};  // bytes that they use, by address
  // Called at each launch, before the nodes are enqueued; false: it fails. Without the mutex.
  std::vector<std::function<bool(Call&)>> launches = {};
  Kept kept = {};  // until the end of the capture, from when on the graphs have it
};

struct Event {
  int device = 0;
  bool timing = true;
  std::shared_ptr<Completion> mark = {};  // of the last record
  std::shared_ptr<Capture> capture = {};  // that it was in
  Seen seen = {};
};

struct Graph {
  std::shared_ptr<const Capture> recorded;
  Kept kept;
};

struct GraphExec {
  std::shared_ptr<const Capture> recorded;
  Kept kept;
  std::shared_ptr<Completion> last = {};  // launch
};

struct Kernel {  // one __global__ function
  std::string name;
  void** module = nullptr;
  std::size_t static_shared_bytes = 0;
  int max_threads = 1024;
};

struct LoadedKernel {  // on one device
  bool loaded = false;
  int max_dynamic_shared_bytes = 0;  // 0: what every launch may use
};

struct DeviceState {
  std::size_t memory_bytes = 0, used_bytes = 0;
  int multiprocessors = 0;
  int hardware = 0;  // which device of the machine it is
  bool has_context = false;
  std::array<bool, kMostDevices> peers{};  // whose memory it has enabled
  std::unordered_map<const Kernel*, LoadedKernel> kernels = {};
};

struct State {
  State(const Options& with, const State* replaced);

  const Options options;
  const std::uint64_t generation;
  const State* const before;  // kept: its streams may still be referred to
  OrderChecker* const checker;

  // Sticky errors, by device: its streams look at them without the mutex.
  std::array<std::atomic<int>, kMostDevices> broken{};
  cudaError_t broken_by(int device) const {
    if (device < 0 || device >= kMostDevices) return cudaSuccess;  // a call may name any number
    return static_cast<cudaError_t>(broken[static_cast<std::size_t>(device)].load(std::memory_order_relaxed));
  }

  std::mutex mutex;  // everything below
  std::vector<DeviceState> devices;
  std::map<std::uintptr_t, Piece> pieces;
  std::vector<std::uintptr_t> freed;  // kept so that late uses are noticed, oldest first
  std::map<const void*, Stream> streams;
  std::map<const void*, Event> events;
  std::map<const void*, std::shared_ptr<Capture>> captures;  // by stream
  std::map<const void*, Graph> graphs;
  std::map<const void*, GraphExec> graph_execs;
  std::set<const void*> dead;          // streams, events, handles and pools that were destroyed
  std::map<const void*, int> handles;  // cublasLt: by device
  std::map<const void*, Pool> pools;
  std::map<std::string, int, std::less<>> calls;
  std::vector<Injection> injections;
  std::vector<Strike> strikes;
  int collectives = 0;
  std::map<const void*, std::string> awaited;  // streams that NCCL has not done with, and what it does
  std::vector<std::pair<int, std::shared_ptr<Completion>>> closing;  // what destroyed streams still run, by device
  std::uint64_t streams_made = 0, copies_made = 0;

  // Under the mutex.
  std::pair<const std::uintptr_t, Piece>* piece_at(const void* memory);
};

State& state();

// A driver serves the runtimes of its major version and of those before.
inline int driver_of(const State& machine) {
  return machine.options.driver < 0 ? CUDART_VERSION : machine.options.driver;
}

// Functions that the program brought, and what it said about them. They outlive a reset.
const Kernel* kernel_of(const void* host_function);

struct ThreadState {
  std::uint64_t generation = 0;
  int current = 0;
  cudaError_t last = cudaSuccess;
  std::string last_call = {};
  bool looked_at = true;
  bool in_host_function = false;
  bool bound = false;                       // has the primary context of `current`, or a foreign one
  const ForeignContext* foreign = nullptr;  // that is current, of the device `current`
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::array<bool, kMostDevices> knows_broken{};  // the calls that returned it were this thread's
};
ThreadState& this_thread(State& machine);

// What a call does before its own work.
enum Need : unsigned {
  nothing = 0,
  context = 1,  // of the current device, which it makes if there is none; fails where the device is broken
  raw = 2,      // must not happen while a collective spins, nor beside a capture
  query = 4,    // may answer cudaErrorNotReady again and again; must not happen beside a capture
};

inline constexpr int kNoDevice = -1;

struct Call {
  const char* name;
  State& machine;
  ThreadState& thread;
  const void* stream = nullptr;
  int device = kNoDevice;  // that it is about
  int breaks_device = 0;   // at its end

  // Writes it down and returns `error`.
  cudaError_t fail(Rule rule, const std::string& text, cudaError_t error = cudaErrorInvalidValue) const;
};

cudaError_t enter(Call& call, unsigned need);             // not cudaSuccess: return that and do nothing
cudaError_t leave(const Call& call, cudaError_t result);  // makes it the thread's last error
void make_context(const Call& call, int device);          // under the mutex

// `device` is the one that the call names.
template <class Body>
cudaError_t run_call(const char* name, unsigned need, int device, Body&& body) {
  State& machine = state();
  Call call{.name = name, .machine = machine, .thread = this_thread(machine), .device = device};
  cudaError_t result = enter(call, need);
  if (result == cudaSuccess) result = body(call);
  return leave(call, result);
}

template <class Body>
cudaError_t run_call(const char* name, unsigned need, Body&& body) {
  return run_call(name, need, kNoDevice, std::forward<Body>(body));
}

// Lookups by handle; null after a failure was recorded. Under the mutex.
Stream* find_stream(Call& call, const void* handle);
Event* find_event(Call& call, const void* handle);

// True when `bytes` at `memory` lie in one living piece; records what is wrong otherwise. `device` as asked for: an
// ordinal, or kHostMemory for memory of the host. Under the mutex.
inline constexpr int kHostMemory = -1;
bool check_memory(const Call& call, const void* memory, std::size_t bytes, int device, const char* role);
// The same for memory that work of `device` uses itself: its own, or of a pool that it has access to.
bool check_operand(const Call& call, const void* memory, std::size_t bytes, int device, const char* role);
// Whether `device` reaches a piece of a pool; records it if not. Under the mutex.
bool check_pool_access(const Call& call, const Piece& piece, int device, const char* role);

// Whether the calling thread captures. Under the mutex.
bool captures(const Call& call);
// The capture that the stream records for; null without. Under the mutex.
Capture* capture_of(const State& machine, const void* stream);
// Enqueues `task`, or records it. Without one: nothing to compute. Under the mutex.
cudaError_t put(Call& call, const void* handle, const Stream& stream, std::function<void()> task = {});
// An event on a stream, or a wait for one, where one of the two belongs to a capture. Under the mutex.
cudaError_t record_in_capture(Call& call, const void* handle, Event& event);
cudaError_t wait_in_capture(Call& call, const void* handle, const Event& event);
// A call that no capture stands: invalidates it. Success without one. Under the mutex.
cudaError_t end_capture_by(const Call& call, Capture* capture, const char* what, cudaError_t error);
// A point in the work of a stream.
std::shared_ptr<Completion> mark(State& machine, const void* handle, Stream& stream);

// Where a device's memory is kept; null when the machine has none left.
void* map_memory(std::size_t bytes, std::size_t& mapped_bytes);
// Memory of a pool was freed, and the free is through. Under the mutex.
void return_to_pool(State& machine, const Piece& piece);

// The call has returned that a device is broken: nothing runs there any more, and the caller knows it.
void learn_of_break(const Call& call, int device);

// Waits until the streams of a device have run what they have (cudaFree does).
void drain(State& machine, int device);

// The order checker's word on it: exceptions become failures.
template <class Body>
void judge(const Call& call, Body&& body) {
  if (!call.machine.checker) return;
  try {
    body(*call.machine.checker);
  } catch (const lockstep::InvalidArgument& error) {
    (void)call.fail(Rule::foreign_memory, error.what());
  } catch (const std::exception& error) {
    (void)call.fail(Rule::unordered, error.what());
  }
}

inline lockstep::StreamHandle order_handle(const void* stream) {
  return reinterpret_cast<lockstep::StreamHandle>(const_cast<void*>(stream));
}

}  // namespace fake_cuda
