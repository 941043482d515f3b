// Matrix products on a device, by cuBLASLt.
#pragma once

#include <cstdint>

#include "lockstep/kernels/activation.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::kernels::cuda {

// [batches][rows][columns], strides in elements. A batch stride of 0 repeats one matrix.
struct GemmMatrix {
  void* data = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0, column_stride = 1, batch_stride = 0;

  GemmMatrix transposed() const { return {data, columns, rows, column_stride, row_stride, batch_stride}; }
};

struct Gemm {
  DType in;   // of a and b
  DType out;  // `in`, or f32 for f16 and bf16
  GemmMatrix a, b, c;
  std::int64_t batches = 1;
  double alpha = 1, beta = 0;
  const void* bias = nullptr;                // contiguous, one element per column, or none; see can_add_bias
  Activation activation = Activation::none;  // see can_activate
};

// Whether cuBLASLt can read or write the matrix as it lies: one of the strides is 1, the other one spans a row.
bool has_unit_stride(const GemmMatrix& matrix);
// Whether its products can add the bias, and apply the activation, before they are stored. Neither in f64; and of the
// activations only its GELU, which is the one by tanh.
bool can_add_bias(const Gemm& gemm);
bool can_activate(const Gemm& gemm);

// Whether f32 may go through tensor cores as TF32: LOCKSTEP_TF32=1.
bool tf32_allowed();

// c = activation(alpha * a @ b + beta * c + bias); with beta 0 c is not read. Matrices have unit strides, no size is 0.
// Sums accumulate in f32 (f64 for f64); TF32 only where tf32_allowed. Where cuBLASLt knows no algorithm it is
// asked for less: without the bias and the activation, which are kernels then; for memory that is aligned as its
// elements are; with parts of a sum added in the type of c. Throws NotSupported when it knows none at all.
void gemm(const Stream& stream, const char* op, const Gemm& gemm);

// The handle of the device and its largest workspace. Nothing without cuBLASLt: the first product says what is missing.
void prepare_gemm(Device device);
// How many handles and descriptions of cuBLASLt the device has: they are kept for the products to come.
int retained_handles(Device device);

}  // namespace lockstep::kernels::cuda
