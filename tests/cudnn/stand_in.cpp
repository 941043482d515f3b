#include "cudnn/stand_in.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

namespace cudnn_stand_in {

Hooks& hooks() {
  static auto* const kept = new Hooks;
  return *kept;
}
int heuristics_asked = 0;

std::vector<Engine> usual_engines() {
  constexpr std::int64_t kHuge = std::int64_t{1} << 50;
  return {{50, {kTensorCore, kNondeterministic}},
          {51, {kTensorCore, kWinograd}},
          {52, {kFft}},
          {53, {kTensorCore, kDownConverts}},
          {54, {kTensorCore, kReducedReduction}},
          {55, {kTensorCore}, kHuge},
          {56, {kTensorCore}, 64, false},
          {57, {kTensorCore}},
          {58, {}}};
}
std::vector<Engine> first_engines = usual_engines(), fallback_engines = {{1, {}, 0}};

namespace {

struct Value {
  AttributeType type;
  std::int64_t count;
  std::vector<std::byte> bytes;
};

struct Description {
  DescriptorKind kind;
  bool finished = false;
  std::map<int, Value> values;
  // What it answers.
  std::vector<Engine> engines;  // a heuristic's, or the one of a configuration, an engine or a plan
  std::map<int, Value> graph;   // the operation, of a configuration or plan
  bool has_run = false;
};

std::size_t size_of(AttributeType type) {
  switch (type) {
    case kTypeInt64:
    case kTypeHandle:
    case kTypePointer:
    case kTypeDescriptor:
      return 8;
    case kTypeChar:
      return 1;
    default:
      return 4;
  }
}

std::mutex mutex;  // of what is below
std::set<const void*>& living() {
  static auto* const kept = new std::set<const void*>;
  return *kept;
}
// Descriptors that operations were made of may go before their plans: what they said is kept.
using Kept = std::map<const void*, Description>;
Kept& said() {
  static auto* const kept = new Kept;
  return *kept;
}

Description* find(Descriptor descriptor) {
  if (!living().contains(descriptor)) return nullptr;
  return static_cast<Description*>(descriptor);
}

// The values of an attribute, of the type and number that it has; null otherwise.
template <class T>
const T* values(const std::map<int, Value>& of, int attribute, AttributeType type, std::int64_t count = 1) {
  const auto found = of.find(attribute);
  if (found == of.end() || found->second.type != type || found->second.count != count) return nullptr;
  return reinterpret_cast<const T*>(found->second.bytes.data());
}

const Description* part(const std::map<int, Value>& of, int attribute, DescriptorKind kind) {
  const Descriptor* descriptor = values<Descriptor>(of, attribute, kTypeDescriptor);
  if (!descriptor) return nullptr;
  const auto found = said().find(*descriptor);
  return found != said().end() && found->second.finished && found->second.kind == kind ? &found->second : nullptr;
}

int first_attribute(DescriptorKind kind) {
  return kind == kForward        ? kForwardAttributes
         : kind == kBackwardData ? kBackwardDataAttributes
                                 : kBackwardFilterAttributes;
}

// Whether the strides are those without gaps, in one order of dimensions.
bool lie(const std::int64_t* dims, const std::int64_t* strides, const std::array<int, 4>& inner_first) {
  std::int64_t stride = 1;
  for (const int d : inner_first) {
    if (strides[d] != stride) return false;
    stride *= dims[d];
  }
  return true;
}
constexpr std::array<int, 4> kPlanes{3, 2, 1, 0}, kChannelsLast{1, 3, 2, 0};

bool read_array(const std::map<int, Value>& operation, int attribute, Array& to, std::int64_t& id) {
  const Description* tensor = part(operation, attribute, kTensor);
  if (!tensor) return false;
  const auto* dims = values<std::int64_t>(tensor->values, kTensorDimensions, kTypeInt64, 4);
  const auto* type = values<DataType>(tensor->values, kTensorType, kTypeDataType);
  const auto* alignment = values<std::int64_t>(tensor->values, kTensorAlignment, kTypeInt64);
  const auto* name = values<std::int64_t>(tensor->values, kTensorId, kTypeInt64);
  if (!dims || !type || !alignment || !name) return false;
  const auto* strides = values<std::int64_t>(tensor->values, kTensorStrides, kTypeInt64, 4);
  if (!strides) return false;
  to = {nullptr, *type, {dims[0], dims[1], dims[2], dims[3]}, !lie(dims, strides, kPlanes), *alignment};
  id = *name;
  return true;
}

// Whether an operation is a convolution whose sizes agree.
bool read(DescriptorKind kind, const std::map<int, Value>& operation, Convolution& c,
          std::array<std::int64_t, 3>& ids) {
  const int first = first_attribute(kind);
  const Description* geometry = part(operation, first + kOfConvolution, kConvolution);
  const auto* alpha = values<float>(operation, first + kAlpha, kTypeFloat);
  const auto* beta = values<float>(operation, first + kBeta, kTypeFloat);
  if (!geometry || !alpha || !beta) return false;
  if (!read_array(operation, first + kOfInput, c.x, ids[0]) ||
      !read_array(operation, first + kOfWeights, c.w, ids[1]) || !read_array(operation, first + kOfOutput, c.y, ids[2]))
    return false;
  const auto two = [&](int attribute, std::array<std::int64_t, 2>& to) {
    const auto* found = values<std::int64_t>(geometry->values, attribute, kTypeInt64, 2);
    if (found) to = {found[0], found[1]};
    return found != nullptr;
  };
  std::array<std::int64_t, 2> behind;
  if (!two(kConvolutionPrePaddings, c.padding) || !two(kConvolutionPostPaddings, behind) || behind != c.padding ||
      !two(kConvolutionStrides, c.stride) || !two(kConvolutionDilations, c.dilation))
    return false;
  const auto* mode = values<int>(geometry->values, kConvolutionMode, kTypeConvolutionMode);
  const auto* type = values<int>(geometry->values, kConvolutionType, kTypeDataType);
  if (!mode || *mode != kCrossCorrelation || !type || *type != kFloat) return false;
  c.kind = kind;
  c.alpha = *alpha;
  c.beta = *beta;
  if (c.x.type != c.w.type || c.x.type != c.y.type) return false;
  if (c.x.dims[0] != c.y.dims[0] || c.w.dims[0] != c.y.dims[1]) return false;
  if (c.w.dims[1] == 0 || c.x.dims[1] % c.w.dims[1] != 0) return false;
  const std::int64_t groups = c.x.dims[1] / c.w.dims[1];
  if (c.y.dims[1] % groups != 0) return false;
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t window = c.dilation[d] * (c.w.dims[2 + d] - 1) + 1;
    if ((c.x.dims[2 + d] + 2 * c.padding[d] - window) / c.stride[d] + 1 != c.y.dims[2 + d]) return false;
  }
  return std::set<std::int64_t>(ids.begin(), ids.end()).size() == 3;
}

Status finish_tensor(const Description& d) {
  const auto* dims = values<std::int64_t>(d.values, kTensorDimensions, kTypeInt64, 4);
  const auto* strides = values<std::int64_t>(d.values, kTensorStrides, kTypeInt64, 4);
  const auto* type = values<int>(d.values, kTensorType, kTypeDataType);
  const auto* alignment = values<std::int64_t>(d.values, kTensorAlignment, kTypeInt64);
  if (!dims || !strides || !type || !alignment || !values<std::int64_t>(d.values, kTensorId, kTypeInt64))
    return kBadParam;
  const std::int64_t bytes = *type == kFloat ? 4 : 2;
  if (*alignment < bytes || *alignment % bytes != 0) return kBadParam;
  if (std::any_of(dims, dims + 4, [](std::int64_t size) { return size <= 0; })) return kBadParam;
  return lie(dims, strides, kPlanes) || lie(dims, strides, kChannelsLast) ? kSuccess : kBadParam;
}

// The operation of a graph.
const Description* operation_of(const std::map<int, Value>& graph) {
  for (const DescriptorKind kind : {kForward, kBackwardData, kBackwardFilter})
    if (const Description* found = part(graph, kGraphOperations, kind)) return found;
  return nullptr;
}

Status finish(Description& d) {
  switch (d.kind) {
    case kTensor:
      return finish_tensor(d);
    case kConvolution: {
      const auto* dimensions = values<std::int64_t>(d.values, kConvolutionDimensions, kTypeInt64);
      return dimensions && *dimensions == 2 ? kSuccess : kBadParam;
    }
    case kForward:
    case kBackwardData:
    case kBackwardFilter: {
      Convolution c{};
      std::array<std::int64_t, 3> ids;
      return read(d.kind, d.values, c, ids) ? kSuccess : kBadParam;
    }
    case kGraph: {
      const Description* operation = operation_of(d.values);
      Convolution c{};
      std::array<std::int64_t, 3> ids;
      if (!operation || !read(operation->kind, operation->values, c, ids)) return kBadParam;
      // Which mixtures of formats the real one takes is not known here.
      return c.x.channels_last == c.w.channels_last && c.x.channels_last == c.y.channels_last ? kSuccess
                                                                                              : kNotSupported;
    }
    case kHeuristic: {
      const Description* graph = part(d.values, kHeuristicGraph, kGraph);
      const auto* mode = values<int>(d.values, kHeuristicMode, kTypeHeuristicMode);
      if (!graph || !mode) return kBadParam;
      ++heuristics_asked;
      d.engines = *mode == kFallback ? fallback_engines : first_engines;
      d.graph = graph->values;
      return d.engines.empty() ? kNotSupported : kSuccess;
    }
    case kPlan: {
      const Description* config = part(d.values, kPlanConfig, kEngineConfig);
      if (!config || !values<Handle>(d.values, kPlanHandle, kTypeHandle)) return kBadParam;
      d.engines = config->engines;
      d.graph = config->graph;
      return d.engines.front().has_plan ? kSuccess : kNotSupported;
    }
    case kVariantPack:
      return values<std::int64_t>(d.values, kPackIds, kTypeInt64, 3) &&
                     values<void*>(d.values, kPackPointers, kTypePointer, 3)
                 ? kSuccess
                 : kBadParam;
    default:
      return kBadParam;
  }
}

Status answer(const Description& d, Attribute attribute, AttributeType type, std::int64_t room, std::int64_t* count,
              void* to) {
  if (!d.finished || d.engines.empty()) return kBadParam;
  const Engine& engine = d.engines.front();
  if (d.kind == kHeuristic && attribute == kHeuristicResults && type == kTypeDescriptor) {
    *count = static_cast<std::int64_t>(d.engines.size());
    if (room == 0) return kSuccess;
    *count = std::min(room, *count);
    for (std::int64_t i = 0; i < *count; ++i) {
      Description* config = find(static_cast<Descriptor*>(to)[i]);
      if (!config || config->kind != kEngineConfig) return kBadParam;
      config->finished = true;
      config->engines = {d.engines[static_cast<std::size_t>(i)]};
      config->graph = d.graph;
      said()[config] = *config;
    }
    return kSuccess;
  }
  if (d.kind == kEngineConfig && attribute == kConfigEngine && type == kTypeDescriptor && room == 1) {
    Description* made = find(*static_cast<Descriptor*>(to));
    if (!made || made->kind != cudnn_stand_in::kEngine) return kBadParam;
    made->finished = true;
    made->engines = d.engines;
    *count = 1;
    return kSuccess;
  }
  if (d.kind == cudnn_stand_in::kEngine && attribute == kEngineNumber && type == kTypeInt64 && room == 1)
    return *count = 1, std::memcpy(to, &engine.number, 8), kSuccess;
  if (d.kind == cudnn_stand_in::kEngine && attribute == kEngineNotes && type == kTypeNote) {
    *count = static_cast<std::int64_t>(engine.notes.size());
    std::copy_n(engine.notes.begin(), std::min(room, *count), static_cast<Note*>(to));
    return kSuccess;
  }
  if (d.kind == kPlan && attribute == kPlanWorkspace && type == kTypeInt64 && room == 1)
    return *count = 1, std::memcpy(to, &engine.workspace_bytes, 8), kSuccess;
  return kBadParam;
}

// Under the lock.
Status read_call(Description& plan, const Description& pack, Convolution& c) {
  std::array<std::int64_t, 3> ids;
  const Description* operation = operation_of(plan.graph);
  if (!operation || !read(operation->kind, operation->values, c, ids)) return kBadParam;
  const auto* names = values<std::int64_t>(pack.values, kPackIds, kTypeInt64, 3);
  const auto* data = values<const void*>(pack.values, kPackPointers, kTypePointer, 3);
  const auto* workspace = values<void*>(pack.values, kPackWorkspace, kTypePointer);
  Array* arrays[] = {&c.x, &c.w, &c.y};
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 3; ++j)
      if (names[j] == ids[i]) arrays[i]->data = data[j];
  for (const Array* array : arrays)
    if (!array->data || reinterpret_cast<std::uintptr_t>(array->data) % static_cast<std::uintptr_t>(array->alignment))
      return kBadParam;
  c.engine = plan.engines.front().number;
  c.workspace_bytes = plan.engines.front().workspace_bytes;
  c.workspace = workspace ? *workspace : nullptr;
  if (c.workspace_bytes > 0 && !c.workspace) return kBadParam;
  c.first = !plan.has_run;
  plan.has_run = true;
  return kSuccess;
}

}  // namespace
}  // namespace cudnn_stand_in

