// What tests of prepared modules have in common.
#pragma once

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/nn/prepare.h"
#include "lockstep/tensor/ops/random.h"
#include "support/devices.h"

namespace prepare_tests {

using namespace lockstep;

// Statistics and factors that are not those of the beginning.
template <class M>
M used(M net, DType dtype = DType::f64) {
  for (const NamedParameter& entry : net.named_buffers())
    if (is_floating(entry.parameter.dtype())) entry.parameter.assign(rand(entry.parameter.shape()) + 0.5);
  for (const Parameter& parameter : net.parameters())
    if (parameter.shape().rank() == 1) parameter.assign(randn(parameter.shape()));
  net.to(dtype);
  net.to(support::device_at(0));
  return net;
}

inline Tensor input(const Shape& shape, DType dtype = DType::f64) {
  return randn(shape).to(dtype).to(support::device_at(0));
}

template <class M, class... X>
Tensor evaluated(const M& module, const X&... x) {
  const NoGrad no_grad;
  const TrainingScope evaluation(false);
  return module(x...);
}

inline double largest(const Tensor& x) { return amax(abs(x.detach().to(DType::f64)).flatten(), {0}).item<double>(); }

// Relative to what is as large as the numbers of these tests are.
inline double relative_difference(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.shape() == b.shape(), "expected ", b, ", got ", a);
  return largest(a.detach() - b.detach()) / (1 + largest(b));
}

// Whether the norms are folded: a folded network gives other bits than its evaluation, in all but some elements.
inline bool differs(const Tensor& a, const Tensor& b) { return a.to_vector<double>() != b.to_vector<double>(); }

}  // namespace prepare_tests
