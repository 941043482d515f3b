// A fake of the CUDA runtime that checks: linked in the place of cudart, it gives a machine without a GPU several CUDA
// devices with memories of their own, runs copies and host functions in stream order on threads, launches kernels that
// compute nothing, and writes down every use that breaks a rule. Nothing here aborts: a test program fails at its end
// when failures are left that no test has taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fake_cuda {

enum class Rule {
  wrong_device,            // a stream, event or handle with another device current where CUDA forbids it
  foreign_memory,          // another device's memory without a copy or peer access; the wrong kind of memory
  out_of_bounds,           // beyond the end of an allocation
  unordered,               // a read or write that no event edge orders, or memory freed or reused in flight
  use_after_free,          // memory that was freed
  dead_handle,             // a stream, event or handle that was destroyed, or never was one
  during_capture,          // a call that invalidates a capture of streams: raw memory and its like, and queries
  during_collective,       // raw memory, handles, modules, peer access while a collective spins
  unchecked_error,         // an error that was returned and that nobody looked at
  bad_launch,              // threads, grid, shared memory, or a function that does not exist
  missing_attribute,       // shared memory that was asked for on another device only
  left_alive,              // streams, events, memory, handles at the end
  unwanted_context,        // on a device that nobody asked for
  current_device_changed,  // the caller's
  cuda_in_host_function,   // a CUDA call from a host function
  pageable_copy,           // an asynchronous copy from or to pageable memory: it blocks the host
  default_stream,          // work on the legacy or per-thread default stream
  pool_access,             // memory of a pool whose owner has not given the device access
  nccl_order,              // ranks that call different collectives, or with other counts, types or roots
  nccl_threads,            // two threads in one communicator
  nccl_group,              // a group that is ended twice, or never
  nccl_in_progress,        // work on a stream, or a call, before NCCL was done with the last one
  nccl_place,              // a stream of another device than the communicator's
  nccl_dead,               // a communicator that was aborted or destroyed; one destroyed with work on the way
};
std::string_view name_of(Rule rule);

struct Failure {
  Rule rule;
  std::string call;    // "cudaMemcpyAsync"
  std::string text;    // what was wrong
  std::string thread;  // its name and id
  int device = -1;     // current at the call
  const void* stream = nullptr;
  std::string place;  // the calls that led to it
  std::string test;   // that was running
};
std::string to_string(const Failure& failure);

// What has failed since the last call. Failures that were taken no longer fail the program.
std::vector<Failure> take_failures();

// Lines of NVLink between two devices (ordinals), both ways. Every other pair is on PCIe, of one rank more than the
// slowest of these.
struct NvLink {
  int a, b, rank;
};

// How the devices are laid out. LOCKSTEP_FAKE_CUDA says the same in text:
// "devices=4,driver=12040,shared=99K,seed=3,memory=1G/512M,multiprocessors=132/114,order=2/0/1/3,deny=0-1,lose=1-0,nvlink=0-1-0,only=2,nccl=23000,pools=0,fail=cudaMalloc:3,…"
struct Options {
  int devices = 8;         // 0 to 16
  int driver = -1;         // the CUDA version it is for, as 12040; 0: there is none; -1: the runtime's
  std::uint64_t seed = 1;  // of the order in which independent streams run; 0: as the machine has it
  std::vector<std::size_t> memory_bytes = {std::size_t{1} << 30};  // by hardware device; the last one repeats
  std::vector<int> multiprocessors = {132};                        // by hardware device; the last one repeats
  int shared_bytes = 227 << 10;                                    // of a block that asks for it
  std::vector<int> order = {};                                     // ordinal i is hardware device order[i]
  std::vector<std::pair<int, int>> no_peer = {};                   // ordinals (a, b): a does not reach b's memory
  std::vector<std::pair<int, int>> lossy_peer = {};  // copies from a to b are claimed to work and write nothing,
                                                     // once one of the two has peer access to the other
  std::vector<NvLink> nvlinks = {};
  std::vector<int> only = {};   // the devices that may have a context; empty: all
  bool check_order = true;      // with the order checker
  int nccl = 0;                 // the version that NCCL says it is; 0: that of its header
  bool pools = true;            // memory pools
  bool allow_pageable = false;  // copies from and to pageable memory (they block, as they do in CUDA)
};
inline constexpr int kMostDevices = 16;

// A machine as it was never used. Handles and memory of the one before are dead. Not while streams work.
void reset(const Options& options = {});
// What LOCKSTEP_FAKE_CUDA says on top of `options`; throws std::invalid_argument. (The first CUDA call does this.)
void reset_from_environment(Options options = {});