using namespace cudnn_stand_in;  // NOLINT

extern "C" {

std::size_t cudnnGetVersion() { return 91900; }

const char* cudnnGetErrorString(Status status) {
  return status == kSuccess        ? "CUDNN_STATUS_SUCCESS"
         : status == kBadParam     ? "CUDNN_STATUS_BAD_PARAM"
         : status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED"
                                   : "CUDNN_STATUS_EXECUTION_FAILED";
}

Status cudnnCreate(Handle* handle) {
  if (hooks().create) return hooks().create(handle);
  static int object;
  *handle = reinterpret_cast<Handle>(&object);
  return kSuccess;
}

Status cudnnSetStream(Handle handle, NativeStream stream) {
  return hooks().set_stream ? hooks().set_stream(handle, stream) : kSuccess;
}

Status cudnnBackendCreateDescriptor(DescriptorKind kind, Descriptor* descriptor) {
  auto* made = new Description{.kind = kind};
  *descriptor = made;
  {
    std::lock_guard lock(cudnn_stand_in::mutex);
    living().insert(made);
    said().erase(made);  // of one that had its address
  }
  if (hooks().made) hooks().made(made);
  return kSuccess;
}

Status cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  {
    std::lock_guard lock(cudnn_stand_in::mutex);
    if (!find(descriptor)) return kBadParam;
    living().erase(descriptor);
    said().erase(descriptor);
  }
  if (hooks().ended) hooks().ended(descriptor);
  delete static_cast<Description*>(descriptor);
  return kSuccess;
}

