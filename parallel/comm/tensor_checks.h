// What collectives expect of tensors. Private to the library.
#pragma once

#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

inline void check_tensor(const char* op, const std::string& what, const Tensor& tensor, Device device) {
  LOCKSTEP_CHECK(tensor.defined(), "[", op, "] expected ", what, " to be defined");
  LOCKSTEP_CHECK(tensor.device() == device, "[", op, "] expected ", what, " on ", device,
                 ", where the communicator works, got ", tensor.describe());
  LOCKSTEP_CHECK(tensor.contiguous_layout(), "[", op, "] expected ", what, " to be contiguous, got ", tensor.describe(),
                 " with strides ", tensor.strides());
}

// `larger` has `ranks` times the elements of `smaller`.
inline void check_pair(const char* op, const Tensor& input, const Tensor& output, int ranks, bool output_larger) {
  LOCKSTEP_CHECK(input.dtype() == output.dtype(), "[", op, "] expected one dtype, got ", input.describe(), " and ",
                 output.describe());
  const std::int64_t smaller = output_larger ? input.count() : output.count();
  const std::int64_t larger = output_larger ? output.count() : input.count();
  LOCKSTEP_CHECK(larger == smaller * ranks, "[", op, "] expected ", output_larger ? "output" : "input", " to have ",
                 ranks, " times the elements of ", output_larger ? "input" : "output", ", got input ", input.describe(),
                 ", output ", output.describe());
}

inline bool overlap(const Tensor& a, const Tensor& b) {
  const auto* first = static_cast<const std::byte*>(a.data());
  const auto* second = static_cast<const std::byte*>(b.data());
  return first + a.bytes() > second && second + b.bytes() > first && a.bytes() > 0 && b.bytes() > 0;
}

// The smaller memory may be the rank's part of the larger; any other overlap would be read half written. `own_offset`:
// in elements; -1 where there is no such part.
inline void check_overlap(const char* op, const Tensor& input, const Tensor& output, std::int64_t own_offset) {
  if (!overlap(input, output)) return;
  const auto* in = static_cast<const std::byte*>(input.data());
  const auto* out = static_cast<const std::byte*>(output.data());
  const auto* large = input.bytes() >= output.bytes() ? in : out;
  const auto* small = input.bytes() >= output.bytes() ? out : in;
  LOCKSTEP_CHECK(own_offset >= 0 && small == large + own_offset * static_cast<std::int64_t>(size_of(input.dtype())),
                 "[", op,
                 "] expected input and output to be apart, or the smaller to be this rank's part of the larger");
}

}  // namespace lockstep::detail
