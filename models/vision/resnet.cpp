#include "lockstep/models/vision/resnet.h"

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep {
namespace {

constexpr std::int64_t kExpansion = 4;  // of a bottleneck's channels at its end

Conv2d conv(std::int64_t inputs, std::int64_t outputs, int kernel, int stride) {
  Conv2d layer(inputs, outputs, kernel, {.stride = stride, .padding = kernel / 2, .bias = false});
  init::kaiming_normal(layer.weight.tensor(), 0, init::FanMode::fan_out);
  return layer;
}

std::int64_t outputs_of(bool bottleneck, std::int64_t channels) {
  return bottleneck ? kExpansion * channels : channels;
}

std::vector<ResNetBlock> layer(const ResNetConfig& config, int which) {
  const std::int64_t channels = std::int64_t{64} << which;
  const int count = config.blocks[static_cast<std::size_t>(which)];
  LOCKSTEP_CHECK(count > 0, "[ResNet] expected at least one block in layer", which + 1, ", got ", count);
  std::vector<ResNetBlock> blocks;
  for (int i = 0; i < count; ++i) {
    const bool first = i == 0;
    const std::int64_t before = !first       ? outputs_of(config.bottleneck, channels)
                                : which == 0 ? 64
                                             : outputs_of(config.bottleneck, channels / 2);
    blocks.emplace_back(config.bottleneck, before, channels, first && which > 0 ? 2 : 1);
  }
  return blocks;
}

}  // namespace

ResNetDownsample::ResNetDownsample(std::int64_t inputs, std::int64_t outputs, int stride)
    : conv(lockstep::conv(inputs, outputs, 1, stride)), norm(outputs) {}

ResNetBlock::ResNetBlock(bool bottleneck, std::int64_t inputs, std::int64_t channels, int stride)
    : conv1(conv(inputs, channels, bottleneck ? 1 : 3, bottleneck ? 1 : stride)),
      bn1(channels),
      conv2(conv(channels, channels, 3, bottleneck ? stride : 1)),
      bn2(channels) {
  const std::int64_t outputs = outputs_of(bottleneck, channels);
  if (bottleneck) {
    conv3 = conv(channels, outputs, 1, 1);
    bn3 = BatchNorm2d(outputs);
  }
  if (stride != 1 || inputs != outputs) downsample = ResNetDownsample(inputs, outputs, stride);
}

Tensor ResNetBlock::forward(const Tensor& x) const {
  Tensor y = conv2(bn1.activated(conv1(x), Activation::relu));
  y = conv3 ? (*bn3)((*conv3)(bn2.activated(y, Activation::relu))) : bn2(y);
  return relu(y + (downsample ? (*downsample)(x) : x));
}

void ResNetBlock::members(Members& m) {
  m("conv1", conv1);
  m("bn1", bn1);
  m("conv2", conv2);
  m("bn2", bn2);
  m("conv3", conv3);
  m("bn3", bn3);
  m("downsample", downsample);
}

ResNet::ResNet(const ResNetConfig& config)
    : conv1(conv(3, 64, 7, 2)),
      bn1(64),
      layer1(layer(config, 0)),
      layer2(layer(config, 1)),
      layer3(layer(config, 2)),
      layer4(layer(config, 3)),
      fc(outputs_of(config.bottleneck, 512), config.classes) {}

ResNet ResNet::named(const std::string& name, std::int64_t classes) {
  const struct {
    const char* name;
    bool bottleneck;
    std::array<int, 4> blocks;
  } known[] = {{"resnet18", false, {2, 2, 2, 2}},
               {"resnet34", false, {3, 4, 6, 3}},
               {"resnet50", true, {3, 4, 6, 3}},
               {"resnet101", true, {3, 4, 23, 3}},
               {"resnet152", true, {3, 8, 36, 3}}};
  for (const auto& each : known)
    if (name == each.name) return ResNet({each.bottleneck, each.blocks, classes});
  throw InvalidArgument(
      cat("[ResNet] expected resnet18, resnet34, resnet50, resnet101 or resnet152, got '", name, "'"));
}

Tensor ResNet::forward(const Tensor& images) const {
  Tensor x = max_pool2d(bn1.activated(conv1(images), Activation::relu), 3, {.stride = 2, .padding = 1});
  for (const auto* blocks : {&layer1, &layer2, &layer3, &layer4})
    for (const ResNetBlock& block : *blocks) x = block(x);
  return fc(adaptive_avg_pool2d(x, 1).flatten(1));
}

void ResNet::members(Members& m) {
  m("conv1", conv1);
  m("bn1", bn1);
  m("layer1", layer1);
  m("layer2", layer2);
  m("layer3", layer3);
  m("layer4", layer4);
  m("fc", fc);
}

}  // namespace lockstep
