// Weights of 8 and 4 bits on CUDA devices, and with AVX-512, against the host.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

TEST_CASE("CUDA parity: weights in fewer bits", "[cuda][parity]") {
  NEEDS_CUDA
  for (const std::int64_t group : {0, 32, 64, 128})
    for (const std::int64_t columns : {1, 65, 200, 1030})
      for (const std::int64_t rows : {1, 7, 300}) {
        TestTensor codes(group ? DType::u8 : DType::i8, {rows, group ? (columns + 1) / 2 : columns});
        TestTensor scales(DType::f32, {rows, group ? (columns + group - 1) / group : 1});
        codes.fill([&](std::int64_t i) { return static_cast<double>(i * 40503 % 257 % 255 - (group ? 0 : 127)); });
        scales.fill_random(3, -1, 1);
        const QuantizedView weight{codes.in(), scales.in(), columns, group ? group : columns};
        for (const DType dtype : kFloatingDTypes) {
          TestTensor out(dtype, {rows, columns});
          check_parity(compare_with_host(DequantizeArgs{weight, out.out()}, {&codes, &scales, &out}),
                       cat(dtype, " group ", group, " ", rows, "x", columns));
        }
        // Of other tables than CUDA's, which makes it of two kernels.
        if (!kernels::table(parity_device()->type()).entry<QuantizedMatmulArgs>()) continue;
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
          for (const std::int64_t count : {1, 3, 8})
            for (const bool round : {false, true}) {
              TestTensor x(dtype, {count, columns}), bias(dtype, {rows}), out(dtype, {count, rows});
              x.fill_random(1, -1, 1), bias.fill_random(2, -1, 1);
              const QuantizedMatmulArgs args{
                  .x = x.in(), .weight = weight, .bias = bias.in(), .out = out.out(), .round_x = round};
              check_parity(compare_with_host(args, {&x, &codes, &scales, &bias, &out}, 4),
                           cat(dtype, " group ", group, " ", count, "x", columns, "x", rows));
            }
      }
}
