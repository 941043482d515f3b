// What a kernel sees of a tensor: where it is, how it is laid out, and whether the kernel reads or writes it.
#pragma once

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/layout.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// Non-owning. Strides count elements; a stride of 0 repeats. Negative strides do not occur.
struct View {
  void* data = nullptr;
  Shape shape;
  Strides strides;
  DType dtype = DType::f32;
  Device device;

  bool present = false;  // false: an optional operand that is absent

  int rank() const { return shape.rank(); }
};

// The three ways a kernel may use a view. The distinction is what the order checker lives on.
struct In {
  View view;
};
struct Out {
  View view;
};
struct InOut : In {};  // a call that only reads it declares it as what it is here

}  // namespace lockstep
