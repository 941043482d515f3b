#include "models.h"

#include <utility>

namespace lockstep::simulate::tests {
namespace {

using Count = std::int64_t;

Layer convolution(Count in, Count out, Count kernel, Count size, bool bias) {
  Layer layer{static_cast<double>(in * out * kernel * kernel * size * size), {in * out * kernel * kernel}};
  if (bias) layer.parameters.push_back(out);
  return layer;
}

// With the norm behind it.
Layer normed(Count in, Count out, Count kernel, Count size) {
  Layer layer = convolution(in, out, kernel, size, false);
  layer.parameters.insert(layer.parameters.end(), {out, out});
  return layer;
}

Layer linear(Count in, Count out) { return {static_cast<double>(in * out), {in * out, out}}; }

}  // namespace

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const Layer& layer : layers)
    for (const std::int64_t elements : layer.parameters) count += elements;
  return count;
}

std::int64_t Model::tensor_count() const {
  std::int64_t count = 0;
  for (const Layer& layer : layers) count += static_cast<std::int64_t>(layer.parameters.size());
  return count;
}

double Model::flops() const {
  double sum = 0;
  for (const Layer& layer : layers) sum += layer.flops;
  return sum;
}

Model resnet(int depth) {
  Model model{"ResNet-" + std::to_string(depth), {normed(3, 64, 7, 112)}};
  const std::vector<int> blocks = depth == 50 ? std::vector<int>{3, 4, 6, 3} : std::vector<int>{3, 8, 36, 3};
  Count in = 64, width = 64, size = 56;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage, width *= 2, size /= 2)
    for (int block = 0; block < blocks[stage]; ++block) {
      const Count before = stage > 0 && block == 0 ? 2 * size : size;  // the 3x3 product strides
      model.layers.push_back(normed(in, width, 1, before));
      model.layers.push_back(normed(width, width, 3, size));
      model.layers.push_back(normed(width, 4 * width, 1, size));
      if (block == 0) model.layers.push_back(normed(in, 4 * width, 1, size));
      in = 4 * width;
    }
  model.layers.push_back(linear(2048, 1000));
  return model;
}

Model vgg16() {
  Model model{"VGG-16", {}};
  Count in = 3, size = 224;
  for (const auto& [count, out] : {std::pair(2, 64), {2, 128}, {3, 256}, {3, 512}, {3, 512}}) {
    for (int i = 0; i < count; ++i, in = out) model.layers.push_back(convolution(in, out, 3, size, true));
    size /= 2;
  }
  for (const auto& [from, to] : {std::pair(25088, 4096), {4096, 4096}, {4096, 1000}})
    model.layers.push_back(linear(from, to));
  return model;
}

Model alexnet() {
  return {"AlexNet",
          {convolution(3, 64, 11, 55, true), convolution(64, 192, 5, 27, true), convolution(192, 384, 3, 13, true),
           convolution(384, 256, 3, 13, true), convolution(256, 256, 3, 13, true), linear(9216, 4096),
           linear(4096, 4096), linear(4096, 1000)}};
}

Model lenet() {
  return {"LeNet",
          {convolution(1, 20, 5, 24, true), convolution(20, 50, 5, 8, true), linear(800, 500), linear(500, 10)}};
}

Model bert(int layers, int width) {
  const Count d = width;
  // The gradient of the word embedding, which is the last product's matrix too, is ready at the very end.
  Model model{layers == 12 ? "BERT-base" : "BERT-large", {{0, {30522 * d, 512 * d, 2 * d, d, d}}}};
  for (int i = 0; i < layers; ++i) {
    for (int product = 0; product < 4; ++product) model.layers.push_back(linear(d, d));
    model.layers.push_back({0, {d, d}});
    model.layers.push_back(linear(d, 4 * d));
    model.layers.push_back(linear(4 * d, d));
    model.layers.push_back({0, {d, d}});
  }
  model.layers.push_back(linear(d, d));  // pooler
  return model;
}

Model transformer_xl() {
  constexpr Count d = 512;
  // Adaptive embedding with cut-offs; each part is also a matrix of the adaptive softmax: ready at the very end.
  Model model{"Transformer-XL base", {{0, {19997 * d, 20000 * d, 160000 * d, 67738 * d}}}};
  for (int i = 0; i < 16; ++i) {
    model.layers.push_back({3.0 * d * d, {3 * d * d}});
    model.layers.push_back({1.0 * d * d, {d * d}});
    model.layers.push_back({1.0 * d * d, {d * d, d, d}});
    model.layers.push_back(linear(d, 2048));
    model.layers.push_back(linear(2048, d));
    model.layers.push_back({0, {d, d}});
  }
  return model;
}

}  // namespace lockstep::simulate::tests
