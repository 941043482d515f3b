// math::mul_add in double.
#pragma once

#include <cmath>

namespace lockstep::kernels::host {

// a * b + c; fused where the processor has the instruction.
inline double mul_add(double a, double b, double c) {
#if defined(__FP_FAST_FMA) || defined(__FMA__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace lockstep::kernels::host
