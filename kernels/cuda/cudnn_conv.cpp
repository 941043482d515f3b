#include "lockstep/kernels/cuda/cudnn_conv.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "lockstep/kernels/cuda/first_call.h"
#include "lockstep/kernels/cuda/gemm.h"
#include "lockstep/kernels/cuda/workspace.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/per_device.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

namespace dnn = lockstep::cudnn;

// What a logical device has for convolutions. The lock is held while one is described and enqueued, never while
// anything waits.
struct Engine {
  std::mutex mutex;
  dnn::Handle handle = nullptr;
  bool unsupported = false;  // the GPU or its driver is none of cuDNN's
  using Plans = std::map<ConvProblem::Key, std::unique_ptr<ConvPlan>>;
  Plans plans;     // null: no engine
  Plans outgoing;  // of before it was full
};

Engine& engine_of(Device device) {
  static constinit lockstep::detail::PerDevice<Engine> engines;
  return engines[device];
}

// At most 16: engines gain nothing by more.
int alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<int>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

// Under the lock. A full engine starts over, but for plans that graphs have recorded. A plan's code goes with it, and
// may still run: so it goes when the engine is full again.
void make_room(Engine& engine) {
  engine.outgoing.clear();
  for (auto it = engine.plans.begin(); it != engine.plans.end();) {
    if (it->second && it->second->recorded)
      ++it;
    else
      engine.outgoing.insert(engine.plans.extract(it++));
  }
}

// Of a library that is not whole, or of a GPU or driver that is none of its own: that stays so.
bool refuses(dnn::Status status) {
  return dnn::unsupported(status) || (status >= dnn::kNotInitialized && status < dnn::kNotInitialized + 999);
}

// Under the lock.
void create_handle(Engine& engine, const dnn::Library& library, Device device, const char* op) {
  if (engine.handle || engine.unsupported) return;
  dnn::Handle made = nullptr;
  const dnn::Status status = library.create(&made);
  if (refuses(status)) {
    engine.unsupported = true;
    return log(LogLevel::warning, cat("[", op, "] cuDNN ", library.version(), " refuses ", device, " (",
                                      library.error_string(status), "): convolutions are products there"));
  }
  dnn::check(library, status, device, op, "cudnnCreate");
  engine.handle = made;
}

}  // namespace

bool conv_by_cudnn(const Stream& stream, const char* op, ConvKind kind, const ConvSizes& sizes, const View& x,
                   const View& w, const View& y, bool adds) {
  if (!goes_to_cudnn(sizes, x.dtype)) return false;
  const dnn::Library* library = dnn::library();
  if (!library) return false;
  const Device device = stream.device();
  const lockstep::cuda::CurrentDevice current(device);
  Engine& engine = engine_of(device);
  const ConvProblem problem{.kind = kind,
                            .dtype = x.dtype,
                            .sizes = sizes,
                            .adds = adds,
                            .tf32 = tf32_allowed(),
                            .alignment = {alignment_of(x.data), alignment_of(w.data), alignment_of(y.data)}};
  const ConvProblem::Key key = problem.key();
  // Null: no engine of cuDNN's.
  const auto find_plan = [&]() -> ConvPlan* {
    create_handle(engine, *library, device, op);
    if (engine.unsupported) return nullptr;
    if (const auto found = engine.plans.find(key); found != engine.plans.end()) return found->second.get();
    if (engine.plans.size() >= most_conv_plans) make_room(engine);
    return engine.plans.emplace(key, ConvPlan::make(*library, {.handle = engine.handle}, device, op, problem))
        .first->second.get();
  };
  const auto has_run = [&] {
    const auto found = engine.plans.find(key);
    return engine.unsupported || (found != engine.plans.end() && (!found->second || found->second->has_run));
  };
  std::size_t bytes;
  {
    const FirstCallLock lock(engine.mutex, has_run);
    const ConvPlan* plan = find_plan();
    if (!plan) return false;
    bytes = plan->workspace_bytes();
  }
  // Taken without the lock, since the allocator may have to wait for the device.
  const Workspace workspace(stream, bytes);
  const FirstCallLock lock(engine.mutex, has_run);
  ConvPlan* plan = find_plan();  // again: another thread may have started over
  const trace::WorkScope scope(
      stream, {.name = plan->tensor_cores() ? "convolution by cuDNN, tensor cores" : "convolution by cuDNN",
               .kind = trace::Kind::kernel});
  dnn::check(*library, library->set_stream(engine.handle, lockstep::cuda::native(stream)), device, op,
             "cudnnSetStream");
  plan->run(engine.handle, device, op, x.data, w.data, y.data, workspace.data());
  plan->has_run = true;
  plan->recorded |= lockstep::detail::current_capture != nullptr;
  return true;
}

int retained_cudnn(Device device) {
  Engine& engine = engine_of(device);
  const std::lock_guard lock(engine.mutex);
  int count = engine.handle != nullptr;
  for (const Engine::Plans* plans : {&engine.plans, &engine.outgoing})
    for (const auto& [key, plan] : *plans) count += plan ? static_cast<int>(plan->descriptors()) : 0;
  return count;
}

}  // namespace lockstep::kernels::cuda
