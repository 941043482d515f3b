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
int heuristics_asked = 0, kernel_caches_made = 0;
std::size_t version = 91900;

std::vector<Engine> usual_engines() {
  constexpr std::int64_t kHuge = std::int64_t{1} << 50;
  return {{50, {kTensorCore, kNondeterministic}},
          {51, {kTensorCore, kWinograd}},
          {52, {kFft}},
          {53, {kTensorCore, kDownConverts}},
          {54, {kTensorCore, kReducedReduction}},
          {55, {kTensorCore}, kHuge},
          {56, {kTensorCore}, 64, kNotSupported},
          {57, {kTensorCore}},
          {58, {}}};
}
std::vector<Engine> usual_engines_with_bias() {
  return {{31, {kTensorCore, kNondeterministic}}, {32, {kTensorCore}}, {33, {}}};
}
std::vector<Engine> first_engines = usual_engines(), fallback_engines = {{1, {}, 0}},
                    engines_with_bias = usual_engines_with_bias();
std::vector<Engine>& graph_engines() {
  static auto* const kept = new std::vector<Engine>{{5, {kTensorCore, kNondeterministic}}, {6, {kTensorCore}, 256}};
  return *kept;
}

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
  std::map<int, Value> graph;   // of a configuration or plan
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
    case kTypeBoolean:
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
  if (!strides || (!lie(dims, strides, kPlanes) && !lie(dims, strides, kChannelsLast))) return false;
  to = {nullptr, *type, {dims[0], dims[1], dims[2], dims[3]}, !lie(dims, strides, kPlanes), *alignment};
  id = *name;
  return true;
}

bool flag(const std::map<int, Value>& of, int attribute) {
  const auto* value = values<bool>(of, attribute, kTypeBoolean);
  return value && *value;
}

using Ids = std::array<std::int64_t, 4>;  // of x, w, y and a bias

// Whether an operation is a convolution whose sizes agree. y may lie in no memory.
bool read(DescriptorKind kind, const std::map<int, Value>& operation, Convolution& c, Ids& ids) {
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
  const bool between = flag(part(operation, first + kOfOutput, kTensor)->values, kTensorIsVirtual);
  if (c.x.type != c.w.type || c.y.type != (between ? kFloat : c.x.type)) return false;
  if (c.x.dims[0] != c.y.dims[0] || c.w.dims[0] != c.y.dims[1]) return false;
  if (c.w.dims[1] == 0 || c.x.dims[1] % c.w.dims[1] != 0) return false;
  const std::int64_t groups = c.x.dims[1] / c.w.dims[1];
  if (c.y.dims[1] % groups != 0) return false;
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t window = c.dilation[d] * (c.w.dims[2 + d] - 1) + 1;
    if ((c.x.dims[2 + d] + 2 * c.padding[d] - window) / c.stride[d] + 1 != c.y.dims[2 + d]) return false;
  }
  return std::set<std::int64_t>(ids.begin(), ids.begin() + 3).size() == 3;
}

std::int64_t count_of(const std::map<int, Value>& of, int attribute) {
  const auto found = of.find(attribute);
  return found == of.end() ? 0 : found->second.count;
}
Status finish_tensor(const Description& d) {
  const auto* dims = values<std::int64_t>(d.values, kTensorDimensions, kTypeInt64, 4);
  const auto* strides = values<std::int64_t>(d.values, kTensorStrides, kTypeInt64, 4);
  const auto* type = values<int>(d.values, kTensorType, kTypeDataType);
  const auto* alignment = values<std::int64_t>(d.values, kTensorAlignment, kTypeInt64);
  if (!dims || !strides || !type || !alignment || !values<std::int64_t>(d.values, kTensorId, kTypeInt64))
    return kBadParam;
  const std::int64_t bytes = *type == kBoolean ? 1 : *type == kFloat || *type == kInt32 ? 4 : 2;
  if (*alignment < bytes || *alignment % bytes != 0) return kBadParam;
  if (std::any_of(dims, dims + 4, [](std::int64_t size) { return size <= 0; })) return kBadParam;
  return std::any_of(strides, strides + 4, [](std::int64_t stride) { return stride <= 0; }) ? kBadParam : kSuccess;
}

