// One convolution of oneDNN's, with the conversions of its operands. For onednn_conv.cpp, which divides convolutions
// into parts. Empty without oneDNN.
#pragma once

#if defined(LOCKSTEP_HAVE_ONEDNN)

#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lockstep/kernels/host/conv_parts.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host::onednn {

using dnnl::memory;

// Pointers in the order of the arguments of the function: inputs, then the output.
using Pointers = std::array<float*, 4>;
inline constexpr std::size_t kWeights = 1;  // of a forward convolution

struct Layouts {
  memory::desc x, w, bias, y;
};
// Of a part of the tensors of `whole`, as they are given.
Layouts plain_layouts(const ConvSizes& whole, const ConvSizes& part, bool has_bias);

float* take(Scratch& scratch, const memory::desc& layout);

struct Operand {
  Operand(int id, const memory::desc& plain_layout, const memory::desc& inner_layout, bool is_output);
  void convert(float* from, float* to) const;  // of an input

  int argument;
  memory::desc plain, inner;
  bool output;
  std::optional<dnnl::reorder> conversion;  // none where the layouts are the same
};

// A primitive with the layouts of its operands. oneDNN chooses those that it computes in (blocks of channels): operands
// are converted on the way in and out, which costs less than computing in plain layouts. `in_place`: images are not
// converted.
struct Convolution {
  Convolution(ConvKind kind, const ConvSizes& whole, const ConvSizes& part, bool has_bias, bool in_place);

  std::uint64_t number;    // no other one has it, now or later
  bool reference = false;  // oneDNN has only plain loops for it
  dnnl::primitive primitive;
  std::vector<Operand> operands;
  memory::desc scratchpad;
};

// The memory objects of one execution at a time: to make them costs as much as a tiny convolution, so a thread keeps
// those that it has used.
class Execution {
 public:
  // The calling thread's. Until its next call.
  static Execution& of(const Convolution& convolution);

  // `ready` has the operands that are there in their inner layouts already; null: not so. False: `relu` is left to do,
  // where the result is.
  bool run(const Pointers& pointers, const Pointers& ready, bool relu);

 private:
  explicit Execution(const Convolution& convolution);

  const Convolution& convolution_;
  std::vector<memory> plain_;
  std::unordered_map<int, memory> inner_;
};

}  // namespace lockstep::kernels::host::onednn

#endif
