#include "lockstep/kernels/cuda/cudnn_plan.h"

#include <algorithm>
#include <utility>

namespace lockstep::cudnn {
namespace {

// Null where cuDNN knows no such graph.
Descriptor graph_of(const Library& library, Maker& maker, const PlanTarget& target, const PlanRequest& request,
                    bool dynamic) {
  const std::vector<Descriptor> operations = request.operations(maker);
  const Descriptor made = maker.create(kGraph);
  if (target.handle) maker.set(made, kGraphHandle, kTypeHandle, target.handle);
  maker.set(made, kGraphOperations, kTypeDescriptor, static_cast<std::int64_t>(operations.size()), operations.data());
  if (dynamic) maker.set(made, kGraphIsDynamic, kTypeBoolean, true);
  const Status status = library.finalize(made);
  if (unsupported(status)) return nullptr;
  maker.check(status, "cudnnBackendFinalize");
  return made;
}

// In cuDNN's order, the best first.
std::vector<Descriptor> configurations(const Library& library, Maker& maker, const PlanTarget& target, Descriptor graph,
                                       HeuristicMode mode) {
  const Descriptor heuristic = maker.create(kHeuristic);
  maker.set(heuristic, kHeuristicGraph, kTypeDescriptor, graph);
  maker.set(heuristic, cudnn::kHeuristicMode, kTypeHeuristicMode, mode);
  if (target.device_properties) maker.set(heuristic, kHeuristicDevice, kTypeDescriptor, target.device_properties);
  std::int64_t count = 0;
  if (library.finalize(heuristic) != kSuccess ||  // a mode may know nothing of an operation
      library.get(heuristic, kHeuristicResults, kTypeDescriptor, 0, &count, nullptr) != kSuccess)
    return {};
  std::vector<Descriptor> found;
  for (std::int64_t i = 0; i < count; ++i) found.push_back(maker.create(kEngineConfig));
  maker.check(library.get(heuristic, kHeuristicResults, kTypeDescriptor, count, &count, found.data()),
              "cudnnBackendGetAttribute");
  found.resize(static_cast<std::size_t>(count));
  return found;
}

struct Engine {
  std::int64_t number = -1;
  std::vector<Note> notes;
  bool has(Note note) const { return std::ranges::find(notes, note) != notes.end(); }
};

Engine engine_of(const Library& library, Maker& maker, Descriptor config) {
  Descriptor engine = maker.create(kEngine);
  std::int64_t count = 0;
  maker.check(library.get(config, kConfigEngine, kTypeDescriptor, 1, &count, &engine), "cudnnBackendGetAttribute");
  Engine found{-1, std::vector<Note>(kMostNotes)};
  maker.check(library.get(engine, kEngineNumber, kTypeInt64, 1, &count, &found.number), "cudnnBackendGetAttribute");
  maker.check(library.get(engine, kEngineNotes, kTypeNote, kMostNotes, &count, found.notes.data()),
              "cudnnBackendGetAttribute");
  found.notes.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, kMostNotes)));
  return found;
}

bool allowed(const Engine& engine, bool tensor_cores) {
  for (const Note note :
       {kNondeterministic, kDownConverts, kReducedReduction, kFft, kWinograd, kWinograd4, kWinograd6, kWinograd13})
    if (engine.has(note)) return false;
  return tensor_cores || !engine.has(kTensorCore);
}

}  // namespace

Descriptor KernelCache::of(Maker& maker, Descriptor graph) {
  if (made_) return made_;
  Descriptor made = nullptr;
  maker.check(library_.descriptor_create(kKernelCache, &made), "cudnnBackendCreateDescriptor");
  made_ = made;
  const auto finish = [&] {
    const Status status = library_.set(made, kCacheGraph, kTypeDescriptor, 1, &graph);
    return status == kSuccess ? library_.finalize(made) : status;
  };
  if (const Status status = finish(); status != kSuccess) {
    library_.descriptor_destroy(std::exchange(made_, nullptr));
    maker.check(status, "cudnnBackendFinalize");
  }
  return made_;
}

std::unique_ptr<Plan> Plan::make(const Library& library, const PlanTarget& target, Device device, const char* op,
                                 const PlanRequest& request, KernelCache* cache) {
  std::unique_ptr<Plan> made(new Plan(library));
  Maker maker(library, device, op, made->descriptors_);
  const Descriptor graph = graph_of(library, maker, target, request, cache != nullptr);
  if (!graph) return nullptr;
  std::vector<Descriptor>& kept = made->descriptors_;
  const std::size_t described = kept.size();
  for (const HeuristicMode mode : {kFirst, kFallback})
    for (const Descriptor config : configurations(library, maker, target, graph, mode)) {
      const Engine engine = engine_of(library, maker, config);
      if (!allowed(engine, request.tensor_cores)) continue;
      const Descriptor plan = maker.create(kPlan);
      if (target.handle) maker.set(plan, kPlanHandle, kTypeHandle, target.handle);
      if (target.device_properties) maker.set(plan, kPlanDevice, kTypeDescriptor, target.device_properties);
      maker.set(plan, kPlanConfig, kTypeDescriptor, config);
      if (cache) maker.set(plan, kPlanKernelCache, kTypeDescriptor, cache->of(maker, graph));
      // The heuristic only guesses what an engine can do. That there was no memory says nothing of it.
      const Status status = library.finalize(plan);
      if (status == kNoDeviceMemory || status == kNoHostMemory) maker.check(status, "cudnnBackendFinalize");
      if (status != kSuccess) continue;
      std::int64_t count = 0, bytes = 0;
      maker.check(library.get(plan, kPlanWorkspace, kTypeInt64, 1, &count, &bytes), "cudnnBackendGetAttribute");
      if (bytes > request.most_workspace) continue;
      if (request.only_tensor_cores && !engine.has(kTensorCore)) return nullptr;
      made->plan_ = plan;
      made->workspace_bytes_ = bytes;
      made->engine_ = engine.number;
      made->tensor_cores_ = engine.has(kTensorCore);
      // What is not chosen goes at once: there are dozens.
      const auto unused = std::stable_partition(kept.begin() + static_cast<std::ptrdiff_t>(described), kept.end(),
                                                [&](Descriptor d) { return d == config || d == plan; });
      std::for_each(unused, kept.end(), library.descriptor_destroy);
      kept.erase(unused, kept.end());
      return made;
    }
  return nullptr;
}

Plan::~Plan() {
  // What is made of others goes before them.
  for (auto it = descriptors_.rbegin(); it != descriptors_.rend(); ++it) library_.descriptor_destroy(*it);
}

void Plan::run(Handle handle, Device device, const char* op, std::span<const Operand> operands, void* workspace) const {
  struct Pack {
    const Library& library;
    std::vector<Descriptor> made;
    ~Pack() {
      for (const Descriptor descriptor : made) library.descriptor_destroy(descriptor);
    }
  } pack{library_, {}};
  std::vector<std::int64_t> ids;
  std::vector<const void*> data;
  for (const Operand& operand : operands) ids.push_back(operand.id), data.push_back(operand.data);
  const auto count = static_cast<std::int64_t>(operands.size());
  Maker maker(library_, device, op, pack.made);
  const Descriptor arrays = maker.create(kVariantPack);
  maker.set(arrays, kPackIds, kTypeInt64, count, ids.data());
  maker.set(arrays, kPackPointers, kTypePointer, count, data.data());
  maker.set(arrays, kPackWorkspace, kTypePointer, workspace);
  maker.finish(arrays);
  maker.check(library_.execute(handle, plan_, arrays), "cudnnBackendExecute");
}

}  // namespace lockstep::cudnn