// A tensor of a graph's operation. Absent: of no dimensions.
bool read_tensor(const std::map<int, Value>& operation, int attribute, Tensor& to) {
  to = {};
  if (!count_of(operation, attribute)) return true;
  const Description* tensor = part(operation, attribute, kTensor);
  if (!tensor) return false;
  const auto* dims = values<std::int64_t>(tensor->values, kTensorDimensions, kTypeInt64, 4);
  const auto* strides = values<std::int64_t>(tensor->values, kTensorStrides, kTypeInt64, 4);
  to = {.id = *values<std::int64_t>(tensor->values, kTensorId, kTypeInt64),
        .type = *values<DataType>(tensor->values, kTensorType, kTypeDataType),
        .dims = {dims[0], dims[1], dims[2], dims[3]},
        .strides = {strides[0], strides[1], strides[2], strides[3]},
        .alignment = *values<std::int64_t>(tensor->values, kTensorAlignment, kTypeInt64),
        .is_virtual = flag(tensor->values, kTensorIsVirtual),
        .by_value = flag(tensor->values, kTensorIsByValue),
        .data = nullptr};
  return !(to.is_virtual && to.by_value) && (!to.by_value || to.count() == 1);
}

bool divides(const Tensor& small, const Tensor& large, std::size_t d) {
  return small.dims[d] > 0 && large.dims[d] % small.dims[d] == 0;
}
bool spreads_to(const Tensor& x, const Tensor& y) {
  for (std::size_t d = 0; d < 4; ++d)
    if (x.dims[d] != 1 && x.dims[d] != y.dims[d]) return false;
  return x.count() > 0;
}

// An operation of a graph, whose sizes agree.
bool read_operation(const Description& d, Operation& o) {
  o = {};
  o.kind = d.kind;
  const auto all = [&](int x, int b, int t, int y) {
    return read_tensor(d.values, x, o.x) && read_tensor(d.values, b, o.b) && read_tensor(d.values, t, o.t) &&
           read_tensor(d.values, y, o.y) && o.x.count() > 0 && o.y.count() > 0 && !o.y.by_value;
  };
  constexpr int kNone = -1;
  switch (d.kind) {
    case kPointwiseOperation: {
      const Description* what = part(d.values, kOfPointwise, kPointwise);
      if (!what || !all(kPointwiseX, kPointwiseB, kPointwiseT, kPointwiseY)) return false;
      const auto* mode = values<PointwiseMode>(what->values, kPointwiseMode, kTypePointwiseMode);
      const auto* axis = values<std::int64_t>(what->values, kPointwiseAxis, kTypeInt64);
      if (!mode || !values<DataType>(what->values, kPointwiseType, kTypeDataType)) return false;
      o.mode = *mode;
      o.axis = axis ? *axis : -1;
      const bool alone = o.mode == kExp || o.mode == kLog || o.mode == kGenerateIndex;
      if (alone != (o.b.count() == 0) || (o.mode == kSelect) != (o.t.count() > 0)) return false;
      if (o.mode == kGenerateIndex && (o.axis < 0 || o.axis > 3 || o.y.type != kInt32)) return false;
      if (o.mode == kGreaterEqual && o.y.type != kBoolean) return false;
      if (o.mode == kSelect && (o.t.type != kBoolean || !spreads_to(o.t, o.y))) return false;
      return spreads_to(o.x, o.y) && (alone || spreads_to(o.b, o.y));
    }
    case kMatmulOperation: {
      const Description* what = part(d.values, kOfMatmul, kMatmul);
      if (!what || !all(kMatmulA, kMatmulB, kNone, kMatmulC) || o.b.count() == 0) return false;
      const auto* type = values<DataType>(what->values, kMatmulType, kTypeDataType);
      if (!type || *type != kFloat) return false;
      for (const std::size_t outer : {0, 1})
        if (!divides(o.x, o.y, outer) || !divides(o.b, o.y, outer)) return false;
      return (o.x.is_virtual || o.x.type == o.b.type) && o.x.dims[2] == o.y.dims[2] && o.b.dims[3] == o.y.dims[3] &&
             o.x.dims[3] == o.b.dims[2];
    }
    case kReductionOperation: {
      const Description* what = part(d.values, kOfReduction, kReduction);
      if (!what || !all(kReductionX, kNone, kNone, kReductionY)) return false;
      const auto* op = values<ReductionOperator>(what->values, kReductionOperator, kTypeReductionOperator);
      if (!op || !values<DataType>(what->values, kReductionType, kTypeDataType)) return false;
      o.reduction = *op;
      for (std::size_t i = 0; i < 4; ++i)
        if (!divides(o.y, o.x, i)) return false;
      return true;
    }
    case kReshapeOperation:
      return all(kReshapeX, kNone, kNone, kReshapeY) && o.x.count() == o.y.count();
    default:
      return false;
  }
}

