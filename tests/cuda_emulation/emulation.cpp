#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/kernels/api.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/kernel_report.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

struct Fiber {
  void* stack_pointer = nullptr;
  std::vector<unsigned char> stack;
  int barrier = 0;  // the line where it waits
  bool done = true;
};

struct Scheduler {
  void* stack_pointer = nullptr;
  Fiber* current = nullptr;
  std::vector<Fiber> fibers;
  std::vector<unsigned char> shared;
  int or_value = 0, or_result = 0;
  void (*thread)(void*) = nullptr;
  void* context = nullptr;
};
Scheduler scheduler;

// Stores the callee-saved registers and the stack pointer, and takes another one's.
extern "C" void emulation_switch(void** from, void* to);
asm(R"(
.text
.globl emulation_switch
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

void yield() { emulation_switch(&scheduler.current->stack_pointer, scheduler.stack_pointer); }

void fiber_main() {
  scheduler.thread(scheduler.context);
  scheduler.current->done = true;
  yield();
}

void start(Fiber& f) {
  if (f.stack.empty()) f.stack.resize(kStackBytes);
  auto top = reinterpret_cast<std::uintptr_t>(f.stack.data() + f.stack.size()) & ~std::uintptr_t{15};
  auto* words = reinterpret_cast<void**>(top) - 8;
  words[6] = reinterpret_cast<void*>(&fiber_main);  // what the switch returns to, with the stack as after a call
  f.stack_pointer = words;
  f.done = false;
  f.barrier = 0;
}

lockstep::cuda::KernelReport report{};

}  // namespace

void* dynamic_shared() { return scheduler.shared.data(); }

void barrier(int where) {
  ++barriers;
  scheduler.current->barrier = where;
  yield();
}
int barrier_or(int value, int where) {
  scheduler.or_value |= value != 0;
  barrier(where);
  return scheduler.or_result;
}

void run(const char* op, const Grid& grid, void (*thread)(void* context), void* context) {
  const auto fail = [op](const std::string& what) { throw std::logic_error(std::string(op) + ": " + what); };
  const std::size_t threads = std::size_t{1} * grid.threads.x * grid.threads.y * grid.threads.z;
  if (threads == 0 || threads > 1024 || grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.y > 65535 ||
      grid.blocks.z == 0 || grid.blocks.z > 65535)
    fail("grid out of limits");
  Scheduler& s = scheduler;
  s.thread = thread, s.context = context;
  if (s.fibers.size() < threads) s.fibers.resize(threads);
  gridDim = grid.blocks, blockDim = grid.threads;
  for (unsigned z = 0; z < grid.blocks.z; ++z)
    for (unsigned y = 0; y < grid.blocks.y; ++y)
      for (unsigned x = 0; x < grid.blocks.x; ++x) {
        blockIdx = {x, y, z};
        // Shared memory begins as anything.
        s.shared.assign(grid.shared_bytes + 16, 0xa5);
        for (std::size_t t = 0; t < threads; ++t) start(s.fibers[t]);
        for (std::size_t live = threads; live > 0;) {
          live = 0;
          int where = 0;
          bool diverged = false;
          for (std::size_t t = 0; t < threads; ++t) {
            Fiber& f = s.fibers[t];
            if (f.done) continue;
            s.current = &f;
            threadIdx = {static_cast<unsigned>(t % grid.threads.x),
                         static_cast<unsigned>(t / grid.threads.x % grid.threads.y),
                         static_cast<unsigned>(t / grid.threads.x / grid.threads.y)};
            emulation_switch(&s.stack_pointer, f.stack_pointer);
            if (f.done) continue;
            ++live;
            if (where && where != f.barrier) diverged = true;
            where = f.barrier;
          }
          if (diverged) fail("threads of a block wait at different barriers");
          if (live > 0 && live < threads) fail("some threads of a block have ended, others wait at a barrier");
          s.or_result = s.or_value;
          s.or_value = 0;
        }
        for (std::size_t i = grid.shared_bytes; i < s.shared.size(); ++i)
          if (s.shared[i] != 0xa5) fail("shared memory written beyond its end");
      }
}

int compute_capability_major = 9;

void check_report(const char* op) {
  if (!report.reported) return;
  const auto bad = report;
  report = {};
  if (!bad.ready) throw std::logic_error("a report that is not ready");
  lockstep::detail::fail<lockstep::InvalidArgument>("[", op, "] expected indices in [0, ", bad.size, "), got ",
                                                    bad.index, " at position ?");
}

}  // namespace emulation

extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }
extern "C" cudaError_t cudaMemGetInfo(std::size_t*, std::size_t*) { return cudaSuccess; }

namespace lockstep::cuda {

void check(cudaError_t result, Device device, const char* call) {
  if (result != cudaSuccess) throw DeviceError(device, static_cast<int>(result), call);
}
CurrentDevice::CurrentDevice(Device) {}
CurrentDevice::~CurrentDevice() {}
cudaStream_t native(const Stream&) { return nullptr; }
int compute_capability_major(Device) { return emulation::compute_capability_major; }
KernelReport* kernel_report(Device) { return &emulation::report; }

}  // namespace lockstep::cuda

namespace lockstep::kernels::cuda {

void prepare(Device) {}

// The tests of tests/kernels run on the cpu device, with these kernels in place of the host's.
const bool installed = (lockstep::kernels::detail::install_table(DeviceType::cpu, kernel_table()), true);

}  // namespace lockstep::kernels::cuda
