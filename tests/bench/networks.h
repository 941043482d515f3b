// The networks that are measured: scripts/compare_peers trains and asks them beside other libraries, lockstep-bench
// threads alone. Each has the names and the layout of its like in peers/torch_networks.py.
#pragma once

#include <cstdint>

#include "lockstep/lockstep.h"

namespace lockstep::bench::networks {

inline Sequential mlp() {
  return Sequential(Linear(784, 1024, {.activation = Activation::relu}),
                    Linear(1024, 1024, {.activation = Activation::relu}), Linear(1024, 10));
}

inline Sequential cnn() {
  return Sequential(Conv2d(3, 32, 3, {.padding = 1}), BatchNorm2d(32), ReLU(), MaxPool2d(2),
                    Conv2d(32, 64, 3, {.padding = 1}), BatchNorm2d(64), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(64 * 8 * 8, 10));
}

// Two 3x3 convolutions with a way around them (He et al., 2016).
struct Basic : Module<Basic> {
  Basic(std::int64_t inputs, std::int64_t width, int stride)
      : conv1(inputs, width, 3, {.stride = stride, .padding = 1, .bias = false}),
        conv2(width, width, 3, {.padding = 1, .bias = false}),
        bn1(width),
        bn2(width) {
    if (stride == 1 && inputs == width) return;
    down.push_back(Conv2d(inputs, width, 1, {.stride = stride, .bias = false}));
    down.push_back(BatchNorm2d(width));
  }
  Tensor forward(const Tensor& x) const {
    return relu(bn2(conv2(bn1.activated(conv1(x), Activation::relu))) + (down.count() == 0 ? x : down(x)));
  }
  void members(Members& m) override {
    m("conv1", conv1), m("bn1", bn1), m("conv2", conv2), m("bn2", bn2), m("down", down);
  }

  Conv2d conv1, conv2;
  BatchNorm2d bn1, bn2;
  Sequential down;
};

// ResNet-18.
inline Sequential resnet() {
  Sequential net(Conv2d(3, 64, 7, {.stride = 2, .padding = 3, .bias = false}), BatchNorm2d(64), ReLU(),
                 MaxPool2d(3, {.stride = 2, .padding = 1}));
  std::int64_t inputs = 64;
  for (const std::int64_t width : {64, 128, 256, 512})
    for (int i = 0; i < 2; ++i) {
      net.push_back(Basic(inputs, width, i == 0 && width > 64 ? 2 : 1));
      inputs = width;
    }
  net.push_back(AdaptiveAvgPool2d(1));
  net.push_back(Flatten());
  net.push_back(Linear(512, 10));
  return net;
}

// Pairs of a depthwise and a pointwise convolution (Howard et al., 2017).
inline Sequential mobile() {
  Sequential net(Conv2d(3, 32, 3, {.stride = 2, .padding = 1, .bias = false}), BatchNorm2d(32), ReLU());
  std::int64_t inputs = 32;
  const auto pair = [&](std::int64_t width, int stride) {
    net.push_back(
        Conv2d(inputs, inputs, 3, {.stride = stride, .padding = 1, .groups = static_cast<int>(inputs), .bias = false}));
    net.push_back(BatchNorm2d(inputs));
    net.push_back(ReLU());
    net.push_back(Conv2d(inputs, width, 1, {.bias = false}));
    net.push_back(BatchNorm2d(width));
    net.push_back(ReLU());
    inputs = width;
  };
  pair(64, 1), pair(128, 2), pair(128, 1), pair(256, 2), pair(256, 1), pair(512, 2), pair(512, 1);
  net.push_back(AdaptiveAvgPool2d(1));
  net.push_back(Flatten());
  net.push_back(Linear(512, 10));
  return net;
}

// A decoder of 4 layers, 128 wide, with 4 heads, for bytes.
struct Gpt : Module<Gpt> {
  static constexpr std::int64_t kWidth = 128, kLength = 128, kWords = 256;
  Embedding words{kWords, kWidth}, positions{kLength, kWidth};
  TransformerEncoder blocks{TransformerEncoderLayer(kWidth, 4,
                                                    {.feedforward = 4 * kWidth,
                                                     .dropout = 0,
                                                     .activation = TransformerActivation::gelu,
                                                     .batch_first = true,
                                                     .norm_first = true}),
                            4, LayerNorm(kWidth)};
  Linear head{kWidth, kWords};

  Tensor forward(const Tensor& text) const {
    const Tensor places = arange(text.size(1), {.dtype = DType::i64, .device = text.device()});
    return head(blocks(words(text) + positions(places), {.causal = true}));
  }
  void members(Members& m) override {
    m("words", words), m("positions", positions), m("blocks", blocks), m("head", head);
  }
};

struct Lstm : Module<Lstm> {
  LSTM lstm{128, 256, {.layers = 2, .batch_first = true}};
  Linear head{256, 10};
  Tensor forward(const Tensor& x) const { return head(lstm(x).output.select(1, -1)); }
  void members(Members& m) override { m("lstm", lstm), m("head", head); }
};

// Of scores of classes, one row for each target.
inline Tensor loss_of(const Tensor& scores, const Tensor& targets) {
  return cross_entropy(scores.reshape({-1, scores.size(-1)}), targets.reshape({-1}));
}

}  // namespace lockstep::bench::networks