constexpr DescriptorKind kGraphKinds[] = {kPointwiseOperation, kMatmulOperation, kReductionOperation,
                                          kReshapeOperation};

// The graph, if each of its operations has what it takes, and what lies between two of them is made once, and before it
// is used.
bool read_graph(const std::map<int, Value>& values_of_graph, Graph& graph) {
  graph = {};
  graph.dynamic = flag(values_of_graph, kGraphIsDynamic);
  const std::int64_t count = count_of(values_of_graph, kGraphOperations);
  const auto* operations = values<Descriptor>(values_of_graph, kGraphOperations, kTypeDescriptor, count);
  if (!operations) return false;
  std::set<std::int64_t> made;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto found = said().find(operations[i]);
    Operation o;
    if (found == said().end() || !found->second.finished ||
        std::ranges::find(kGraphKinds, found->second.kind) == std::end(kGraphKinds) ||
        !read_operation(found->second, o))
      return false;
    for (const Tensor* input : {&o.x, &o.b, &o.t}) {
      if (input->count() == 0) continue;
      if (input->is_virtual && !made.contains(input->id)) return false;
      if (!input->is_virtual && !made.contains(input->id) &&
          std::ranges::none_of(graph.arrays, [&](const Tensor& a) { return a.id == input->id; }))
        graph.arrays.push_back(*input);
    }
    if (!made.insert(o.y.id).second) return false;
    if (!o.y.is_virtual) graph.arrays.push_back(o.y);
    graph.operations.push_back(o);
  }
  return !graph.operations.empty();
}

// An operation of a graph, or null.
const Description* operation_of(const std::map<int, Value>& graph, std::int64_t i) {
  const std::int64_t count = count_of(graph, kGraphOperations);
  const auto* operations = values<Descriptor>(graph, kGraphOperations, kTypeDescriptor, count);
  if (!operations || i >= count) return nullptr;
  const auto found = said().find(operations[i]);
  return found != said().end() && found->second.finished ? &found->second : nullptr;
}

bool convolves(const std::map<int, Value>& graph) {
  const Description* first = operation_of(graph, 0);
  return first && (first->kind == kForward || first->kind == kBackwardData || first->kind == kBackwardFilter);
}

