// Autocast: inside its scope products compute in a 16-bit dtype, and what needs digits or range in f32.
//
//   {
//     const Autocast scope(DType::bf16);
//     loss = cross_entropy(net(images), labels);
//   }
//   loss.backward();
//
//   in the 16-bit dtype, also of f32 inputs:  linear, matmul, conv2d, conv_transpose2d, scaled_dot_product_attention,
//                                             lstm_cell, gru_cell
//   in f32, also of 16-bit inputs:            exp, log, log1p, expm1, pow, reciprocal, rsqrt, softplus, softmax,
//                                             log_softmax, sum, prod, cumsum, norms, losses
//   as always:                                everything else; two dtypes meet in the wider one
//
// f64 and the integers stay what they are. Gradients arrive in the dtype of the parameters, since a cast is an
// operation like any other. The casts of parameters are kept until the outermost scope of the thread (in a replica: the
// call) ends. A backward computes in the dtypes of its forward, inside a scope too.
#pragma once

#include <memory>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Holds in this thread and in the replicas it starts, until it ends. Scopes nest: the innermost holds; one that is not
// enabled turns autocast off.
class LOCKSTEP_API Autocast {
 public:
  // `dtype`: f16 or bf16.
  explicit Autocast(DType dtype, bool enabled = true);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast();

  static bool enabled() { return thread_context().autocast; }
  static DType dtype() { return thread_context().autocast_dtype; }  // where it is enabled

 private:
  std::unique_ptr<AutocastCache> cache_;  // of the outermost scope
  bool enabled_before_;
  DType dtype_before_;
  AutocastCache* cache_before_;
};

namespace detail {

// A cache of its own for a thread that computes in the context of another one.
class LOCKSTEP_API AutocastThread {
 public:
  AutocastThread();
  AutocastThread(const AutocastThread&) = delete;
  AutocastThread& operator=(const AutocastThread&) = delete;
  ~AutocastThread();

 private:
  std::unique_ptr<AutocastCache> cache_;
};

// For the first line of an operation of the first list:
//   if (narrows(a, b)) return matmul(narrowed(a), narrowed(b));
// and of the second: if (widens(x)) return softmax(widened(x), dim);
inline bool narrows_one(const ThreadContext& context, const Tensor& x) {
  return x.defined() && x.dtype() != context.autocast_dtype && is_floating(x.dtype()) && x.dtype() != DType::f64;
}
template <class... Tensors>
bool narrows(const Tensors&... tensors) {
  const ThreadContext& context = thread_context();
  return context.autocast && (narrows_one(context, tensors) || ...);
}
LOCKSTEP_API Tensor narrowed(const Tensor& x);  // undefined, f64 and integer tensors stay

template <class... Tensors>
bool widens(const Tensors&... tensors) {
  const auto half = [](const Tensor& x) { return x.defined() && is_floating(x.dtype()) && size_of(x.dtype()) == 2; };
  return (half(tensors) || ...) && thread_context().autocast;
}
inline Tensor widened(const Tensor& x) {
  return x.defined() && is_floating(x.dtype()) && size_of(x.dtype()) == 2 ? x.to(DType::f32) : x;
}

}  // namespace detail
}  // namespace lockstep
