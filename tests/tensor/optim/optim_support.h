// What the tests of optimizers share.
#pragma once

#include "lockstep/tensor/nn/parameter.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/catch.h"
#include "support/tensors.h"

namespace lockstep::test {

using Doubles = std::vector<double>;
using support::values;

inline Parameter parameter(const Doubles& at, DType dtype = DType::f64, Device device = Device::cpu()) {
  return Parameter(from_data(at, {static_cast<std::int64_t>(at.size())}, {.dtype = dtype, .device = device}));
}
inline void set_grad(const Parameter& p, const Doubles& gradient) {
  p.set_grad(from_data(gradient, p.shape(), {.dtype = p.dtype(), .device = p.device()}));
}
inline void check_close(const Doubles& got, const Doubles& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(want[i]).epsilon(tolerance).margin(tolerance));
}
// What rounding may add up to in a few steps.
inline double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 1e-2 : 5e-2;
}

}  // namespace lockstep::test
