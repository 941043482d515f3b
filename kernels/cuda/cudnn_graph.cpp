#include "lockstep/kernels/cuda/cudnn_graph.h"

namespace lockstep::cudnn {
namespace {

constexpr std::int64_t kAlignment = 16;  // of what is in no memory

}  // namespace

Dims row_major(const Dims& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return kHalf;
    case DType::bf16:
      return kBfloat16;
    default:
      return kFloat;
  }
}

Descriptor Maker::create(DescriptorKind kind) {
  Descriptor& made = kept_.emplace_back(nullptr);
  const Status status = library_.descriptor_create(kind, &made);
  if (status != kSuccess) kept_.pop_back();
  check(status, "cudnnBackendCreateDescriptor");
  return made;
}

Descriptor GraphMaker::tensor(const Array& array) {
  const Descriptor made = maker_.create(kTensor);
  maker_.set(made, kTensorType, kTypeDataType, array.type);
  maker_.set(made, kTensorDimensions, kTypeInt64, 4, array.dims.data());
  maker_.set(made, kTensorStrides, kTypeInt64, 4, array.strides.data());
  maker_.set(made, kTensorId, kTypeInt64, array.id);
  maker_.set(made, kTensorAlignment, kTypeInt64, static_cast<std::int64_t>(array.alignment));
  return made;
}

Descriptor GraphMaker::array(const Array& array) {
  const Descriptor made = tensor(array);
  maker_.finish(made);
  return made;
}

Descriptor GraphMaker::scalar(std::int64_t id, DataType type) {
  const Descriptor made = tensor({id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, kAlignment});
  maker_.set(made, kTensorIsByValue, kTypeBoolean, true);
  maker_.finish(made);
  return made;
}

Descriptor GraphMaker::between(const Dims& dims, const Dims& strides, DataType type) {
  const Descriptor made = tensor({next_id_++, type, dims, strides, kAlignment});
  maker_.set(made, kTensorIsVirtual, kTypeBoolean, true);
  maker_.finish(made);
  return made;
}

void GraphMaker::add(DescriptorKind kind, std::initializer_list<Part> parts) {
  const Descriptor made = maker_.create(kind);
  for (const auto& [attribute, descriptor] : parts)
    if (descriptor) maker_.set(made, attribute, kTypeDescriptor, descriptor);
  maker_.finish(made);
  operations_.push_back(made);
}

Descriptor GraphMaker::mode(PointwiseMode mode, DataType computes, int axis) {
  const Descriptor made = maker_.create(kPointwise);
  maker_.set(made, cudnn::kPointwiseMode, kTypePointwiseMode, mode);
  maker_.set(made, kPointwiseType, kTypeDataType, computes);
  if (axis >= 0) maker_.set(made, kPointwiseAxis, kTypeInt64, static_cast<std::int64_t>(axis));
  maker_.finish(made);
  return made;
}

void GraphMaker::pointwise(PointwiseMode what, Descriptor x, Descriptor b, Descriptor y, DataType computes) {
  add(kPointwiseOperation,
      {{kOfPointwise, mode(what, computes)}, {kPointwiseX, x}, {kPointwiseB, b}, {kPointwiseY, y}});
}

void GraphMaker::index(int axis, Descriptor like, Descriptor y) {
  add(kPointwiseOperation, {{kOfPointwise, mode(kGenerateIndex, kFloat, axis)}, {kPointwiseX, like}, {kPointwiseY, y}});
}

void GraphMaker::select(Descriptor condition, Descriptor if_true, Descriptor if_false, Descriptor y) {
  add(kPointwiseOperation, {{kOfPointwise, mode(kSelect, kFloat)},
                            {kPointwiseX, if_true},
                            {kPointwiseB, if_false},
                            {kPointwiseT, condition},
                            {kPointwiseY, y}});
}

void GraphMaker::matmul(Descriptor a, Descriptor b, Descriptor c) {
  const Descriptor kind = maker_.create(kMatmul);
  maker_.set(kind, kMatmulType, kTypeDataType, kFloat);
  maker_.finish(kind);
  add(kMatmulOperation, {{kOfMatmul, kind}, {kMatmulA, a}, {kMatmulB, b}, {kMatmulC, c}});
}

void GraphMaker::reduce(ReductionOperator op, Descriptor x, Descriptor y) {
  const Descriptor kind = maker_.create(kReduction);
  maker_.set(kind, kReductionOperator, kTypeReductionOperator, op);
  maker_.set(kind, kReductionType, kTypeDataType, kFloat);
  maker_.finish(kind);
  add(kReductionOperation, {{kOfReduction, kind}, {kReductionX, x}, {kReductionY, y}});
}

void GraphMaker::reshape(Descriptor x, Descriptor y) { add(kReshapeOperation, {{kReshapeX, x}, {kReshapeY, y}}); }

}  // namespace lockstep::cudnn
