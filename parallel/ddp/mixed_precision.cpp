#include "lockstep/parallel/ddp/mixed_precision.h"

#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {

MixedPrecisionScope::MixedPrecisionScope(std::span<const Parameter> parameters, std::span<const Parameter> buffers,
                                         const DdpMixedPrecision& dtypes)
    : parameters_(copy(parameters, dtypes.param_dtype)),
      buffers_(copy(buffers, dtypes.buffer_dtype)),
      parameter_scope_(parameters_.members, parameters_.tensors),
      buffer_scope_(buffers_.members, buffers_.tensors) {
  for (const Tensor& tensor : buffers_.tensors) versions_.push_back(tensor.version());
}

MixedPrecisionScope::Copies MixedPrecisionScope::copy(std::span<const Parameter> members, std::optional<DType> dtype) {
  Copies copies;
  for (const Parameter& member : members) {
    if (!dtype || !is_floating(member.dtype()) || member.dtype() == *dtype) continue;
    copies.members.push_back(member);
    copies.tensors.push_back(member.tensor().to(*dtype));
  }
  return copies;
}

void MixedPrecisionScope::keep_buffers() const {
  const NoGrad no_grad;
  for (std::size_t i = 0; i < versions_.size(); ++i)
    if (buffers_.tensors[i].version() != versions_[i]) buffers_.members[i].tensor().copy_(buffers_.tensors[i]);
}

}  // namespace lockstep::detail
