// What Lockstep takes from oneDNN: matrix products and single-precision convolutions. Every function returns false,
// with nothing done, where oneDNN is not the better way or not in the build; the caller then has its own.
#pragma once

#include "lockstep/kernels/common/conv.h"
#include "lockstep/kernels/host/gemm.h"

namespace lockstep {
class PackedWeights;
}

namespace lockstep::kernels::host {

// As gemm.
bool onednn_gemm(const Matrix<float>& a, const Matrix<float>& b, float* c, std::int64_t c_stride, float alpha,
                 float beta);

// [batches, rows, columns] with strides in elements.
struct Stack {
  const void* data;
  DType dtype;
  std::int64_t batches, rows, columns, batch_stride, row_stride, column_stride;
};
// Whether oneDNN has products of f16 or bf16 for which this processor has instructions.
bool onednn_multiplies(DType dtype);
// out = a @ b + bias for operands of such a dtype. The sums and `bias`, [columns] of that dtype or null, are added in
// f32; `out` has that dtype, after one rounding, or is f32. Not for a k of 0.
bool onednn_matmul(const Stack& a, const Stack& b, const void* bias, const Stack& out);

// Images without gaps, contiguous or channels_last as the sizes say, and so are OIHW weights; bias may be null.
// `forms`, which may be null, keeps w in oneDNN's layout.
bool onednn_conv(const ConvSizes& sizes, const float* x, const float* w, const float* bias, float* y, bool relu,
                 PackedWeights* forms);
bool onednn_conv_grad_input(const ConvSizes& sizes, const float* dy, const float* w, float* dx);
bool onednn_conv_grad_weight(const ConvSizes& sizes, const float* dy, const float* x, float* dw);

}  // namespace lockstep::kernels::host
