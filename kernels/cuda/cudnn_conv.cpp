#include "lockstep/kernels/cuda/cudnn_conv.h"

#include <algorithm>
#include <utility>

#include "lockstep/kernels/common/image_format.h"
#include "lockstep/kernels/cuda/gemm.h"

namespace lockstep::kernels::cuda {
namespace {

namespace dnn = lockstep::cudnn;

// The identifiers of the arrays in a plan.
constexpr std::int64_t kX = 1, kW = 2, kY = 3, kBias = 4;

dnn::Dims strides_of(const ConvProblem& p, const dnn::Dims& dims) {
  const Strides lie = image_strides({dims[0], dims[1], dims[2], dims[3]}, p.sizes.channels_last);
  return {lie[0], lie[1], lie[2], lie[3]};
}

dnn::Descriptor image(dnn::GraphMaker& graph, std::int64_t id, const ConvProblem& p, const dnn::Dims& dims) {
  return graph.array({.id = id,
                      .type = dnn::type_of(p.dtype),
                      .dims = dims,
                      .strides = strides_of(p, dims),
                      .alignment = p.alignment[static_cast<std::size_t>(id - kX)]});
}

dnn::Descriptor convolution(dnn::Maker& maker, const Window2d& w) {
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

std::vector<dnn::Descriptor> operations(dnn::Maker& maker, const ConvProblem& p) {
  const ConvSizes& s = p.sizes;
  const Window2d& window = s.window;
  dnn::GraphMaker graph(maker);
  const dnn::Descriptor x = image(graph, kX, p, {s.batch, s.channels, s.height, s.width});
  const dnn::Descriptor w = image(graph, kW, p, {s.outputs, s.group_channels, window.kernel[0], window.kernel[1]});
  const dnn::Dims y_dims{s.batch, s.outputs, s.out_height, s.out_width};
  const dnn::Descriptor y = image(graph, kY, p, y_dims);
  const dnn::Descriptor result = p.bias ? graph.between(y_dims, strides_of(p, y_dims), dnn::kFloat) : y;
  const auto [kind, first] = p.kind == ConvKind::forward ? std::pair(dnn::kForward, dnn::kForwardAttributes)
                             : p.kind == ConvKind::grad_input
                                 ? std::pair(dnn::kBackwardData, dnn::kBackwardDataAttributes)
                                 : std::pair(dnn::kBackwardFilter, dnn::kBackwardFilterAttributes);
  const auto of = [first = first](dnn::OperationAttribute attribute) {
    return static_cast<dnn::Attribute>(int{first} + attribute);
  };
  const dnn::Descriptor geometry = convolution(maker, window);
  const dnn::Descriptor made = maker.create(kind);
  maker.set(made, of(dnn::kAlpha), dnn::kTypeFloat, 1.0F);
  maker.set(made, of(dnn::kBeta), dnn::kTypeFloat, p.adds ? 1.0F : 0.0F);
  maker.set(made, of(dnn::kOfConvolution), dnn::kTypeDescriptor, geometry);
  maker.set(made, of(dnn::kOfWeights), dnn::kTypeDescriptor, w);
  maker.set(made, of(dnn::kOfInput), dnn::kTypeDescriptor, x);
  maker.set(made, of(dnn::kOfOutput), dnn::kTypeDescriptor, result);
  maker.finish(made);
  if (!p.bias) return {made};
  graph.pointwise(dnn::kAdd, result, image(graph, kBias, p, {1, s.outputs, 1, 1}), y);
  return {made, graph.operations().front()};
}

bool enqueue(const Stream& stream, const char* op, const ConvProblem& problem, std::span<const dnn::Operand> operands) {
  return enqueue_cudnn(stream, {.op = op,
                                .name = problem.bias ? "convolution and bias by cuDNN" : "convolution by cuDNN",
                                .tensor_core_name = problem.bias ? "convolution and bias by cuDNN, tensor cores"
                                                                 : "convolution by cuDNN, tensor cores",
                                .key = problem.key(),
                                .family = {},
                                .weight = problem.bias ? 2U : 1U,  // 93 KB
                                .request = problem.request(),
                                .operands = operands});
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

PlanKey ConvProblem::key() const {
  const Window2d& w = sizes.window;
  return {static_cast<std::int64_t>(kind),
          static_cast<std::int64_t>(dtype),
          adds,
          bias,
          tf32,
          alignment[0],
          alignment[1],
          alignment[2],
          alignment[3],
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
          sizes.out_height,
          sizes.out_width};
}

dnn::PlanRequest ConvProblem::request() const {
  constexpr std::int64_t kOfProduct = std::int64_t{32} << 20;
  const ConvSizes& s = sizes;
  const std::int64_t elements = s.batch * (s.channels * s.plane() + s.outputs * s.out_plane()) + s.outputs * s.taps();
  const bool tensor_cores = dtype != DType::f32 || tf32;
  return {.operations = [this](dnn::Maker& maker) { return operations(maker, *this); },
          .most_workspace = kOfProduct + elements * static_cast<std::int64_t>(size_of(dtype)),
          .tensor_cores = tensor_cores,
          .only_tensor_cores = bias && tensor_cores};
}

bool conv_by_cudnn(const Stream& stream, const char* op, ConvKind kind, const ConvSizes& sizes, const View& x,
                   const View& w, const View& y, bool adds) {
  if (!goes_to_cudnn(sizes, x.dtype) || !dnn::library()) return false;
  const ConvProblem problem{.kind = kind,
                            .dtype = x.dtype,
                            .sizes = sizes,
                            .adds = adds,
                            .tf32 = tf32_allowed(),
                            .alignment = {alignment_of(x.data), alignment_of(w.data), alignment_of(y.data), 1}};
  const std::array<dnn::Operand, 3> operands{{{kX, x.data}, {kW, w.data}, {kY, y.data}}};
  return enqueue(stream, op, problem, operands);
}

bool conv_and_bias_by_cudnn(const Stream& stream, const char* op, const ConvSizes& sizes, const View& x, const View& w,
                            const View& bias, const View& y) {
  constexpr int kAlignment = 16;
  if (!goes_to_cudnn(sizes, x.dtype) || !dnn::library()) return false;
  const ConvProblem problem{
      .kind = ConvKind::forward,
      .dtype = x.dtype,
      .sizes = sizes,
      .bias = true,
      .tf32 = tf32_allowed(),
      .alignment = {alignment_of(x.data), alignment_of(w.data), alignment_of(y.data), alignment_of(bias.data)}};
  if (std::ranges::min(problem.alignment) < kAlignment) return false;
  const std::array<dnn::Operand, 4> operands{{{kX, x.data}, {kW, w.data}, {kY, y.data}, {kBias, bias.data}}};
  return enqueue(stream, op, problem, operands);
}

}  // namespace lockstep::kernels::cuda