Status cudnnBackendSetAttribute(Descriptor descriptor, Attribute attribute, AttributeType type, std::int64_t count,
                                const void* data) {
  std::lock_guard lock(cudnn_stand_in::mutex);
  Description* d = find(descriptor);
  if (!d || d->finished || count < 1) return kBadParam;
  Value value{type, count, std::vector<std::byte>(size_of(type) * static_cast<std::size_t>(count))};
  std::memcpy(value.bytes.data(), data, value.bytes.size());
  d->values[attribute] = std::move(value);
  return kSuccess;
}

Status cudnnBackendFinalize(Descriptor descriptor) {
  std::lock_guard lock(cudnn_stand_in::mutex);
  Description* d = find(descriptor);
  if (!d || d->finished) return kBadParam;
  const Status status = finish(*d);
  d->finished = status == kSuccess;
  if (d->finished) said()[d] = *d;
  return status;
}

Status cudnnBackendGetAttribute(Descriptor descriptor, Attribute attribute, AttributeType type, std::int64_t room,
                                std::int64_t* count, void* to) {
  std::lock_guard lock(cudnn_stand_in::mutex);
  const Description* d = find(descriptor);
  return d ? answer(*d, attribute, type, room, count, to) : kBadParam;
}

Status cudnnBackendExecute(Handle handle, Descriptor plan, Descriptor pack) {
  Convolution call{};
  {
    std::lock_guard lock(cudnn_stand_in::mutex);
    Description* p = find(plan);
    const Description* arrays = find(pack);
    if (!p || !arrays || !p->finished || !arrays->finished || p->kind != kPlan) return kBadParam;
    const Status status = read_call(*p, *arrays, call);
    if (status != kSuccess) return status;
  }
  return hooks().execute ? hooks().execute(handle, call) : kSuccess;
}

}  // extern "C"
