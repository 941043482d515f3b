// As in planes, rows of the source are mixed into one, which is then mixed along itself; the channels of a pixel are
// what becomes vector code.
#include "lockstep/kernels/host/resample_channels_last.h"

#include <algorithm>

#include "lockstep/kernels/host/channels_last.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/widen.h"
#include "lockstep/kernels/resample.h"

namespace lockstep::kernels::host {
namespace {

using C = float;  // in which all dtypes but f64 compute

struct Images {
  std::int64_t batch, channels, height, width;  // of the source
  std::int64_t rows, columns;                   // of the result
  const Taps<C>*row_taps, *column_taps;

  Images(Scratch& scratch, const Resample2dArgs& a) {
    const Shape& source = a.adjoint ? a.y.view.shape : a.x.view.shape;
    const Shape& result = a.adjoint ? a.x.view.shape : a.y.view.shape;
    batch = source[0], channels = source[1], height = source[2], width = source[3];
    rows = result[2], columns = result[3];
    row_taps = make(scratch, {height, rows, a.kind, a.step[0], a.align_corners});
    column_taps = make(scratch, {width, columns, a.kind, a.step[1], a.align_corners});
  }
  static const Taps<C>* make(Scratch& scratch, const ResampleAxis& axis) {
    auto* taps = scratch.take<Taps<C>>(axis.result);
    for (std::int64_t i = 0; i < axis.result; ++i) taps[i] = taps_of<C>(axis, i);
    return taps;
  }
};

// to = weight * from, or to += that. One loop for all of its uses.
[[gnu::noinline]] void mix(C weight, const C* from, std::int64_t count, bool first, C* to) {
  if (first) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] = weight * from[i];
  } else {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] += weight * from[i];
  }
}

bool same(const Taps<C>& a, const Taps<C>& b) {
  return a.first == b.first && a.count == b.count && a.weights[0] == b.weights[0] && a.weights[1] == b.weights[1];
}

// Rows [begin, end) of all results.
void forward(const Images& s, const C* x, C* y, std::int64_t begin, std::int64_t end) {
  Scratch scratch;
  const std::int64_t line = s.width * s.channels, out_line = s.columns * s.channels;
  C* mixed = scratch.take<C>(line);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t n = row / s.rows, r = row % s.rows;
    const Taps<C>& taps = s.row_taps[r];
    C* to = y + row * out_line;
    // Rows that are enlarged are often made of the same ones.
    if (row > begin && r > 0 && same(taps, s.row_taps[r - 1])) {
      std::copy_n(to - out_line, out_line, to);
      continue;
    }
    for (std::int64_t k = 0; k < taps.count; ++k)
      mix(taps.weight(k), x + (n * s.height + taps.first + k) * line, line, k == 0, mixed);
    for (std::int64_t c = 0; c < s.columns; ++c, to += s.channels) {
      const Taps<C>& t = s.column_taps[c];
      for (std::int64_t k = 0; k < t.count; ++k)
        mix(t.weight(k), mixed + (t.first + k) * s.channels, s.channels, k == 0, to);
    }
  }
}

// Channels [begin, end) of one image.
void adjoint(const Images& s, const C* dy, C* dx, std::int64_t n, std::int64_t begin, std::int64_t end) {
  Scratch scratch;
  const std::int64_t count = end - begin;
  C* spread = scratch.take<C>(s.width * count);
  C* image = dx + n * s.height * s.width * s.channels + begin;
  for (std::int64_t p = 0; p < s.height * s.width; ++p) std::fill_n(image + p * s.channels, count, C(0));
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const C* from = dy + (n * s.rows + r) * s.columns * s.channels + begin;
    std::fill_n(spread, s.width * count, C(0));
    for (std::int64_t c = 0; c < s.columns; ++c, from += s.channels) {
      const Taps<C>& t = s.column_taps[c];
      for (std::int64_t k = 0; k < t.count; ++k) mix(t.weight(k), from, count, false, spread + (t.first + k) * count);
    }
    const Taps<C>& taps = s.row_taps[r];
    for (std::int64_t k = 0; k < taps.count; ++k) {
      C* to = image + (taps.first + k) * s.width * s.channels;
      for (std::int64_t i = 0; i < s.width; ++i, to += s.channels)
        mix(taps.weight(k), spread + i * count, count, false, to);
    }
  }
}

}  // namespace

void resample_channels_last(const Resample2dArgs& a) {
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const Writer<C> y(scratch, a.y);
  const Images s(scratch, a);
  constexpr std::int64_t kElementCost = 2 * sizeof(C);
  if (a.adjoint) {
    for_channel_blocks(
        s.batch, s.channels, (s.height * s.width + s.rows * s.columns) * kElementCost,
        [&](std::int64_t n, std::int64_t begin, std::int64_t end) { adjoint(s, x, y.data(), n, begin, end); });
  } else {
    const std::int64_t rows = s.batch * s.rows,
                       read_rows = std::max<std::int64_t>(s.height / std::max<std::int64_t>(s.rows, 1), 2);
    for_pieces(rows, piece_rows(rows, s.channels * (read_rows * s.width + s.columns) * kElementCost, kPieceBytes),
               [&](std::int64_t begin, std::int64_t end) { forward(s, x, y.data(), begin, end); });
  }
  y.finish();
}

}  // namespace lockstep::kernels::host
