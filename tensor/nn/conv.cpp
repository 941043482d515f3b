#include "lockstep/tensor/nn/conv.h"

#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/nn/init.h"

namespace lockstep {

Conv2d::Conv2d(std::int64_t inputs, std::int64_t outputs, Size2 kernel, Conv2dOptions options)
    : geometry_{options.stride, options.padding, options.dilation, options.groups} {
  LOCKSTEP_CHECK(
      options.groups > 0 && inputs > 0 && outputs > 0 && inputs % options.groups == 0 && outputs % options.groups == 0,
      "[Conv2d] expected channels that ", options.groups, " groups divide, got ", inputs, " inputs and ", outputs,
      " outputs");
  LOCKSTEP_CHECK(kernel.height > 0 && kernel.width > 0, "[Conv2d] expected a kernel of at least 1x1, got ", kernel);
  const Tensor w = empty({outputs, inputs / options.groups, kernel.height, kernel.width});
  const Tensor b = options.bias ? empty({outputs}) : Tensor();
  init::default_affine(w, b);
  weight = Parameter(w);
  if (options.bias) bias = Parameter(b);
}

Tensor Conv2d::forward(const Tensor& x) const {
  const Device device = x.device();
  const Tensor w = weight.on(device);
  return conv2d(x, w, bias.defined() ? bias.on(device) : Tensor(), geometry_);
}

}  // namespace lockstep
