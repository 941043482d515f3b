// The network of train_digits.
#pragma once

#include <cstdint>

#include "digits.h"

namespace example {

// No batch norm and no dropout, so that the network computes the same whatever the number of devices; and only smooth
// functions, since at a kink (of relu, of a maximum) the last bit of a sum decides between different gradients.
struct DigitsNet : lockstep::Module<DigitsNet> {
  lockstep::Conv2d conv1{1, 16, 3, {.padding = 1}};
  lockstep::Conv2d conv2{16, 32, 3, {.padding = 1}};
  lockstep::Linear hidden, head{64, kClasses};
  DigitsNet(std::int64_t rows, std::int64_t columns) : hidden(32 * (rows / 2) * (columns / 2), 64) {}

  lockstep::Tensor forward(const lockstep::Tensor& x) const {
    const lockstep::Tensor features = smooth(conv2(smooth(conv1(x))));
    return head(smooth(hidden(lockstep::flatten(lockstep::avg_pool2d(features, 2), 1))));
  }
  void members(lockstep::Members& m) override {
    m("conv1", conv1);
    m("conv2", conv2);
    m("hidden", hidden);
    m("head", head);
  }

 private:
  static lockstep::Tensor smooth(const lockstep::Tensor& x) { return lockstep::gelu(x, lockstep::GeluForm::tanh); }
};

}  // namespace example
