// Networks whose published sizes people know, for recordings: a training step of them gives its loss as one element.
#pragma once

#include <cstdint>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep::bench {

struct Bottleneck : Module<Bottleneck> {
  Bottleneck(std::int64_t inputs, std::int64_t width, int stride);
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override;

  Conv2d conv1, conv2, conv3;
  BatchNorm2d bn1, bn2, bn3;
  ModuleList<Conv2d> down;  // empty, or one where shapes differ
  ModuleList<BatchNorm2d> down_norm;
};

// ResNet-50 (He et al., 2016; stride in the 3x3 convolution): 161 parameters, 25.6 million elements. Images
// [N, 3, 224, 224], targets [N] -> the loss, [1].
struct ResNet50 : Module<ResNet50> {
  ResNet50();
  Tensor forward(const Tensor& images, const Tensor& targets) const;
  void members(Members& m) override;

  Conv2d conv1;
  BatchNorm2d bn1;
  ModuleList<Bottleneck> blocks;
  Linear fc;
};

struct GptSize {
  std::int64_t layers, width, heads, length, words;
};
inline constexpr GptSize kGpt2Small{12, 768, 12, 1024, 50257};  // 124 million elements (Radford et al., 2019)
inline constexpr GptSize kGpt3XL{24, 2048, 16, 2048, 50257};    // 1.3 billion (Brown et al., 2020, table 2.1)

// A decoder with norms before its blocks and the embedding as the last matrix. Words and targets [N, T] (i64) -> the
// loss, [1]. Made on `home`, where a copy of a layer costs no memory of the host.
struct Gpt : Module<Gpt> {
  Gpt(const GptSize& size, Device home);
  Tensor forward(const Tensor& words, const Tensor& targets) const;
  void members(Members& m) override;

  Embedding words_embedding, positions;
  TransformerEncoder blocks;
};

}  // namespace lockstep::bench
