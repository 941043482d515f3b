// Arguments of the kernels for weights in 8 and 4 bits (tensor/ops/quantized_ops.h says what the numbers mean).
#pragma once

#include <cstdint>

#include "lockstep/kernels/activation.h"
#include "lockstep/kernels/view.h"

namespace lockstep {

// [N, K] numbers: codes times scales. All contiguous.
struct QuantizedView {
  // i8 [N, K]; or u8 [N, ceil(K / 2)], two's complement of 4 bits: column 2 i in the low half of byte i, 2 i + 1 in the
  // high half.
  In codes;
  In scales;                    // f32 [N, ceil(K / group)]: column k of row n is multiplied by scales[n, k / group]
  std::int64_t columns, group;  // K; of 4 bits 32, 64 or 128, of 8 bits K
};

struct DequantizeArgs {
  QuantizedView weight;
  Out out;  // [N, K], a floating dtype, contiguous
  static constexpr const char* kName = "dequantize";
  void views(auto&& f) const { f(out), f(weight.codes), f(weight.scales); }
};

// out = activation(x @ weight^T + bias). f32, f16 or bf16.
struct QuantizedMatmulArgs {
  In x;  // [M, K], contiguous
  QuantizedView weight;
  In bias;  // [N] or absent
  Out out;  // [M, N], contiguous
  Activation activation = Activation::none;
  // Each row of x is rounded to 8 bits first, by its largest element, so that products are those of integers.
  bool round_x = false;
  static constexpr const char* kName = "quantized_matmul";
  void views(auto&& f) const { f(x), f(weight.codes), f(weight.scales), f(bias), f(out); }
};

}  // namespace lockstep
