// Tensors of given numbers, and the numbers of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/ops/factory.h"

namespace support {

using Doubles = std::vector<double>;

// [n] in f64.
inline lockstep::Tensor f64_vector(const Doubles& numbers, lockstep::Device device = lockstep::Device::cpu()) {
  return lockstep::from_data(numbers, {static_cast<std::int64_t>(numbers.size())},
                             {.dtype = lockstep::DType::f64, .device = device});
}
// One that requires a gradient.
inline lockstep::Tensor leaf(const Doubles& numbers, lockstep::Device device = lockstep::Device::cpu()) {
  return f64_vector(numbers, device).set_requires_grad();
}
// In the order of the indices.
inline Doubles values(const lockstep::Tensor& x) { return x.detach().to_vector<double>(); }

}  // namespace support
