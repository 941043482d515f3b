#include "lockstep/kernels/cuda/gemm.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {
namespace {

// out = beta * out + bias, which leaves a product to be added. Without bias: beta * out.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(T* out, const T* bias, const Offsets<2> offsets, Compute<T> beta) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < offsets.count; i += step) {
    const At<2> at = offsets.at(i);
    Compute<T> value = bias ? widen(bias[at.view[1]]) : Compute<T>(0);
    if (beta != Compute<T>(0)) value += beta * widen(out[at.view[0]]);  // with beta 0 it may be anything
    out[at.view[0]] = narrow<T>(value);
  }
}

void scale(const Stream& stream, const View& out, const View& bias, double beta) {
  View repeated = out;
  repeated.strides = Dims::filled(3, 0);
  if (bias.present) repeated.strides[2] = bias.strides[0];
  const Offsets<2> offsets = make_offsets<2>(out.shape, {&out, &repeated});
  dispatch_floating(out.dtype, [&]<class T>(Type<T>) {
    launch(stream, MatmulArgs::kName, scale_kernel<T>, grid_for(stream, offsets.count), static_cast<T*>(out.data),
           bias.present ? static_cast<const T*>(bias.data) : nullptr, offsets, static_cast<Compute<T>>(beta));
  });
}

void activate(const Stream& stream, const View& out, Activation activation) {
  if (activation == Activation::none) return;
  Kernels::enqueue(stream, UnaryArgs{.op = functors::unary_op(activation), .in = {out}, .out = {out}});
}

GemmMatrix matrix_of(const View& v) {
  return {v.data, v.shape[1], v.shape[2], v.strides[1], v.strides[2], v.shape[0] == 1 ? 0 : v.strides[0]};
}

// The same elements, contiguous; one copy of what a batch repeats.
View packed(const View& v, Scratch& scratch) {
  View copy = v;
  Shape shape = v.shape;
  const bool repeats = v.strides[0] == 0 && shape[0] > 1;
  if (repeats) shape[0] = 1;
  copy.strides = contiguous_strides(shape);
  if (repeats) copy.strides[0] = 0;
  copy.data = scratch.take_bytes(static_cast<std::size_t>(element_count(shape)) * size_of(v.dtype));
  return copy;
}
void copy(const Stream& stream, View from, View to) {
  if (to.strides[0] == 0) from.shape[0] = to.shape[0] = 1;
  Kernels::enqueue(stream, CastArgs{.in = {from}, .out = {to}});
}
View usable(const Stream& stream, const View& v, Scratch& scratch) {
  if (has_unit_stride(matrix_of(v))) return v;
  const View copied = packed(v, scratch);
  copy(stream, v, copied);
  return copied;
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const MatmulArgs& args) {
  const DType dtype = args.out.view.dtype;
  check_floating(MatmulArgs::kName, dtype, stream);
  const View& out = args.out.view;
  const View& bias = args.bias.view;
  if (element_count(out.shape) == 0) return;
  if (args.a.view.shape[2] == 0) {
    if (bias.present || args.beta != 1) scale(stream, out, bias, args.beta);
    return activate(stream, out, args.activation);
  }
  Scratch scratch(stream);
  const View a = usable(stream, args.a.view, scratch), b = usable(stream, args.b.view, scratch);
  // A result with gaps in both directions is computed beside it.
  const bool direct = has_unit_stride(matrix_of(out));
  const View c = direct ? out : packed(out, scratch);
  if (!direct && args.beta != 0) copy(stream, out, c);

  Gemm g{.in = dtype,
         .out = dtype,
         .a = matrix_of(a),
         .b = matrix_of(b),
         .c = matrix_of(c),
         .batches = out.shape[0],
         .alpha = args.alpha,
         .beta = args.beta};
  // One right-hand side for the whole batch: one tall product.
  if (g.batches > 1 && g.b.batch_stride == 0 && g.a.batch_stride == g.a.rows * g.a.row_stride &&
      g.c.batch_stride == g.c.rows * g.c.row_stride && g.c.column_stride == 1) {
    GemmMatrix tall_a = g.a, tall_c = g.c;
    tall_a.rows *= g.batches, tall_c.rows *= g.batches;
    if (has_unit_stride(tall_a) && has_unit_stride(tall_c)) {
      g.a = tall_a, g.c = tall_c;
      g.a.batch_stride = g.c.batch_stride = 0;
      g.batches = 1;
    }
  }
  if (bias.present) g.bias = bias.data;
  if (bias.present && !(can_add_bias(g) && (bias.strides[0] == 1 || bias.shape[0] == 1))) {
    g.bias = nullptr;
    scale(stream, c, bias, args.beta);
    g.beta = 1;
  }
  g.activation = args.activation;
  const bool fused = can_activate(g);
  if (!fused) g.activation = Activation::none;
  gemm(stream, MatmulArgs::kName, g);
  if (!fused) activate(stream, c, args.activation);
  if (!direct) copy(stream, c, out);
}

void list_matmul(KernelList& list) {
  for_floating([&]<class T>(Type<T>) { list.add(scale_kernel<T>); });
}

}  // namespace lockstep::kernels::cuda