// Whether a graph is one convolution, or one whose result lies in no memory until a bias is added.
bool read_convolution(const std::map<int, Value>& graph, Convolution& c, Ids& ids) {
  const Description* convolution = operation_of(graph, 0);
  Tensor result;
  if (!convolves(graph) || !read(convolution->kind, convolution->values, c, ids) ||
      !read_tensor(convolution->values, first_attribute(convolution->kind) + kOfOutput, result))
    return false;
  if (count_of(graph, kGraphOperations) == 1) return !result.is_virtual;
  const Description* second = operation_of(graph, 1);
  Operation add;
  if (count_of(graph, kGraphOperations) != 2 || convolution->kind != kForward || c.beta != 0 || !result.is_virtual ||
      !second || second->kind != kPointwiseOperation || !read_operation(*second, add) || add.mode != kAdd)
    return false;
  const std::array<std::int64_t, 4> one_per_channel{1, result.dims[1], 1, 1};
  if (add.x.id != result.id || add.x.strides != result.strides || add.b.dims != one_per_channel ||
      add.b.strides[1] != 1 || add.y.dims != result.dims || add.y.strides != result.strides)
    return false;
  for (const Tensor* array : {&add.b, &add.y})
    if (array->is_virtual || array->by_value || array->type != c.x.type) return false;
  ids[2] = add.y.id, ids[3] = add.b.id;
  c.y.type = add.y.type, c.y.alignment = add.y.alignment;
  c.bias = {nullptr, add.b.type, add.b.dims, false, add.b.alignment};
  return std::set<std::int64_t>(ids.begin(), ids.end()).size() == 4;
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
      Ids ids;
      return read(d.kind, d.values, c, ids) ? kSuccess : kBadParam;
    }
    case kPointwise:
    case kMatmul:
    case kReduction:
      return kSuccess;  // asked by the operations
    case kPointwiseOperation:
    case kMatmulOperation:
    case kReductionOperation:
    case kReshapeOperation: {
      Operation o;
      return read_operation(d, o) ? kSuccess : kBadParam;
    }
    case kKernelCache: {
      const Description* graph = part(d.values, kCacheGraph, kGraph);
      if (!graph || !flag(graph->values, kGraphIsDynamic)) return kBadParam;
      ++kernel_caches_made;
      return kSuccess;
    }
    case kGraph: {
      Graph graph;
      if (!convolves(d.values)) return read_graph(d.values, graph) ? kSuccess : kBadParam;
      Convolution c{};
      Ids ids;
      if (!read_convolution(d.values, c, ids)) return kBadParam;
      // Which mixtures of formats the real one takes is not known here.
      return c.x.channels_last == c.w.channels_last && c.x.channels_last == c.y.channels_last ? kSuccess
                                                                                              : kNotSupported;
    }
    case kHeuristic: {
      const Description* graph = part(d.values, kHeuristicGraph, kGraph);
      const auto* mode = values<int>(d.values, kHeuristicMode, kTypeHeuristicMode);
      if (!graph || !mode) return kBadParam;
      ++heuristics_asked;
      d.graph = graph->values;
      const bool has_bias = count_of(d.graph, kGraphOperations) == 2;
      if (convolves(d.graph)) {
        d.engines = has_bias             ? (*mode == kFallback ? std::vector<Engine>() : engines_with_bias)
                    : *mode == kFallback ? fallback_engines
                                         : first_engines;
      } else {
        // As in cuDNN 9.19: kernels for all sizes there are of graphs with two products alone.
        const auto products = [&] {
          Graph of;
          (void)read_graph(d.graph, of);
          return std::ranges::count_if(of.operations, [](const Operation& o) { return o.kind == kMatmulOperation; });
        };
        d.engines = *mode == kFallback || (flag(d.graph, kGraphIsDynamic) && products() > 2) ? std::vector<Engine>()
                                                                                             : graph_engines();
      }
      return d.engines.empty() ? kNotSupported : kSuccess;
    }
    case kPlan: {
      const Description* config = part(d.values, kPlanConfig, kEngineConfig);
      if (!config || !values<Handle>(d.values, kPlanHandle, kTypeHandle)) return kBadParam;
      if (flag(config->graph, kGraphIsDynamic) != (part(d.values, kPlanKernelCache, kKernelCache) != nullptr))
        return kBadParam;
      d.engines = config->engines;
      d.graph = config->graph;
      return d.engines.front().status_of_plan;
    }
    case kVariantPack:
      return count_of(d.values, kPackIds) > 0 && count_of(d.values, kPackIds) == count_of(d.values, kPackPointers)
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
  Ids ids;
  if (!read_convolution(plan.graph, c, ids)) return kBadParam;
  const std::size_t count = c.bias.count() > 0 ? 4 : 3;
  const auto* names = values<std::int64_t>(pack.values, kPackIds, kTypeInt64, static_cast<std::int64_t>(count));
  const auto* data = values<const void*>(pack.values, kPackPointers, kTypePointer, static_cast<std::int64_t>(count));
  if (!names || !data) return kBadParam;
  const auto* workspace = values<void*>(pack.values, kPackWorkspace, kTypePointer);
  Array* arrays[] = {&c.x, &c.w, &c.y, &c.bias};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j)
      if (names[j] == ids[i]) arrays[i]->data = data[j];
    if (!arrays[i]->data ||
        reinterpret_cast<std::uintptr_t>(arrays[i]->data) % static_cast<std::uintptr_t>(arrays[i]->alignment))
      return kBadParam;
  }
  c.engine = plan.engines.front().number;
  c.workspace_bytes = plan.engines.front().workspace_bytes;
  c.workspace = workspace ? *workspace : nullptr;
  if (c.workspace_bytes > 0 && !c.workspace) return kBadParam;
  c.first = !plan.has_run;
  plan.has_run = true;
  return kSuccess;
}

