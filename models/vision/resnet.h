// Residual networks (He et al., 2015), with the parameters' names of torchvision.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/tensor/nn/conv.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/nn/norm.h"

namespace lockstep {

struct ResNetConfig {
  bool bottleneck = true;                 // blocks of three convolutions, not of two
  std::array<int, 4> blocks{3, 4, 6, 3};  // in layer1 to layer4
  std::int64_t classes = 1000;
};

// What a block adds to, where its sizes change.
class LOCKSTEP_API ResNetDownsample : public Module<ResNetDownsample> {
 public:
  ResNetDownsample(std::int64_t inputs, std::int64_t outputs, int stride);
  Tensor forward(const Tensor& x) const { return norm(conv(x)); }
  void members(Members& m) override { m("0", conv), m("1", norm); }

  Conv2d conv;
  BatchNorm2d norm;
};

// A block; with three convolutions the second one has the stride ("v1.5").
class LOCKSTEP_API ResNetBlock : public Module<ResNetBlock> {
 public:
  ResNetBlock(bool bottleneck, std::int64_t inputs, std::int64_t channels, int stride);
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override;

  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  std::optional<Conv2d> conv3;  // of a bottleneck
  std::optional<BatchNorm2d> bn3;
  std::optional<ResNetDownsample> downsample;  // where sizes change
};

// Images [B, 3, H, W] -> logits [B, classes].
class LOCKSTEP_API ResNet : public Module<ResNet> {
 public:
  explicit ResNet(const ResNetConfig& config = {});
  // "resnet18", "resnet34", "resnet50", "resnet101" or "resnet152"; InvalidArgument for another name.
  static ResNet named(const std::string& name, std::int64_t classes = 1000);

  Tensor forward(const Tensor& images) const;
  void members(Members& m) override;

  Conv2d conv1;
  BatchNorm2d bn1;
  std::vector<ResNetBlock> layer1, layer2, layer3, layer4;
  Linear fc;
};

}  // namespace lockstep
