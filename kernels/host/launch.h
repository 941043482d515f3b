// How a host kernel gets onto a stream.
#pragma once

#include "lockstep/kernels/common/dispatch.h"
#include "lockstep/kernels/host/gather.h"

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

}  // namespace lockstep::kernels::host