// Under the lock.
Status read_call(Description& plan, const Description& pack, Graph& graph) {
  if (!read_graph(plan.graph, graph)) return kBadParam;
  const std::int64_t count = count_of(pack.values, kPackIds);
  const auto* names = values<std::int64_t>(pack.values, kPackIds, kTypeInt64, count);
  const auto* data = values<const void*>(pack.values, kPackPointers, kTypePointer, count);
  if (!names || !data || count != static_cast<std::int64_t>(graph.arrays.size())) return kBadParam;
  std::map<std::int64_t, const void*> where;
  for (std::int64_t i = 0; i < count; ++i) where[names[i]] = data[i];
  const auto place = [&](Tensor& tensor) {
    if (tensor.count() == 0 || tensor.is_virtual) return true;
    tensor.data = where[tensor.id];
    return tensor.data &&
           (tensor.by_value ||
            reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(tensor.alignment) == 0);
  };
  for (Tensor& array : graph.arrays)
    if (!place(array)) return kBadParam;
  for (Operation& o : graph.operations)
    for (Tensor* tensor : {&o.x, &o.b, &o.t, &o.y}) (void)place(*tensor);
  const auto* workspace = values<void*>(pack.values, kPackWorkspace, kTypePointer);
  graph.engine = plan.engines.front().number;
  graph.workspace_bytes = plan.engines.front().workspace_bytes;
  graph.workspace = workspace ? *workspace : nullptr;
  if (graph.workspace_bytes > 0 && !graph.workspace) return kBadParam;
  graph.first = !plan.has_run;
  plan.has_run = true;
  return kSuccess;
}

}  // namespace
}  // namespace cudnn_stand_in

using namespace cudnn_stand_in;  // NOLINT

extern "C" {

std::size_t cudnnGetVersion() { return version; }

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
  Graph graph{};
  bool convolution = false;
  {
    std::lock_guard lock(cudnn_stand_in::mutex);
    Description* p = find(plan);
    const Description* arrays = find(pack);
    if (!p || !arrays || !p->finished || !arrays->finished || p->kind != kPlan) return kBadParam;
    convolution = convolves(p->graph);
    const Status status = convolution ? read_call(*p, *arrays, call) : read_call(*p, *arrays, graph);
    if (status != kSuccess) return status;
  }
  if (!convolution) return hooks().execute_graph ? hooks().execute_graph(handle, graph) : kSuccess;
  return hooks().execute ? hooks().execute(handle, call) : kSuccess;
}

}  // extern "C"
