// What went wrong, and where.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

struct Failures {
  std::mutex mutex;
  std::vector<Failure> list;
  std::string test;
};
Failures& failures() {
  static auto* const made = new Failures;
  return *made;
}

std::string thread_name() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return lockstep::cat(name, " (", syscall(SYS_gettid), ")");
}

// As offsets in the program, which addr2line reads: hidden functions have no name at run time.
std::string place() {
  void* frames[12];
  const int count = backtrace(frames, 12);
  std::string text;
  for (int i = 3; i < count; ++i) {  // without this function and those that called it
    Dl_info found;
    if (!dladdr(frames[i], &found) || !found.dli_fbase) continue;
    const auto offset = reinterpret_cast<std::uintptr_t>(frames[i]) - reinterpret_cast<std::uintptr_t>(found.dli_fbase);
    char hex[24];
    std::snprintf(hex, sizeof hex, "0x%zx", static_cast<std::size_t>(offset));
    text += lockstep::cat(text.empty() ? "" : " ", found.dli_sname ? found.dli_sname : "", "+", hex);
  }
  return text;
}

}  // namespace

std::string_view name_of(Rule rule) {
  switch (rule) {
    case Rule::wrong_device:
      return "wrong device";
    case Rule::foreign_memory:
      return "foreign memory";
    case Rule::out_of_bounds:
      return "out of bounds";
    case Rule::unordered:
      return "unordered";
    case Rule::use_after_free:
      return "use after free";
    case Rule::dead_handle:
      return "dead handle";
    case Rule::during_capture:
      return "during a capture";
    case Rule::during_collective:
      return "during a collective";
    case Rule::unchecked_error:
      return "unchecked error";
    case Rule::bad_launch:
      return "bad launch";
    case Rule::missing_attribute:
      return "missing attribute";
    case Rule::left_alive:
      return "left alive";
    case Rule::unwanted_context:
      return "unwanted context";
    case Rule::current_device_changed:
      return "current device changed";
    case Rule::cuda_in_host_function:
      return "CUDA in a host function";
    case Rule::pageable_copy:
      return "pageable copy";
    case Rule::default_stream:
      return "default stream";
    case Rule::pool_access:
      return "pool access";
    case Rule::nccl_order:
      return "NCCL order";
    case Rule::nccl_threads:
      return "NCCL threads";
    case Rule::nccl_group:
      return "NCCL group";
    case Rule::nccl_in_progress:
      return "NCCL in progress";
    case Rule::nccl_place:
      return "NCCL place";
    case Rule::nccl_dead:
      return "dead NCCL communicator";
  }
  return "?";
}

std::string to_string(const Failure& failure) {
  return lockstep::cat("[", failure.call, "] ", name_of(failure.rule), ": ", failure.text, "; thread ", failure.thread,
                       ", device ", failure.device, ", stream ", reinterpret_cast<std::uintptr_t>(failure.stream),
                       failure.test.empty() ? "" : ", in test ", failure.test, ", at ", failure.place);
}

void record_failure(Rule rule, const char* call, const std::string& text, int device, const void* stream) {
  Failure failure{.rule = rule,
                  .call = call,
                  .text = text,
                  .thread = thread_name(),
                  .device = device,
                  .stream = stream,
                  .place = place(),
                  .test = {}};
  Failures& all = failures();
  std::lock_guard lock(all.mutex);
  failure.test = all.test;
  all.list.push_back(std::move(failure));
}

std::vector<Failure> take_failures() {
  Failures& all = failures();
  std::lock_guard lock(all.mutex);
  return std::exchange(all.list, {});
}

void begin_test(std::string name) {
  Failures& all = failures();
  std::lock_guard lock(all.mutex);
  all.test = std::move(name);
}

void end_test() {
  ThreadState& thread = this_thread(state());
  if (!std::exchange(thread.looked_at, true)) {
    record_failure(Rule::unchecked_error, "the end of the test",
                   lockstep::cat("nobody looked at ", cudaGetErrorName(thread.last), " from ", thread.last_call),
                   thread.current, nullptr);
  }
  begin_test({});
}

}  // namespace fake_cuda
