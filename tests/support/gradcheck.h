// Numerical checks of derivatives, in f64 on devices whose memory the host can touch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace support {

using Function = std::function<lockstep::Tensor(const std::vector<lockstep::Tensor>&)>;

struct GradcheckOptions {
  double step = 1e-6;
  double tolerance = 1e-6;  // |analytic - numeric| <= tolerance * (1 + |numeric|)
};

// Compares the gradients of `f` with respect to the inputs that require one with central differences, along a direction
// of its results that looks random. Empty when they agree, else what differs. Inputs may have any strides but 0; their
// elements are changed and restored.
std::string gradcheck(const Function& f, const std::vector<lockstep::Tensor>& inputs, GradcheckOptions options = {});

// The same for the gradients as functions of the inputs and of the incoming gradient.
std::string gradgradcheck(const Function& f, const std::vector<lockstep::Tensor>& inputs,
                          GradcheckOptions options = {});

// Numbers in [low, high) that look random, f64, as a leaf that requires a gradient; never closer than 0.05 to a
// multiple of 1/2, so that no step crosses a kink there.
lockstep::Tensor random_leaf(const lockstep::Shape& shape, std::uint64_t seed, double low = -2, double high = 2);
// The like from -1 to 1, which require none.
inline lockstep::Tensor random_values(const lockstep::Shape& shape, std::uint64_t seed) {
  return random_leaf(shape, seed, -1, 1).detach();
}
// A leaf as above, stored with its dimensions in reverse order: not contiguous.
lockstep::Tensor random_transposed_leaf(const lockstep::Shape& shape, std::uint64_t seed, double low = -2,
                                        double high = 2);

}  // namespace support
