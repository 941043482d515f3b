// Computing in other dtypes than those in which a module keeps its parameters and buffers.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/parallel/ddp/options.h"
#include "lockstep/tensor/nn/parameter.h"

namespace lockstep::detail {

// While it lives, floating parameters and buffers are copies in the dtypes of `dtypes` for this thread. Gradients flow
// through the copies of parameters to those in the module, and become its dtype on that way.
class LOCKSTEP_API MixedPrecisionScope {
 public:
  MixedPrecisionScope(std::span<const Parameter> parameters, std::span<const Parameter> buffers,
                      const DdpMixedPrecision& dtypes);
  // Brings what was written into copies of buffers (running statistics) to those of the module.
  void keep_buffers() const;

 private:
  struct Copies {
    std::vector<Parameter> members;
    std::vector<Tensor> tensors;
  };
  static Copies copy(std::span<const Parameter> members, std::optional<DType> dtype);

  const Copies parameters_, buffers_;
  std::vector<std::uint64_t> versions_;  // of the copies of buffers
  const SubstituteScope parameter_scope_, buffer_scope_;
};

}  // namespace lockstep::detail
