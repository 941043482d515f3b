// What Lockstep takes from oneDNN: single-precision matrix products and convolutions. Every function returns false,
// with nothing done, where oneDNN is not the better way or not in the build; the caller then has its own.
#pragma once

#include "lockstep/kernels/common/conv.h"
#include "lockstep/kernels/host/gemm.h"

namespace lockstep::kernels::host {

// As gemm.
bool onednn_gemm(const Matrix<float>& a, const Matrix<float>& b, float* c, std::int64_t c_stride, float alpha,
                 float beta);

// Contiguous NCHW and OIHW tensors; bias may be null.
bool onednn_conv(const ConvSizes& sizes, const float* x, const float* w, const float* bias, float* y);
bool onednn_conv_grad_input(const ConvSizes& sizes, const float* dy, const float* w, float* dx);
bool onednn_conv_grad_weight(const ConvSizes& sizes, const float* dy, const float* x, float* dw);

}  // namespace lockstep::kernels::host
