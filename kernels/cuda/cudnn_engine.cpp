#include "lockstep/kernels/cuda/cudnn_engine.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "lockstep/kernels/cuda/first_call.h"
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

struct KeptPlan {
  std::shared_ptr<dnn::KernelCache> cache;  // or null; goes behind its plan
  std::unique_ptr<dnn::Plan> plan;          // null: no engine
  std::size_t weight = 1;
  bool has_run = false;   // its code is loaded
  bool recorded = false;  // graphs may hold its code
};

// What a logical device has. The lock is held while a call is described and enqueued, never while anything waits.
struct Engine {
  std::mutex mutex;
  dnn::Handle handle = nullptr;
  bool unsupported = false;  // the GPU or its driver is none of cuDNN's
  using Plans = std::map<PlanKey, KeptPlan>;
  Plans plans;
  std::size_t weight = 0;                                     // of those
  Plans outgoing;                                             // of before it was full
  std::map<PlanKey, std::weak_ptr<dnn::KernelCache>> caches;  // of families
};

Engine& engine_of(Device device) {
  static constinit lockstep::detail::PerDevice<Engine> engines;
  return engines[device];
}

// Under the lock. A full engine starts over, but for plans that graphs have recorded. A plan's code goes with it, and
// may still run: so it goes when the engine is full again.
void make_room(Engine& engine) {
  engine.outgoing.clear();
  for (auto it = engine.plans.begin(); it != engine.plans.end();) {
    if (it->second.recorded)
      ++it;
    else
      engine.outgoing.insert(engine.plans.extract(it++));
  }
  std::erase_if(engine.caches, [](const auto& family) { return family.second.expired(); });
  engine.weight = 0;
  for (const auto& [key, kept] : engine.plans) engine.weight += kept.weight;
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
    return log(LogLevel::warning,
               cat("[", op, "] cuDNN ", library.version(), " refuses ", device, " (", library.error_string(status),
                   "): convolutions and attention are products there"));
  }
  dnn::check(library, status, device, op, "cudnnCreate");
  engine.handle = made;
}

// Under the lock. Of a family that has no kernels for all sizes none is compiled for each.
KeptPlan make_plan(Engine& engine, const dnn::Library& library, Device device, const CudnnCall& call) {
  KeptPlan made;
  made.weight = call.weight;
  if (!call.family.empty()) {
    std::weak_ptr<dnn::KernelCache>& known = engine.caches[call.family];
    made.cache = known.lock();
    if (!made.cache) known = made.cache = std::make_shared<dnn::KernelCache>(library);
  }
  made.plan = dnn::Plan::make(library, {.handle = engine.handle}, device, call.op, call.request, made.cache.get());
  return made;
}

}  // namespace

bool enqueue_cudnn(const Stream& stream, const CudnnCall& call) {
  const dnn::Library* library = dnn::library();
  if (!library) return false;
  const Device device = stream.device();
  const lockstep::cuda::CurrentDevice current(device);
  Engine& engine = engine_of(device);
  // Null: no engine of cuDNN's.
  const auto find_plan = [&]() -> KeptPlan* {
    create_handle(engine, *library, device, call.op);
    if (engine.unsupported) return nullptr;
    auto found = engine.plans.find(call.key);
    if (found == engine.plans.end()) {
      if (engine.weight >= most_cudnn_plans) make_room(engine);
      found = engine.plans.emplace(call.key, make_plan(engine, *library, device, call)).first;
      engine.weight += call.weight;
    }
    return found->second.plan ? &found->second : nullptr;
  };
  const auto has_run = [&] {
    const auto found = engine.plans.find(call.key);
    return engine.unsupported || (found != engine.plans.end() && (!found->second.plan || found->second.has_run));
  };
  for (;;) {
    std::size_t bytes;
    {
      const FirstCallLock lock(engine.mutex, has_run);
      const KeptPlan* kept = find_plan();
      if (!kept) return false;
      bytes = kept->plan->workspace_bytes();
    }
    // Taken without the lock, since the allocator may have to wait for the device.
    const Workspace workspace(stream, bytes);
    const FirstCallLock lock(engine.mutex, has_run);
    KeptPlan* kept = find_plan();
    if (!kept || kept->plan->workspace_bytes() > bytes) continue;  // another thread has started over
    const trace::WorkScope scope(
        stream, {.name = kept->plan->tensor_cores() ? call.tensor_core_name : call.name, .kind = trace::Kind::kernel});
    dnn::check(*library, library->set_stream(engine.handle, lockstep::cuda::native(stream)), device, call.op,
               "cudnnSetStream");
    kept->plan->run(engine.handle, device, call.op, call.operands, workspace.data());
    kept->has_run = true;
    kept->recorded |= lockstep::detail::current_capture != nullptr;
    return true;
  }
}

int alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<int>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

int retained_cudnn(Device device) {
  Engine& engine = engine_of(device);
  const std::lock_guard lock(engine.mutex);
  int count = engine.handle != nullptr;
  for (const Engine::Plans* plans : {&engine.plans, &engine.outgoing})
    for (const auto& [key, kept] : *plans) count += kept.plan ? static_cast<int>(kept.plan->descriptors()) : 0;
  for (const auto& [family, known] : engine.caches) {
    const std::shared_ptr<dnn::KernelCache> cache = known.lock();
    count += cache && cache->descriptor();
  }
  return count;
}

}  // namespace lockstep::kernels::cuda
