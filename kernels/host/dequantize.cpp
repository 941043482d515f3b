#include "lockstep/kernels/host/dequantize.h"

#include <algorithm>

#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

void dequantize_row(const QuantizedMatrix& m, std::int64_t row, float* to) {
  const auto* const bytes = static_cast<const std::uint8_t*>(m.codes) + row * m.row_bytes();
  if (!m.is_nibbles) {
    const auto* const codes = reinterpret_cast<const std::int8_t*>(bytes);
    const float scale = m.scales[row];
    for (std::int64_t k = 0; k < m.columns; ++k) to[k] = static_cast<float>(codes[k]) * scale;
    return;
  }
  for (std::int64_t g = 0; g < m.groups(); ++g) {
    const float scale = m.scales[row * m.groups() + g];
    const std::int64_t begin = g * m.group, count = std::min(m.group, m.columns - begin);
    const std::uint8_t* const from = bytes + begin / 2;
    for (std::int64_t i = 0; i < count / 2; ++i) {
      to[begin + 2 * i] = static_cast<float>(((from[i] & 15) ^ 8) - 8) * scale;
      to[begin + 2 * i + 1] = static_cast<float>(((from[i] >> 4) ^ 8) - 8) * scale;
    }
    if (count % 2 != 0) to[begin + count - 1] = static_cast<float>(((from[count / 2] & 15) ^ 8) - 8) * scale;
  }
}

void dequantize(const DequantizeArgs& args) {
  const QuantizedMatrix m = matrix_of(args.weight);
  dequantize_rows(m, 0, m.rows, args.out.view.dtype, args.out.view.data);
}

}  // namespace

QuantizedMatrix matrix_of(const QuantizedView& v) {
  return {v.codes.view.data,
          static_cast<const float*>(v.scales.view.data),
          v.scales.view.shape[0],
          v.columns,
          std::max(v.group, std::int64_t{1}),
          v.codes.view.dtype == DType::u8};
}

void dequantize_rows(const QuantizedMatrix& m, std::int64_t begin, std::int64_t end, DType dtype, void* out) {
  const std::int64_t bytes = m.columns * static_cast<std::int64_t>(sizeof(float));
  for_pieces(end - begin, piece_rows(end - begin, bytes, kPieceBytes), [&](std::int64_t first, std::int64_t last) {
    Scratch scratch;
    float* const wide = dtype == DType::f32 ? nullptr : scratch.take<float>(m.columns);
    View row{.data = nullptr, .shape = {m.columns}, .strides = {1}, .dtype = dtype, .device = {}, .present = true};
    for (std::int64_t i = first; i < last; ++i) {
      row.data = static_cast<std::byte*>(out) + i * m.columns * static_cast<std::int64_t>(size_of(dtype));
      dequantize_row(m, begin + i, wide ? wide : static_cast<float*>(row.data));
      if (dtype == DType::f64)
        std::copy_n(wide, m.columns, static_cast<double*>(row.data));
      else if (wide)
        narrow(wide, m.columns, row);
    }
  });
}

void Kernels::enqueue(const Stream& stream, const DequantizeArgs& args) {
  check_floating(DequantizeArgs::kName, args.out.view.dtype, stream);
  launch(stream, args, dequantize);
}

}  // namespace lockstep::kernels::host
