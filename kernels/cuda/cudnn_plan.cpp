#include <algorithm>
#include <utility>

#include "lockstep/kernels/common/image_format.h"
#include "lockstep/kernels/cuda/cudnn_conv.h"

namespace lockstep::kernels::cuda {
namespace {

namespace dnn = lockstep::cudnn;

dnn::DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return dnn::kHalf;
    case DType::bf16:
      return dnn::kBfloat16;
    default:
      return dnn::kFloat;
  }
}

// Makes descriptors, all of which `kept` destroys.
class Maker {
 public:
  Maker(const dnn::Library& library, Device device, const char* op, std::vector<dnn::Descriptor>& kept)
      : library_(library), device_(device), op_(op), kept_(kept) {}

  dnn::Descriptor create(dnn::DescriptorKind kind) {
    kept_.reserve(kept_.size() + 1);
    dnn::Descriptor made = nullptr;
    check(library_.descriptor_create(kind, &made), "cudnnBackendCreateDescriptor");
    kept_.push_back(made);
    return made;
  }
  void set(dnn::Descriptor to, dnn::Attribute attribute, dnn::AttributeType type, std::int64_t count,
           const void* values) {
    check(library_.set(to, attribute, type, count, values), "cudnnBackendSetAttribute");
  }
  template <class T>
  void set(dnn::Descriptor to, dnn::Attribute attribute, dnn::AttributeType type, const T& value) {
    set(to, attribute, type, 1, &value);
  }
  void finish(dnn::Descriptor made) { check(library_.finalize(made), "cudnnBackendFinalize"); }
  void check(dnn::Status status, const char* call) const { dnn::check(library_, status, device_, op_, call); }

 private:
  const dnn::Library& library_;
  Device device_;
  const char* op_;
  std::vector<dnn::Descriptor>& kept_;
};

// The identifiers of the arrays in a plan.
constexpr std::int64_t kX = 1, kW = 2, kY = 3;

using Dims = std::array<std::int64_t, 4>;

dnn::Descriptor tensor(Maker& maker, std::int64_t id, const ConvProblem& p, const Dims& dims) {
  const DType dtype = p.dtype;
  const int alignment = p.alignment[static_cast<std::size_t>(id - 1)];
  const Strides lie = image_strides({dims[0], dims[1], dims[2], dims[3]}, p.sizes.channels_last);
  const Dims strides{lie[0], lie[1], lie[2], lie[3]};
  const dnn::Descriptor made = maker.create(dnn::kTensor);
  maker.set(made, dnn::kTensorType, dnn::kTypeDataType, type_of(dtype));
  maker.set(made, dnn::kTensorDimensions, dnn::kTypeInt64, 4, dims.data());
  maker.set(made, dnn::kTensorStrides, dnn::kTypeInt64, 4, strides.data());
  maker.set(made, dnn::kTensorId, dnn::kTypeInt64, id);
  maker.set(made, dnn::kTensorAlignment, dnn::kTypeInt64, static_cast<std::int64_t>(alignment));
  maker.finish(made);
  return made;
}

dnn::Descriptor convolution(Maker& maker, const Window2d& w) {
  const auto pair = [](const auto& values) { return std::array<std::int64_t, 2>{values[0], values[1]}; };
  const auto dilation = pair(w.dilation), stride = pair(w.stride), padding = pair(w.padding);
  const dnn::Descriptor made = maker.create(dnn::kConvolution);
  maker.set(made, dnn::kConvolutionType, dnn::kTypeDataType, dnn::kFloat);
  maker.set(made, dnn::kConvolutionMode, dnn::kTypeConvolutionMode, dnn::kCrossCorrelation);
  maker.set(made, dnn::kConvolutionDimensions, dnn::kTypeInt64, std::int64_t{2});
  maker.set(made, dnn::kConvolutionDilations, dnn::kTypeInt64, 2, dilation.data());
  maker.set(made, dnn::kConvolutionStrides, dnn::kTypeInt64, 2, stride.data());
  maker.set(made, dnn::kConvolutionPrePaddings, dnn::kTypeInt64, 2, padding.data());
  maker.set(made, dnn::kConvolutionPostPaddings, dnn::kTypeInt64, 2, padding.data());
  maker.finish(made);
  return made;
}

