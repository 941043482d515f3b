// Convolution layers. Parameters begin on cpu, in DefaultDType, with PyTorch's names, layouts and distributions.
#pragma once

#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/ops/nn_ops.h"

namespace lockstep {

struct Conv2dOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  int groups = 1;
  bool bias = true;
};

// x [batch, inputs, height, width] -> [batch, outputs, ..]; weight [outputs, inputs / groups, kernel height, kernel
// width], bias [outputs].
class LOCKSTEP_API Conv2d : public Module<Conv2d> {
 public:
  Conv2d(std::int64_t inputs, std::int64_t outputs, Size2 kernel, Conv2dOptions options = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("bias", bias); }
  const ConvGeometry& geometry() const { return geometry_; }

  Parameter weight, bias;

 private:
  ConvGeometry geometry_;
};

struct ConvTranspose2dOptions {
  Size2 stride = 1, padding = 0, output_padding = 0;
  int groups = 1;
  bool bias = true;
  Size2 dilation = 1;
};

// x [batch, inputs, height, width] -> [batch, outputs, ..]; weight [inputs, outputs / groups, kernel height, kernel
// width], bias [outputs]. See conv_transpose2d for the size of the result.
class LOCKSTEP_API ConvTranspose2d : public Module<ConvTranspose2d> {
 public:
  ConvTranspose2d(std::int64_t inputs, std::int64_t outputs, Size2 kernel, ConvTranspose2dOptions options = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("bias", bias); }
  const ConvTransposeGeometry& geometry() const { return geometry_; }

  Parameter weight, bias;

 private:
  ConvTransposeGeometry geometry_;
};

}  // namespace lockstep
