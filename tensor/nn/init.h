// Filling parameters with their first values. All of these write into the tensor (`weight.tensor()`) without a graph,
// and draw from the thread's random numbers (random.h). Weights are [out, in, ..]: `fan_in` is in times the sizes that
// follow, `fan_out` out times those.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::init {

struct Fans {
  std::int64_t in, out;
};
// Throws InvalidArgument for a tensor of fewer than two dimensions.
LOCKSTEP_API Fans fans(const Tensor& weight);

LOCKSTEP_API void uniform(const Tensor& tensor, double low = 0, double high = 1);
LOCKSTEP_API void normal(const Tensor& tensor, double mean = 0, double deviation = 1);
LOCKSTEP_API void constant(const Tensor& tensor, double value);
inline void zeros(const Tensor& tensor) { constant(tensor, 0); }
inline void ones(const Tensor& tensor) { constant(tensor, 1); }
// Normal, of the numbers in [low, high] alone. Drawn by the inverse of the distribution function, so that every element
// takes one random number. Blocks until it is written.
LOCKSTEP_API void trunc_normal(const Tensor& tensor, double mean = 0, double deviation = 1, double low = -2,
                               double high = 2);
// A matrix of two dimensions with ones on its diagonal.
LOCKSTEP_API void eye(const Tensor& matrix);
// Kernels of a convolution that pass each input channel on to an output channel, per group, as far as there are both.
LOCKSTEP_API void dirac(const Tensor& weight, std::int64_t groups = 1);
// `gain` times a matrix [out, in ..] whose rows (or columns, where there are fewer) are orthogonal and of length 1
// (Saxe et al., 2013): the first factor of a QR decomposition of a normal matrix. Blocks until it is written.
LOCKSTEP_API void orthogonal(const Tensor& weight, double gain = 1);
// Normal with this deviation, and in each column ceil(sparsity * rows) zeros at random places (Martens, 2010).
LOCKSTEP_API void sparse(const Tensor& matrix, double sparsity, double deviation = 0.01);

// How much the following activation shrinks its input; the bounds below are scaled by it.
inline constexpr double kGainLinear = 1;
inline constexpr double kGainRelu = 1.41421356237309504880;
inline constexpr double kGainTanh = 5.0 / 3;
// Of a leaky rectifier with this slope below zero.
LOCKSTEP_API double leaky_relu_gain(double negative_slope);

enum class FanMode : std::uint8_t { fan_in, fan_out };
// Uniform in ±gain sqrt(3 / fan) with the gain of a leaky rectifier (He et al., 2015).
LOCKSTEP_API void kaiming_uniform(const Tensor& weight, double negative_slope = 0, FanMode mode = FanMode::fan_in);
// Normal with deviation gain / sqrt(fan).
LOCKSTEP_API void kaiming_normal(const Tensor& weight, double negative_slope = 0, FanMode mode = FanMode::fan_in);
// Uniform in ±gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
LOCKSTEP_API void xavier_uniform(const Tensor& weight, double gain = 1);
// Normal with deviation gain sqrt(2 / (fan_in + fan_out)).
LOCKSTEP_API void xavier_normal(const Tensor& weight, double gain = 1);

// What Linear and Conv2d begin with: both uniform in ±1 / sqrt(fan_in). `bias` may be undefined.
LOCKSTEP_API void default_affine(const Tensor& weight, const Tensor& bias);

}  // namespace lockstep::init