// Null where cuDNN knows no such graph.
dnn::Descriptor graph(const dnn::Library& library, Maker& maker, const ConvTarget& target, const ConvProblem& p) {
  const ConvSizes& s = p.sizes;
  const Window2d& window = s.window;
  const dnn::Descriptor x = tensor(maker, kX, p, {s.batch, s.channels, s.height, s.width});
  const dnn::Descriptor w = tensor(maker, kW, p, {s.outputs, s.group_channels, window.kernel[0], window.kernel[1]});
  const dnn::Descriptor y = tensor(maker, kY, p, {s.batch, s.outputs, s.out_height, s.out_width});
  const auto [kind, first] = p.kind == ConvKind::forward ? std::pair(dnn::kForward, dnn::kForwardAttributes)
                             : p.kind == ConvKind::grad_input
                                 ? std::pair(dnn::kBackwardData, dnn::kBackwardDataAttributes)
                                 : std::pair(dnn::kBackwardFilter, dnn::kBackwardFilterAttributes);
  const auto of = [first = first](dnn::OperationAttribute attribute) {
    return static_cast<dnn::Attribute>(int{first} + attribute);
  };
  const dnn::Descriptor geometry = convolution(maker, window);
  const dnn::Descriptor operation = maker.create(kind);
  maker.set(operation, of(dnn::kAlpha), dnn::kTypeFloat, 1.0F);
  maker.set(operation, of(dnn::kBeta), dnn::kTypeFloat, p.adds ? 1.0F : 0.0F);
  maker.set(operation, of(dnn::kOfConvolution), dnn::kTypeDescriptor, geometry);
  maker.set(operation, of(dnn::kOfWeights), dnn::kTypeDescriptor, w);
  maker.set(operation, of(dnn::kOfInput), dnn::kTypeDescriptor, x);
  maker.set(operation, of(dnn::kOfOutput), dnn::kTypeDescriptor, y);
  maker.finish(operation);
  const dnn::Descriptor made = maker.create(dnn::kGraph);
  if (target.handle) maker.set(made, dnn::kGraphHandle, dnn::kTypeHandle, target.handle);
  maker.set(made, dnn::kGraphOperations, dnn::kTypeDescriptor, operation);
  const dnn::Status status = library.finalize(made);
  if (dnn::unsupported(status)) return nullptr;
  maker.check(status, "cudnnBackendFinalize");
  return made;
}

// In cuDNN's order, the best first.
std::vector<dnn::Descriptor> configurations(const dnn::Library& library, Maker& maker, const ConvTarget& target,
                                            dnn::Descriptor graph, dnn::HeuristicMode mode) {
  const dnn::Descriptor heuristic = maker.create(dnn::kHeuristic);
  maker.set(heuristic, dnn::kHeuristicGraph, dnn::kTypeDescriptor, graph);
  maker.set(heuristic, dnn::kHeuristicMode, dnn::kTypeHeuristicMode, mode);
  if (target.device_properties)
    maker.set(heuristic, dnn::kHeuristicDevice, dnn::kTypeDescriptor, target.device_properties);
  std::int64_t count = 0;
  if (library.finalize(heuristic) != dnn::kSuccess ||  // a mode may know nothing of an operation
      library.get(heuristic, dnn::kHeuristicResults, dnn::kTypeDescriptor, 0, &count, nullptr) != dnn::kSuccess)
    return {};
  std::vector<dnn::Descriptor> found;
  for (std::int64_t i = 0; i < count; ++i) found.push_back(maker.create(dnn::kEngineConfig));
  maker.check(library.get(heuristic, dnn::kHeuristicResults, dnn::kTypeDescriptor, count, &count, found.data()),
              "cudnnBackendGetAttribute");
  found.resize(static_cast<std::size_t>(count));
  return found;
}

struct Engine {
  std::int64_t number = -1;
  std::vector<dnn::Note> notes;
  bool has(dnn::Note note) const { return std::ranges::find(notes, note) != notes.end(); }
};

Engine engine_of(const dnn::Library& library, Maker& maker, dnn::Descriptor config) {
  dnn::Descriptor engine = maker.create(dnn::kEngine);
  std::int64_t count = 0;
  maker.check(library.get(config, dnn::kConfigEngine, dnn::kTypeDescriptor, 1, &count, &engine),
              "cudnnBackendGetAttribute");
  Engine found{-1, std::vector<dnn::Note>(dnn::kMostNotes)};
  maker.check(library.get(engine, dnn::kEngineNumber, dnn::kTypeInt64, 1, &count, &found.number),
              "cudnnBackendGetAttribute");
  maker.check(library.get(engine, dnn::kEngineNotes, dnn::kTypeNote, dnn::kMostNotes, &count, found.notes.data()),
              "cudnnBackendGetAttribute");
  found.notes.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, dnn::kMostNotes)));
  return found;
}

bool allowed(const Engine& engine, const ConvProblem& p) {
  for (const dnn::Note note : {dnn::kNondeterministic, dnn::kDownConverts, dnn::kReducedReduction, dnn::kFft,
                               dnn::kWinograd, dnn::kWinograd4, dnn::kWinograd6, dnn::kWinograd13})
    if (engine.has(note)) return false;
  return !(engine.has(dnn::kTensorCore) && p.dtype == DType::f32 && !p.tf32);
}

}  // namespace

bool goes_to_cudnn(const ConvSizes& s, DType dtype) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;  // elements
  constexpr std::int64_t kRowAlignment = 16;             // bytes, of rows that products on tensor cores take
  if (dtype == DType::f64 || s.taps() == 0) return false;
  if (s.batch * s.channels * s.plane() >= kMost || s.batch * s.outputs * s.out_plane() >= kMost ||
      s.outputs * s.taps() >= kMost)
    return false;
  return s.channels_last || !s.pointwise() ||
         s.plane() * static_cast<std::int64_t>(size_of(dtype)) % kRowAlignment != 0;
}

