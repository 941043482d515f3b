// How a host kernel gets onto a stream, and how it refuses a dtype.
#pragma once

#include "lockstep/kernels/common/gather.h"
#include "lockstep/kernels/table.h"

namespace lockstep::kernels::host {

// Runs `kernel(args)` in the order of the stream: at once on a synchronous stream, else as a task that owns a copy of
// the arguments.
template <class Args, class Kernel>
void launch(const Stream& stream, const Args& args, Kernel kernel) {
  if (stream.synchronous())
    kernel(args);
  else
    stream.enqueue([args, kernel] { kernel(args); });
}

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

// For operations that only move elements: Bits of the element's size.
template <class F>
decltype(auto) dispatch_size(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(Type<Bits<std::uint8_t>>{});
    case 2:
      return f(Type<Bits<std::uint16_t>>{});
    case 4:
      return f(Type<Bits<std::uint32_t>>{});
    default:
      return f(Type<Bits<std::uint64_t>>{});
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

}  // namespace lockstep::kernels::host
