// One definition of what optimizers do to an element, for every backend.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/kernels/functors.h"

namespace lockstep::functors {

// ---- Adam and AdamW, in PyTorch's arithmetic

template <class C>
struct AdamConstants {
  C sign;             // of the gradient: -1 to maximize
  C decay;            // added to the gradient, times the parameter
  C keep;             // of the parameter: 1 - learning_rate * weight_decay, or 1
  C take1;            // 1 - beta1
  C keep1;            // beta1
  C beta2, take2;     // take2 is 1 - beta2
  C step_size;        // learning_rate / (1 - beta1^step)
  C root_correction;  // sqrt(1 - beta2^step)
  C eps;
};

// For one tensor, on the host: the powers need double.
template <class C>
AdamConstants<C> adam_constants(const AdamArgs& args, std::int64_t step) {
  const auto steps = static_cast<double>(step);
  const double decay = args.weight_decay;
  return {.sign = args.maximize ? C(-1) : C(1),
          .decay = static_cast<C>(args.decoupled ? 0 : decay),
          .keep = static_cast<C>(args.decoupled ? 1 - args.learning_rate * decay : 1),
          .take1 = static_cast<C>(1 - args.beta1),
          .keep1 = static_cast<C>(args.beta1),
          .beta2 = static_cast<C>(args.beta2),
          .take2 = static_cast<C>(1 - args.beta2),
          .step_size = static_cast<C>(args.learning_rate / (1 - std::pow(args.beta1, steps))),
          .root_correction = static_cast<C>(std::sqrt(1 - std::pow(args.beta2, steps))),
          .eps = static_cast<C>(args.eps)};
}

// Of the constants above, those that another step or learning rate changes: for AdamTensor::replayed.
inline void write_adam_constants(const AdamArgs& args, std::int64_t step, double* to) {
  const auto constants = adam_constants<double>(args, step);
  to[0] = constants.step_size;
  to[1] = constants.root_correction;
  to[2] = constants.keep;
}
inline constexpr int kAdamReplayed = 3;

template <class C>
struct AdamState {
  C parameter;
  C exp_avg = 0, exp_avg_sq = 0, max_exp_avg_sq = 0;  // before the first step
};

template <class C, bool kAmsgrad>
LOCKSTEP_HD inline void adam_step(const AdamConstants<C>& k, C gradient, AdamState<C>& s) {
  C g = k.sign * gradient;
  // Not by a multiplication with zero: that makes a NaN of an infinite parameter.
  g = math::select(k.decay != C(0), g + k.decay * s.parameter, g);
  const C parameter = k.keep * s.parameter;
  // The moment moves from the nearer end, so that it arrives exactly at both.
  const C way = g - s.exp_avg;
  s.exp_avg = math::select(k.take1 < C(0.5), s.exp_avg + k.take1 * way, g - way * k.keep1);
  s.exp_avg_sq = k.beta2 * s.exp_avg_sq + k.take2 * (g * g);
  C second = s.exp_avg_sq;
  if constexpr (kAmsgrad) {
    // NaN stays NaN, as in PyTorch's maximum.
    s.max_exp_avg_sq = math::select(s.max_exp_avg_sq >= second || is_nan(s.max_exp_avg_sq), s.max_exp_avg_sq, second);
    second = s.max_exp_avg_sq;
  }
  s.parameter = parameter - k.step_size * (s.exp_avg / (std::sqrt(second) / k.root_correction + k.eps));
}

// ---- numbers that are not finite

template <class T>
using BitsOf =
    std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

// Of infinity and NaN, and of nothing else, all these bits are set.
template <class T>
inline constexpr BitsOf<T> kExponentMask = 0;
template <>
inline constexpr std::uint32_t kExponentMask<float> = 0x7f800000u;
template <>
inline constexpr std::uint64_t kExponentMask<double> = 0x7ff0000000000000u;
template <>
inline constexpr std::uint16_t kExponentMask<Half> = 0x7c00u;
template <>
inline constexpr std::uint16_t kExponentMask<BFloat16> = 0x7f80u;

template <class T>
LOCKSTEP_HD inline BitsOf<T> exponent_bits(T x) {
  return static_cast<BitsOf<T>>(std::bit_cast<BitsOf<T>>(x) & kExponentMask<T>);
}

}  // namespace lockstep::functors
