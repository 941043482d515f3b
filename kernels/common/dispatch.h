// From a dtype to a type, and how a kernel refuses one that it does not have.
#pragma once

#include "lockstep/kernels/table.h"

namespace lockstep::kernels {

[[noreturn, gnu::noinline, gnu::cold]] inline void fail_dtype(const char* op, DType dtype, const Stream& stream) {
  lockstep::detail::fail<NotSupported>("[", op, "] expected a dtype that this operation has, got ", dtype, " on ",
                                       stream.device());
}

// Throws NotSupported for everything but f32, f64, f16 and bf16.
inline void check_floating(const char* op, DType dtype, const Stream& stream) {
  if (!is_floating(dtype)) [[unlikely]]
    fail_dtype(op, dtype, stream);
}

// As lockstep::dispatch, for the floating dtypes alone: fewer instantiations.
template <class F>
decltype(auto) dispatch_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(Type<double>{});
    case DType::f16:
      return f(Type<Half>{});
    case DType::bf16:
      return f(Type<BFloat16>{});
    default:
      return f(Type<float>{});
  }
}

template <class T>
T* data(const Out& out) {
  return static_cast<T*>(out.view.data);
}
template <class T>
T* data(const InOut& out) {
  return static_cast<T*>(out.view.data);
}
template <class T>
const T* data(const In& in) {
  return static_cast<const T*>(in.view.data);
}

}  // namespace lockstep::kernels
