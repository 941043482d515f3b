// Weights in fewer bits: integers and the scales that they are multiplied by. The weights are constants; gradients go
// to the input and the bias.
#pragma once

#include "lockstep/kernels/activation.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct QuantizeOptions {
  int bits = 8;  // or 4
  // Of 4 bits: how many inputs in a row of the weight have one scale: 32, 64 or 128. The last of a row may be fewer.
  std::int64_t group_size = 64;
};

// A matrix [outputs, inputs], symmetric around 0: an element is its code times its scale. Copying it copies handles.
struct LOCKSTEP_API QuantizedWeight {
  // 8 bits: i8 [outputs, inputs], from -127 to 127. 4 bits: u8 [outputs, (inputs + 1) / 2], two codes from -8 to 7
  // (two's complement) in a byte: input 2 i in its lower half, 2 i + 1 in its upper half; the half behind the last
  // input is 0.
  Tensor codes;
  // f32, 8 bits: [outputs, 1]. 4 bits: [outputs, groups], where input i belongs to group i / group_size.
  Tensor scales;
  std::int64_t inputs = 0;
  std::int64_t group_size = 0;  // of 8 bits: inputs

  int bits() const { return codes.dtype() == DType::u8 ? 4 : 8; }
  std::int64_t outputs() const { return codes.size(0); }
  Device device() const { return codes.device(); }
  std::size_t bytes() const { return codes.bytes() + scales.bytes(); }
  QuantizedWeight to(Device device) const { return {codes.to(device), scales.to(device), inputs, group_size}; }
  // [outputs, inputs]: code times scale in f32, rounded to `dtype` (floating).
  Tensor dequantize(DType dtype = DType::f32) const;
  // Throws InvalidArgument, naming `op`, for tensors that are not as described above.
  void check(const char* op) const;
};

// Of a weight [outputs, inputs] in a floating dtype, where it is. Codes are rounded to the nearest, halves to the even
// one. 8 bits: the element of a row that is furthest from 0 becomes 127 or -127. 4 bits: that of a group becomes -8,
// whatever its sign (a scale may be negative), so all 16 codes are in use; what would be 8 becomes 7. Rows and groups
// of zeros stay zeros. Throws InvalidArgument for NaN and infinity, naming the first, and for sizes and options that
// there are not. Blocks: it is computed on the CPU.
LOCKSTEP_API QuantizedWeight quantize(const Tensor& weight, const QuantizeOptions& options = {});

struct QuantizedLinearOptions {
  Activation activation = Activation::none;  // of the result
  // Rounds each row of x to 8 bits (symmetric, by its largest element) so that products are those of integers: less
  // exact, and faster where several rows are computed on the CPU. Devices without such a product compute as if it were
  // off; so does f64.
  bool int8_activations = false;
};

// x [.., inputs], floating -> activation(x @ weight^T + bias) [.., outputs] in the dtype of x, of which bias [outputs]
// is too, or absent. Up to eight rows on the CPU read the codes alone; else blocks of the weight (on other devices all
// of it) are dequantised on the way. Sums are of f32; of more than eight rows of f16 and bf16, dequantised elements
// have that dtype. Under autocast x is narrowed as by linear.
LOCKSTEP_API Tensor quantized_linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias = {},
                                     const QuantizedLinearOptions& options = {});

}  // namespace lockstep