// The `nth` call (1: the next one) of a function from now on, and `times - 1` after it, return `error` and do nothing.
// After `delay_microseconds`. With error 0 (cudaSuccess) it is only late.
struct Injection {
  std::string call;
  int nth = 1;
  int error = 2;  // cudaErrorMemoryAllocation
  int times = 1;
  int delay_microseconds = 0;
  int breaks_device = 0;  // not 0: once the call is over its device is broken by this error (see break_device)
};
void inject(const Injection& injection);
void forget_injections();
// What injections have met since the reset, oldest first.
struct Strike {
  std::string call;
  int device;  // that the call is about: its argument, or the current one; -1: none
  int error;
};
std::vector<Strike> strikes();
// From now on every call that needs the device's context returns `error`, and its streams run nothing.
void break_device(int device, int error);
int calls_of(std::string_view call);  // how often it was called, failures included

// While one lives, a kernel spins on the devices that waits for others: raw memory calls, handles, module loading and
// peer access would wait for it and it for what comes after them.
class SpinningCollective {
 public:
  SpinningCollective();
  SpinningCollective(const SpinningCollective&) = delete;
  SpinningCollective& operator=(const SpinningCollective&) = delete;
  ~SpinningCollective();
};

// The device that is current in this thread must be so again at the end of the scope, if it has a context.
class KeepsCurrentDevice {
 public:
  explicit KeepsCurrentDevice(std::string what = "scope");
  KeepsCurrentDevice(const KeepsCurrentDevice&) = delete;
  KeepsCurrentDevice& operator=(const KeepsCurrentDevice&) = delete;
  ~KeepsCurrentDevice();

 private:
  std::string what_;
  int device_ = -1;
  std::uint64_t generation_ = 0;
};

// A context that a library made on the device (cuCtxCreate) is current in this thread for the scope, in the place of
// the device's primary one, and at its end must be so still.
class ForeignContext {
 public:
  explicit ForeignContext(int device);
  ForeignContext(const ForeignContext&) = delete;
  ForeignContext& operator=(const ForeignContext&) = delete;
  ~ForeignContext();
  int device() const { return device_; }

 private:
  int device_, before_;
};

// NCCL, where the programs were built with its header (nccl.h). Collectives spin on their streams until every rank's
// has come to them, then compute on the host what NCCL would.
//
// From now on communicators of the device report the error (a ncclResult_t) when they are asked.
void fail_nccl(int device, int error);
// Communicators of the device never finish what they are asked from now on, until they are aborted.
void stall_nccl(int device);
// Of communicators that do not block: each call is done when it has been asked for so many times. 0: at once.
void slow_nccl(int polls);
void heal_nccl();
// How many ranks' collectives spin, on all devices.
int spinning_collectives();
struct NcclCounts {
  int made = 0, aborted = 0, destroyed = 0, in_progress = 0;  // in_progress: calls that said so
};
NcclCounts nccl_counts();  // since the start

struct Alive {
  int streams = 0, events = 0, device_allocations = 0, pinned_allocations = 0;
  int handles = 0;  // of cublasLt, communicators of NCCL, and pools
  std::size_t device_bytes = 0;
  friend bool operator==(const Alive&, const Alive&) = default;
};
// Without what a broken device had: that went with its context.
Alive alive();
std::size_t used_bytes(int device);
std::vector<int> devices_with_context();

// What was made in the scope must be gone at its end, but for `kept`.
class NothingLeft {
 public:
  explicit NothingLeft(Alive kept = {}) : kept_(kept), before_(alive()) {}
  NothingLeft(const NothingLeft&) = delete;
  NothingLeft& operator=(const NothingLeft&) = delete;
  ~NothingLeft();

 private:
  Alive kept_, before_;
};

// What may be alive when the program ends; asked then, so that it can give back caches first, and again while threads
// may still be about to give something back. Without one a program's end is not checked.
void keep_at_end(std::function<Alive()> kept);
// By main(), when the tests are through: writes down what is left.
void check_end(int patience_milliseconds = 10'000);

// For a setup to set: each test leaves the device that is current in the main thread as it found it.
inline bool tests_keep_device = false;

// For failures to say which test ran; and a look at the errors that this thread has left at its end.
void begin_test(std::string name);
void end_test();

// For the checking kernel table: failures are recorded. False when memory is not all `device`'s and alive.
bool check_kernel_memory(const char* kernel, const void* stream, const void* data, std::size_t bytes);
void record_failure(Rule rule, const char* call, const std::string& text, int device, const void* stream);

}  // namespace fake_cuda
