// Products with weights of 8 and 4 bits. A few rows read the codes themselves; for more, blocks of the weight are made
// to numbers, for the product that there is.
#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/dequantize.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/matmul.h"
#include "lockstep/kernels/host/quantized_rows.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

View part_of(const View& of, std::int64_t first, const Shape& shape, const Strides& strides) {
  View part = of;
  part.data = static_cast<std::byte*>(of.data) + first * static_cast<std::int64_t>(size_of(of.dtype));
  part.shape = shape, part.strides = strides;
  return part;
}

void multiply_codes(const QuantizedMatmulArgs& args, const QuantizedMatrix& m, std::int64_t rows) {
  Scratch scratch;
  const Loop<1> activate =
      args.activation == Activation::none ? nullptr : unary_loop(functors::unary_op(args.activation), DType::f32);
  const float* const bias = read<float>(scratch, args.bias);
  // So many rows at once that what is made of them stays small.
  constexpr std::int64_t kRows = 256;
  for (std::int64_t begin = 0; begin < rows; begin += kRows) {
    Scratch of_rows;
    const std::int64_t count = std::min(kRows, rows - begin);
    const In x{part_of(args.x.view, begin * m.columns, {count, m.columns}, {m.columns, 1})};
    const Out part{part_of(args.out.view, begin * m.rows, {count, m.rows}, {m.rows, 1})};
    const Writer<float> out(of_rows, part);
    multiply_quantized(read<float>(of_rows, x), count, m, args.round_x, out.data());
    for (std::int64_t r = 0; r < count; ++r) {
      float* const row = out.data() + r * m.rows;
      if (bias)
        for (std::int64_t j = 0; j < m.rows; ++j) row[j] += bias[j];
      if (activate) activate({row}, row, m.rows, {});
    }
    out.finish();
  }
}

// Some of the weight's rows after the other, which are columns of the result.
void multiply_blocks(const QuantizedMatmulArgs& args, const QuantizedMatrix& m, std::int64_t rows) {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 22, kUnit = 64;
  const auto size = static_cast<std::int64_t>(size_of(args.out.view.dtype));
  const std::int64_t fit = kBlockBytes / std::max<std::int64_t>(1, m.columns * size) / kUnit * kUnit;
  const std::int64_t block = std::min(std::max(fit, kUnit), m.rows);
  Scratch scratch;
  View numbers = args.out.view;
  numbers.data = scratch.take<std::byte>(block * m.columns * size);
  for (std::int64_t begin = 0; begin < m.rows; begin += block) {
    const std::int64_t count = std::min(block, m.rows - begin);
    dequantize_rows(m, begin, begin + count, numbers.dtype, numbers.data);
    MatmulArgs product{.a = {part_of(args.x.view, 0, {1, rows, m.columns}, {0, m.columns, 1})},
                       .b = {part_of(numbers, 0, {1, m.columns, count}, {0, 1, m.columns})},
                       .bias = {},
                       .out = {{part_of(args.out.view, begin, {1, rows, count}, {0, m.rows, 1})}},
                       .activation = args.activation};
    if (args.bias.view.present) product.bias = {part_of(args.bias.view, begin, {count}, {1})};
    multiply_views(product);
  }
}

void multiply(const QuantizedMatmulArgs& args) {
  constexpr std::int64_t kFewRows = 8;
  const QuantizedMatrix m = matrix_of(args.weight);
  const std::int64_t rows = args.out.view.shape[0];
  if (rows == 0 || m.rows == 0) return;
  if (rows <= kFewRows || args.round_x)
    multiply_codes(args, m, rows);
  else
    multiply_blocks(args, m, rows);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const QuantizedMatmulArgs& args) {
  const DType dtype = args.out.view.dtype;
  if (!is_floating(dtype) || dtype == DType::f64) fail_dtype(QuantizedMatmulArgs::kName, dtype, stream);
  launch(stream, args, multiply);
}

}  // namespace lockstep::kernels::host
