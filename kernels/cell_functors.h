// The cells of recurrent networks for one element of the state: one definition for the host and for CUDA devices.
#pragma once

#include <cmath>

#include "lockstep/kernels/scalar_math.h"

namespace lockstep::functors {

template <class C>
struct LstmGates {
  C i, f, g, o;
};
template <class C>
LOCKSTEP_HD inline LstmGates<C> lstm_activate(const LstmGates<C>& x) {
  return {math::sigmoid(x.i), math::sigmoid(x.f), math::tanh(x.g), math::sigmoid(x.o)};
}
template <class C>
LOCKSTEP_HD inline void lstm_cell(const LstmGates<C>& x, C c_before, C* h, C* c) {
  *c = x.f * c_before + x.i * x.g;
  *h = x.o * math::tanh(*c);
}
// From the gradients of h and c to those of the gates before their functions and of c_before.
template <class C>
LOCKSTEP_HD inline LstmGates<C> lstm_cell_grad(C dh, C dc, const LstmGates<C>& x, C c_before, C c, C* dc_before) {
  const C squashed = math::tanh(c);
  const C total = dc + dh * x.o * (C(1) - squashed * squashed);
  *dc_before = total * x.f;
  return {total * x.g * x.i * (C(1) - x.i), total * c_before * x.f * (C(1) - x.f), total * x.i * (C(1) - x.g * x.g),
          dh * squashed * x.o * (C(1) - x.o)};
}

template <class C>
struct GruGates {
  C r, z, n;
};
template <class C>
LOCKSTEP_HD inline GruGates<C> gru_activate(const GruGates<C>& input, const GruGates<C>& hidden) {
  const C r = math::sigmoid(input.r + hidden.r);
  return {r, math::sigmoid(input.z + hidden.z), math::tanh(input.n + r * hidden.n)};
}
template <class C>
LOCKSTEP_HD inline C gru_cell(const GruGates<C>& x, C h_before) {
  return (C(1) - x.z) * x.n + x.z * h_before;
}
// `dhidden` differs from `dinput` in n alone.
template <class C>
LOCKSTEP_HD inline void gru_cell_grad(C dh, const GruGates<C>& x, C hidden_n, C h_before, GruGates<C>* dinput,
                                      GruGates<C>* dhidden, C* dh_before) {
  const C dn = dh * (C(1) - x.z) * (C(1) - x.n * x.n);
  const C dr = dn * hidden_n * x.r * (C(1) - x.r), dz = dh * (h_before - x.n) * x.z * (C(1) - x.z);
  *dinput = {dr, dz, dn};
  *dhidden = {dr, dz, dn * x.r};
  *dh_before = dh * x.z;
}

}  // namespace lockstep::functors
