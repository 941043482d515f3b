// The driver of the elementwise kernels. An operation supplies one loop over contiguous elements per dtype; the driver
// hands it whole rows where memory allows that, and otherwise blocks that it gathers into buffers (a repeated element
// is a block filled once, a strided operand is gathered, f16 and bf16 become float). So an operation is compiled once
// per dtype, whatever the layouts.
#pragma once

#include "lockstep/kernels/args.h"
#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/host/gather.h"

namespace lockstep::kernels::host {

struct Scalars {
  double a = 0, b = 0;
};

// Computes `count` contiguous elements.
template <std::size_t Inputs>
using Loop = void (*)(const std::array<const void*, Inputs>& in, void* out, std::int64_t count, const Scalars& scalars);

// `half` says what the loop gets for f16 and bf16. Without a loop elements of one dtype are moved; rows without gaps
// are not its business, see copy_view().
template <std::size_t Inputs>
void elementwise(const std::array<const View*, Inputs>& in, const View& out, HalfAs half, Loop<Inputs> loop,
                 const Scalars& scalars);

// Copies between views of one dtype. Here, and inside of kernels alone, strides of what is read may be negative.
void copy_view(const View& in, const View& out);

// The loop of an operation (UnaryOp) for elements as they compute, f32 for f16 and bf16; null: not for this dtype. Each
// element is read before it is written: the output may be the input.
Loop<1> unary_loop(UnaryOp op, DType dtype);

extern template void elementwise<1>(const std::array<const View*, 1>&, const View&, HalfAs, Loop<1>, const Scalars&);
extern template void elementwise<2>(const std::array<const View*, 2>&, const View&, HalfAs, Loop<2>, const Scalars&);
extern template void elementwise<3>(const std::array<const View*, 3>&, const View&, HalfAs, Loop<3>, const Scalars&);

}  // namespace lockstep::kernels::host
