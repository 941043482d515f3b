#include "models.h"

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep::bench {

Bottleneck::Bottleneck(std::int64_t inputs, std::int64_t width, int stride)
    : conv1(inputs, width, 1, {.bias = false}),
      conv2(width, width, 3, {.stride = stride, .padding = 1, .bias = false}),
      conv3(width, 4 * width, 1, {.bias = false}),
      bn1(width),
      bn2(width),
      bn3(4 * width) {
  if (stride == 1 && inputs == 4 * width) return;
  down.push_back(Conv2d(inputs, 4 * width, 1, {.stride = stride, .bias = false}));
  down_norm.push_back(BatchNorm2d(4 * width));
}

Tensor Bottleneck::forward(const Tensor& x) const {
  const Tensor way = down.count() == 0 ? x : down_norm[0](down[0](x));
  return relu(bn3(conv3(bn2.activated(conv2(bn1.activated(conv1(x), Activation::relu)), Activation::relu))) + way);
}

void Bottleneck::members(Members& m) {
  m("conv1", conv1), m("bn1", bn1), m("conv2", conv2), m("bn2", bn2), m("conv3", conv3), m("bn3", bn3);
  m("down", down), m("down_norm", down_norm);
}

ResNet50::ResNet50() : conv1(3, 64, 7, {.stride = 2, .padding = 3, .bias = false}), bn1(64), fc(2048, 1000) {
  std::int64_t inputs = 64, width = 64;
  for (const int count : {3, 4, 6, 3}) {
    for (int i = 0; i < count; ++i) {
      blocks.push_back(Bottleneck(inputs, width, i == 0 && width > 64 ? 2 : 1));
      inputs = 4 * width;
    }
    width *= 2;
  }
}

Tensor ResNet50::forward(const Tensor& images, const Tensor& targets) const {
  Tensor x = max_pool2d(bn1.activated(conv1(images), Activation::relu), 3, {.stride = 2, .padding = 1});
  for (std::size_t i = 0; i < blocks.count(); ++i) x = blocks[i](x);
  return cross_entropy(fc(flatten(adaptive_avg_pool2d(x, 1), 1)), targets).reshape({1});
}

void ResNet50::members(Members& m) { m("conv1", conv1), m("bn1", bn1), m("blocks", blocks), m("fc", fc); }

namespace {

TransformerEncoderLayer layer_on(const GptSize& size, Device home) {
  TransformerEncoderLayer layer(size.width, size.heads,
                                {.feedforward = 4 * size.width,
                                 .dropout = 0,
                                 .activation = TransformerActivation::gelu,
                                 .batch_first = true,
                                 .norm_first = true});
  layer.to(home);
  return layer;
}

LayerNorm norm_on(const GptSize& size, Device home) {
  LayerNorm norm({size.width});
  norm.to(home);
  return norm;
}

}  // namespace

Gpt::Gpt(const GptSize& size, Device home)
    : words_embedding(size.words, size.width),
      positions(size.length, size.width),
      blocks(layer_on(size, home), size.layers, norm_on(size, home)) {
  to(home);
}

Tensor Gpt::forward(const Tensor& words, const Tensor& targets) const {
  const Tensor places = arange(words.size(1), {.dtype = DType::i64, .device = words.device()});
  const Tensor x = blocks(words_embedding(words) + positions(places), {.causal = true});
  const Tensor scores = linear(x, words_embedding.weight.on(x.device()));
  return cross_entropy(flatten(scores, 0, 1), targets.reshape({-1})).reshape({1});
}

void Gpt::members(Members& m) { m("words", words_embedding), m("positions", positions), m("blocks", blocks); }

}  // namespace lockstep::bench
