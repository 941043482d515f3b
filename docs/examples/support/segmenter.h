// The network of detect_shapes: scores of the classes for every pixel, of images of any size.
#pragma once

#include <vector>

#include "shapes.h"

namespace example {

// [n, 3, height, width] -> [n, classes, height, width]. Halves the image twice or three times and comes back, adding at each
// size what it had on the way down (U-Net, Ronneberger et al., 2015, with sums in place of joints).
struct UNet : lockstep::Module<UNet> {
  struct Block : lockstep::Module<Block> {
    lockstep::Conv2d conv1, conv2;
    lockstep::GroupNorm norm1, norm2;
    Block(std::int64_t inputs, std::int64_t outputs)
        : conv1(inputs, outputs, 3, {.padding = 1, .bias = false}),
          conv2(outputs, outputs, 3, {.padding = 1, .bias = false}),
          norm1(4, outputs),
          norm2(4, outputs) {}
    lockstep::Tensor forward(const lockstep::Tensor& x) const {
      return lockstep::relu(norm2(conv2(lockstep::relu(norm1(conv1(x))))));
    }
    void members(lockstep::Members& m) override {
      m("conv1", conv1), m("norm1", norm1), m("conv2", conv2), m("norm2", norm2);
    }
  };

  explicit UNet(std::int64_t width = 12)
      : head(width, kShapeClasses, 1) {
    std::int64_t inputs = 3;
    for (int level = 0; level < kLevels; ++level) {
      const std::int64_t outputs = width << level;
      down.emplace_back(inputs, outputs);
      if (level > 0) up.emplace_back(outputs, outputs / 2);
      inputs = outputs;
    }
    deepest.emplace_back(inputs, inputs);
  }

  lockstep::Tensor forward(const lockstep::Tensor& images) const {
    using namespace lockstep;
    std::vector<Tensor> seen;
    Tensor x = images;
    for (std::size_t level = 0; level < down.size(); ++level)
      seen.push_back(x = down[level](level == 0 ? x : max_pool2d(x, 2)));
    for (const Block& block : deepest) x = block(x);
    for (std::size_t level = down.size() - 1; level > 0; --level) {
      const Tensor& same = seen[level - 1];
      const Size2 size(static_cast<int>(same.size(2)), static_cast<int>(same.size(3)));
      x = interpolate(up[level - 1](x), {.size = size, .mode = InterpolateMode::bilinear}) + same;
    }
    return head(x);
  }
  void members(lockstep::Members& m) override {
    m("down", down), m("deepest", deepest), m("up", up), m("head", head);
  }

  static constexpr int kLevels = 4;
  std::vector<Block> down, deepest, up;
  lockstep::Conv2d head;
};

}  // namespace example