ConvProblem::Key ConvProblem::key() const {
  const Window2d& w = sizes.window;
  return {static_cast<std::int64_t>(kind),
          static_cast<std::int64_t>(dtype),
          adds,
          tf32,
          alignment[0],
          alignment[1],
          alignment[2],
          sizes.channels_last,
          sizes.batch,
          sizes.channels,
          sizes.height,
          sizes.width,
          sizes.outputs,
          sizes.groups,
          w.kernel[0],
          w.kernel[1],
          w.stride[0],
          w.stride[1],
          w.padding[0],
          w.padding[1],
          w.dilation[0],
          w.dilation[1],
          sizes.out_height * (std::int64_t{1} << 32) + sizes.out_width};
}

std::int64_t conv_workspace_limit(const ConvProblem& p) {
  constexpr std::int64_t kOfProduct = std::int64_t{32} << 20;
  const ConvSizes& s = p.sizes;
  const std::int64_t elements = s.batch * (s.channels * s.plane() + s.outputs * s.out_plane()) + s.outputs * s.taps();
  return kOfProduct + elements * static_cast<std::int64_t>(size_of(p.dtype));
}

std::unique_ptr<ConvPlan> ConvPlan::make(const cudnn::Library& library, const ConvTarget& target, Device device,
                                         const char* op, const ConvProblem& problem) {
  std::unique_ptr<ConvPlan> made(new ConvPlan(library));
  Maker maker(library, device, op, made->descriptors_);
  const dnn::Descriptor operations = graph(library, maker, target, problem);
  if (!operations) return nullptr;
  const std::int64_t limit = conv_workspace_limit(problem);
  std::vector<dnn::Descriptor>& kept = made->descriptors_;
  const std::size_t described = kept.size();
  for (const dnn::HeuristicMode mode : {dnn::kFirst, dnn::kFallback})
    for (const dnn::Descriptor config : configurations(library, maker, target, operations, mode)) {
      const Engine engine = engine_of(library, maker, config);
      if (!allowed(engine, problem)) continue;
      const dnn::Descriptor plan = maker.create(dnn::kPlan);
      if (target.handle) maker.set(plan, dnn::kPlanHandle, dnn::kTypeHandle, target.handle);
      if (target.device_properties) maker.set(plan, dnn::kPlanDevice, dnn::kTypeDescriptor, target.device_properties);
      maker.set(plan, dnn::kPlanConfig, dnn::kTypeDescriptor, config);
      if (library.finalize(plan) != dnn::kSuccess) continue;  // the heuristic only guesses what an engine can do
      std::int64_t count = 0, bytes = 0;
      maker.check(library.get(plan, dnn::kPlanWorkspace, dnn::kTypeInt64, 1, &count, &bytes),
                  "cudnnBackendGetAttribute");
      if (bytes > limit) continue;
      made->plan_ = plan;
      made->workspace_bytes_ = bytes;
      made->engine_ = engine.number;
      made->tensor_cores_ = engine.has(dnn::kTensorCore);
      // What is not chosen goes at once: there are dozens.
      const auto unused = std::stable_partition(kept.begin() + static_cast<std::ptrdiff_t>(described), kept.end(),
                                                [&](dnn::Descriptor d) { return d == config || d == plan; });
      std::for_each(unused, kept.end(), library.descriptor_destroy);
      kept.erase(unused, kept.end());
      return made;
    }
  return nullptr;
}

ConvPlan::~ConvPlan() {
  // What is made of others goes before them.
  for (auto it = descriptors_.rbegin(); it != descriptors_.rend(); ++it) library_.descriptor_destroy(*it);
}

void ConvPlan::run(cudnn::Handle handle, Device device, const char* op, const void* x, const void* w, const void* y,
                   void* workspace) const {
  struct Pack {
    const dnn::Library& library;
    std::vector<dnn::Descriptor> made;
    ~Pack() {
      for (const dnn::Descriptor descriptor : made) library.descriptor_destroy(descriptor);
    }
  } pack{library_, {}};
  Maker maker(library_, device, op, pack.made);
  const dnn::Descriptor arrays = maker.create(dnn::kVariantPack);
  const std::array<std::int64_t, 3> ids{kX, kW, kY};
  const std::array<const void*, 3> data{x, w, y};
  maker.set(arrays, dnn::kPackIds, dnn::kTypeInt64, 3, ids.data());
  maker.set(arrays, dnn::kPackPointers, dnn::kTypePointer, 3, data.data());
  maker.set(arrays, dnn::kPackWorkspace, dnn::kTypePointer, workspace);
  maker.finish(arrays);
  maker.check(library_.execute(handle, plan_, arrays), "cudnnBackendExecute");
}

}  // namespace lockstep::kernels::cuda
