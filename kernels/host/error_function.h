// The error function of floats for rows: without branches, so that it becomes vector code.
#pragma once

#include <cmath>

#include "lockstep/kernels/scalar_math.h"

namespace lockstep::kernels::host {

// Near 0 an odd polynomial, farther off 1 - exp(-q(|x|)). Both are minimax fits; the error is below 1.25 ulp.
inline float error_function(float x) {
  const float magnitude = std::fabs(x);
  const float x2 = x * x;
  float p = -5.907962913624942e-4f;
  p = math::mul_add(p, x2, 4.976832773536444e-3f);
  p = math::mul_add(p, x2, -2.67554372549057e-2f);
  p = math::mul_add(p, x2, 1.1281507462263107e-1f);
  p = math::mul_add(p, x2, -3.7612465023994446e-1f);
  p = math::mul_add(p, x2, 1.2837915122509003e-1f);
  const float near = math::mul_add(p, x, x);
  // From 4 on it is 1; NaN passes.
  const float a = math::select(magnitude > 4.0f, 4.0f, magnitude);
  float q = 2.1334586563170888e-5f;
  q = math::mul_add(q, a, -4.372387193143368e-4f);
  q = math::mul_add(q, a, 4.18455246835947e-3f);
  q = math::mul_add(q, a, -2.5155065581202507e-2f);
  q = math::mul_add(q, a, 1.0833540558815002e-1f);
  q = math::mul_add(q, a, 6.332964301109314e-1f);
  q = math::mul_add(q, a, 1.129539966583252f);
  q = math::mul_add(q, a, -1.7992612265516073e-4f);
  const float far = std::copysign(1.0f - math::exp_of_negative(-q), x);
  return math::select(magnitude < 0.94f, near, far);
}

}  // namespace lockstep::kernels::host
