#include "lockstep/tensor/nn/conv.h"

#include "lockstep/tensor/nn/folding.h"
#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/prepared_ops.h"

namespace lockstep {

namespace {
void check(const char* layer, std::int64_t inputs, std::int64_t outputs, Size2 kernel, int groups) {
  LOCKSTEP_CHECK(groups > 0 && inputs > 0 && outputs > 0 && inputs % groups == 0 && outputs % groups == 0, "[", layer,
                 "] expected channels that ", groups, " groups divide, got ", inputs, " inputs and ", outputs,
                 " outputs");
  LOCKSTEP_CHECK(kernel.height > 0 && kernel.width > 0, "[", layer, "] expected a kernel of at least 1x1, got ",
                 kernel);
}
}  // namespace

Conv2d::Conv2d(std::int64_t inputs, std::int64_t outputs, Size2 kernel, Conv2dOptions options)
    : geometry_{options.stride, options.padding, options.dilation, options.groups} {
  check("Conv2d", inputs, outputs, kernel, options.groups);
  const Tensor w = empty({outputs, inputs / options.groups, kernel.height, kernel.width});
  const Tensor b = options.bias ? empty({outputs}) : Tensor();
  init::default_affine(w, b);
  weight = Parameter(w);
  if (options.bias) bias = Parameter(b);
}

Tensor Conv2d::forward(const Tensor& x) const {
  const Device device = x.device();
  const Tensor w = weight.on(device), b = bias.defined() ? bias.on(device) : Tensor();
  if (detail::FoldingCall* const call = detail::folding_call()) [[unlikely]]
    return call->layer(
        {.layer = this,
         .x = x,
         .weight = w,
         .bias = b,
         .folds = !state_->has_hooks,
         .packs = true,
         .geometry = geometry_,
         .shape = [](const detail::FoldedLayer& l) { return detail::conv2d_shape(l.x, l.weight, l.geometry); },
         .compute =
             [](const detail::FoldedLayer& l, const detail::LayerWeights& weights, bool with_relu) {
               // The weights here are contiguous; a channels_last one makes the result so.
               const bool pixels = l.weight.memory_format() == MemoryFormat::channels_last;
               return detail::conv2d(pixels ? l.x.to(MemoryFormat::channels_last) : l.x, weights.weight, weights.bias,
                                     l.geometry, with_relu, weights.packed);
             }});
  return conv2d(x, w, b, geometry_);
}

ConvTranspose2d::ConvTranspose2d(std::int64_t inputs, std::int64_t outputs, Size2 kernel,
                                 ConvTranspose2dOptions options)
    : geometry_{options.stride, options.padding, options.output_padding, options.dilation, options.groups} {
  check("ConvTranspose2d", inputs, outputs, kernel, options.groups);
  const Tensor w = empty({inputs, outputs / options.groups, kernel.height, kernel.width});
  const Tensor b = options.bias ? empty({outputs}) : Tensor();
  init::default_affine(w, b);
  weight = Parameter(w);
  if (options.bias) bias = Parameter(b);
}

Tensor ConvTranspose2d::forward(const Tensor& x) const {
  const Device device = x.device();
  const Tensor w = weight.on(device);
  return conv_transpose2d(x, w, bias.defined() ? bias.on(device) : Tensor(), geometry_);
}

}  // namespace lockstep
