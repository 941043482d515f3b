// Resampling as two passes for each row of the result: rows of the source are mixed into one, which is then mixed along
// itself. The adjoint takes the same steps backwards.
#include "lockstep/kernels/resample.h"

#include <algorithm>
#include <limits>

#include "lockstep/kernels/host/channels_last.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/resample_channels_last.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

template <class C>
struct Plane {
  std::int64_t planes, height, width;  // of the source
  std::int64_t rows, columns;          // of the result
  const Taps<C>*row_taps, *column_taps;
  bool copies;           // each element is one of the source
  bool doubles = false;  // along a row, each element of the source comes twice
  // The columns [0, pairs) are mixed from two neighbours each. Here they stand by kind, for vector code.
  std::int64_t pairs = 0;
  std::int32_t* firsts = nullptr;
  C* weights[2] = {};

  Plane(Scratch& scratch, const Resample2dArgs& a) {
    const Shape& source = a.adjoint ? a.y.view.shape : a.x.view.shape;
    const Shape& result = a.adjoint ? a.x.view.shape : a.y.view.shape;
    planes = source[0] * source[1];
    height = source[2], width = source[3], rows = result[2], columns = result[3];
    row_taps = make(scratch, {height, rows, a.kind, a.step[0], a.align_corners});
    column_taps = make(scratch, {width, columns, a.kind, a.step[1], a.align_corners});
    copies = a.kind == ResampleKind::nearest;
    if (copies) {
      doubles = columns == 2 * width;
      for (std::int64_t c = 0; c < columns; ++c) doubles &= column_taps[c].first == c / 2;
      return;
    }
    find_pairs(scratch);
  }
  void find_pairs(Scratch& scratch) {
    firsts = scratch.take<std::int32_t>(columns);
    for (C*& list : weights) list = scratch.take<C>(columns);
    if (width > std::numeric_limits<std::int32_t>::max()) return;
    for (; pairs < columns && column_taps[pairs].count == 2; ++pairs) {
      firsts[pairs] = static_cast<std::int32_t>(column_taps[pairs].first);
      for (std::int64_t k = 0; k < 2; ++k) weights[k][pairs] = column_taps[pairs].weight(k);
    }
  }
  static const Taps<C>* make(Scratch& scratch, const ResampleAxis& axis) {
    auto* taps = scratch.take<Taps<C>>(axis.result);
    for (std::int64_t i = 0; i < axis.result; ++i) taps[i] = taps_of<C>(axis, i);
    return taps;
  }
};

template <class C>
void mix_rows(const Taps<C>& taps, const C* source, std::int64_t width, C* mixed) {
  for (std::int64_t k = 0; k < taps.count; ++k) {
    const C weight = taps.weight(k);
    const C* row = source + (taps.first + k) * width;
    if (k == 0) {
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = 0; i < width; ++i) mixed[i] = weight * row[i];
    } else {
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = 0; i < width; ++i) mixed[i] += weight * row[i];
    }
  }
}

template <class C>
bool same(const Taps<C>& a, const Taps<C>& b) {
  return a.first == b.first && a.count == b.count && a.weights[0] == b.weights[0] && a.weights[1] == b.weights[1];
}

template <class C>
void copy_row(const Plane<C>& p, const C* from, C* to) {
  if (!p.doubles) {
    for (std::int64_t c = 0; c < p.columns; ++c) to[c] = from[p.column_taps[c].first];
    return;
  }
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < p.width; ++i) {
    const C value = from[i];
    to[2 * i] = value;
    to[2 * i + 1] = value;
  }
}

template <class C>
void forward(const Plane<C>& p, const C* x, C* y, std::int64_t begin, std::int64_t end) {
  Scratch scratch;
  C* mixed = scratch.take<C>(p.width);
  for (std::int64_t plane = begin; plane < end; ++plane)
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const Taps<C>& taps = p.row_taps[r];
      C* to = y + (plane * p.rows + r) * p.columns;
      // Rows that are enlarged are often made of the same ones.
      if (r > 0 && same(taps, p.row_taps[r - 1])) {
        std::copy_n(to - p.columns, p.columns, to);
        continue;
      }
      const C* source = x + plane * p.height * p.width;
      if (p.copies) {
        copy_row(p, source + taps.first * p.width, to);
        continue;
      }
      mix_rows(taps, source, p.width, mixed);
      LOCKSTEP_INDEPENDENT
      for (std::int64_t c = 0; c < p.pairs; ++c)
        to[c] = p.weights[0][c] * mixed[p.firsts[c]] + p.weights[1][c] * mixed[p.firsts[c] + 1];
      for (std::int64_t c = p.pairs; c < p.columns; ++c) {
        const Taps<C>& t = p.column_taps[c];
        C sum = t.weights[0] * mixed[t.first];
        for (std::int64_t k = 1; k < t.count; ++k) sum += t.weights[1] * mixed[t.first + k];
        to[c] = sum;
      }
    }
}

template <class C>
void adjoint(const Plane<C>& p, const C* dy, C* dx, std::int64_t begin, std::int64_t end) {
  Scratch scratch;
  C* spread = scratch.take<C>(p.width);
  std::fill_n(dx + begin * p.height * p.width, (end - begin) * p.height * p.width, C(0));
  for (std::int64_t plane = begin; plane < end; ++plane)
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const C* from = dy + (plane * p.rows + r) * p.columns;
      std::fill_n(spread, p.width, C(0));
      for (std::int64_t c = 0; c < p.columns; ++c) {
        const Taps<C>& t = p.column_taps[c];
        for (std::int64_t k = 0; k < t.count; ++k) spread[t.first + k] += t.weight(k) * from[c];
      }
      const Taps<C>& taps = p.row_taps[r];
      for (std::int64_t k = 0; k < taps.count; ++k) {
        const C weight = taps.weight(k);
        C* to = dx + (plane * p.height + taps.first + k) * p.width;
        LOCKSTEP_INDEPENDENT
        for (std::int64_t i = 0; i < p.width; ++i) to[i] += weight * spread[i];
      }
    }
}

template <class C>
void resample(const Resample2dArgs& a) {
  if constexpr (std::is_same_v<C, float>)
    if (is_channels_last(a.x.view, a.y.view)) return resample_channels_last(a);
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const Writer<C> y(scratch, a.y);
  const Plane<C> p(scratch, a);
  // An element is gathered or spread one by one: several times what it costs to copy it.
  const std::int64_t cost = (p.height * p.width + p.rows * p.columns) * static_cast<std::int64_t>(4 * sizeof(C));
  for_pieces(p.planes, piece_rows(p.planes, cost, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
    if (a.adjoint)
      adjoint(p, x, y.data(), begin, end);
    else
      forward(p, x, y.data(), begin, end);
  });
  y.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const Resample2dArgs& args) {
  check_floating(Resample2dArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, resample<C>); });
}

}  // namespace lockstep::kernels::host
