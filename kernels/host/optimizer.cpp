#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/host_table.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/launch.h"

namespace lockstep::kernels::host {
namespace {

// The settings are template arguments where a multiplication by zero would not do: infinity times zero is NaN, and an
// uninitialised buffer must not be read at all.
template <class T, bool kDecay>
void plain_step(const SgdArgs& args, const SgdTensor& t, std::int64_t count) {
  using C = functors::Compute<T>;
  T* parameter = data<T>(t.parameter);
  const T* gradient = data<T>(t.gradient);
  const C decay = static_cast<C>(args.weight_decay), rate = static_cast<C>(args.learning_rate);
  const C sign = args.maximize ? C(-1) : C(1);
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const C p = parameter[i];
    C g = sign * static_cast<C>(gradient[i]);
    if constexpr (kDecay) g += decay * p;
    parameter[i] = static_cast<T>(p - rate * g);
  }
}

template <class T, bool kDecay, bool kFirst>
void momentum_step(const SgdArgs& args, const SgdTensor& t, std::int64_t count) {
  using C = functors::Compute<T>;
  T* parameter = data<T>(t.parameter);
  const T* gradient = data<T>(t.gradient);
  T* momentum = data<T>(t.momentum);
  const C decay = static_cast<C>(args.weight_decay), rate = static_cast<C>(args.learning_rate);
  const C sign = args.maximize ? C(-1) : C(1);
  const C keep = static_cast<C>(args.momentum), take = static_cast<C>(1 - args.dampening);
  const bool nesterov = args.nesterov;
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const C p = parameter[i];
    C g = sign * static_cast<C>(gradient[i]);
    if constexpr (kDecay) g += decay * p;
    C buffer = g;
    if constexpr (!kFirst) buffer = keep * static_cast<C>(momentum[i]) + take * g;
    momentum[i] = static_cast<T>(buffer);
    parameter[i] = static_cast<T>(p - rate * math::select(nesterov, g + keep * buffer, buffer));
  }
}

template <class T>
void sgd_tensor(const SgdArgs& args, const SgdTensor& t) {
  const std::int64_t count = element_count(t.parameter.view.shape);
  const bool decay = args.weight_decay != 0;
  if (!t.momentum.view.present) return (decay ? plain_step<T, true> : plain_step<T, false>)(args, t, count);
  if (t.first_step) return (decay ? momentum_step<T, true, true> : momentum_step<T, false, true>)(args, t, count);
  return (decay ? momentum_step<T, true, false> : momentum_step<T, false, false>)(args, t, count);
}

}  // namespace

void sgd(Stream& stream, const SgdArgs& args) {
  for (const SgdTensor& t : args.tensors) check_floating(SgdArgs::kName, t.parameter.view.dtype, stream);
  launch(stream, args, [](const SgdArgs& a) {
    for (const SgdTensor& t : a.tensors)
      dispatch_floating(t.parameter.view.dtype, [&]<class T>(Type<T>) { sgd_tensor<T>(a, t); });
  });
}

}  // namespace lockstep::kernels::host
