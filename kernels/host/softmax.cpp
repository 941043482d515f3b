// Softmax and its logarithm over the middle of [outer, size, inner]. Both walk memory in order: rows of `size` elements
// where inner is 1, else rows of `inner` elements, with one maximum and one sum per column.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/gather.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/lines.h"
#include "lockstep/kernels/host/maximum.h"
#include "lockstep/kernels/host/powers.h"
#include "lockstep/kernels/host/streaming.h"
#include "lockstep/kernels/host/sums.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

// Of f32 by vector code, wherever it is computed: a row has the same bits beside others as alone.
template <class C>
[[gnu::always_inline]] inline double log_of_sum(double sum) {
  if constexpr (std::is_same_v<C, float>)
    return log_of_positive(sum);
  else
    return math::log(sum);
}

template <class C>
void softmax_row(const C* x, C* y, std::int64_t size, bool log) {
  const C top = maximum(x, size);
  // y holds the exponentials until their sum is known.
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < size; ++i) y[i] = math::exp_of_negative(x[i] - top);
  const double total = sum(y, size);
  if (log) {
    const C shift = static_cast<C>(log_of_sum<C>(total));
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < size; ++i) y[i] = (x[i] - top) - shift;
  } else {
    const C scale = static_cast<C>(1 / total);
    for (std::int64_t i = 0; i < size; ++i) y[i] *= scale;
  }
}

constexpr std::int64_t kShort = 32;       // elements of a row, at most, for rows to be computed side by side
constexpr std::int64_t kSideBySide = 64;  // rows

// The sums of kSideBySide rows, with the elements at one place of all rows next to each other, in the order of `sum`.
template <class C>
void sum_short_rows(const C (*x)[kSideBySide], std::int64_t size, double* sums) {
  constexpr std::int64_t kLanes = 16;
  const std::int64_t lane_count = size < kLanes ? 1 : kLanes;
  double lanes[kLanes][kSideBySide];
  for (std::int64_t lane = 0; lane < lane_count; ++lane) {
    std::fill_n(lanes[lane], kSideBySide, 0.0);
    for (std::int64_t i = lane; i < size; i += lane_count)
      for (std::int64_t r = 0; r < kSideBySide; ++r) lanes[lane][r] += static_cast<double>(x[i][r]);
  }
  for (std::int64_t width = lane_count / 2; width > 0; width /= 2)
    for (std::int64_t lane = 0; lane < width; ++lane)
      for (std::int64_t r = 0; r < kSideBySide; ++r) lanes[lane][r] += lanes[lane + width][r];
  std::copy_n(lanes[0], kSideBySide, sums);
}

// As softmax_row for each of kSideBySide rows, which are too short for vectors of their own.
template <class C>
void softmax_short_rows(const C* x, C* y, std::int64_t size, bool log) {
  C shifted[kShort][kSideBySide], e[kShort][kSideBySide], tops[kSideBySide], totals[kSideBySide];
  double sums[kSideBySide];
  const auto turn = find_mover(dtype_of<C>(), HalfAs::bits).gather;
  constexpr std::int64_t kSquare = 8;  // what it turns at once; of less, it is slower than the plain loops
  if (size >= kSquare)
    turn(x, size, 1, shifted, {size, kSideBySide});
  else
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t r = 0; r < kSideBySide; ++r) shifted[i][r] = x[r * size + i];
  std::fill_n(tops, kSideBySide, -std::numeric_limits<C>::infinity());
  for (std::int64_t i = 0; i < size; ++i)
    for (std::int64_t r = 0; r < kSideBySide; ++r) tops[r] = functors::larger(shifted[i][r], tops[r]);
  for (std::int64_t i = 0; i < size; ++i)
    for (std::int64_t r = 0; r < kSideBySide; ++r) {
      shifted[i][r] -= tops[r];
      e[i][r] = math::exp_of_negative(shifted[i][r]);
    }
  sum_short_rows(e, size, sums);
  if (log)
    for (std::int64_t r = 0; r < kSideBySide; ++r) totals[r] = static_cast<C>(log_of_sum<C>(sums[r]));
  else
    for (std::int64_t r = 0; r < kSideBySide; ++r) totals[r] = static_cast<C>(1 / sums[r]);
  const auto result = [&](std::int64_t i, std::int64_t r) {
    return log ? shifted[i][r] - totals[r] : e[i][r] * totals[r];
  };
  if (size < kSquare) {
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t r = 0; r < kSideBySide; ++r) y[r * size + i] = result(i, r);
    return;
  }
  for (std::int64_t i = 0; i < size; ++i)
    for (std::int64_t r = 0; r < kSideBySide; ++r) shifted[i][r] = result(i, r);
  turn(shifted, kSideBySide, 1, y, {kSideBySide, size});
}

// `width` columns of rows of `inner`.
template <class C>
void softmax_columns(const C* x, C* y, std::int64_t size, std::int64_t inner, std::int64_t width, bool log, C* tops,
                     double* sums) {
  std::fill_n(tops, width, -std::numeric_limits<C>::infinity());
  std::fill_n(sums, width, 0.0);
  for (std::int64_t i = 0; i < size; ++i) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j) tops[j] = functors::larger(x[i * inner + j], tops[j]);
  }
  for (std::int64_t i = 0; i < size; ++i) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j) {
      const C e = math::exp_of_negative(x[i * inner + j] - tops[j]);
      y[i * inner + j] = e;
      sums[j] += e;
    }
  }
  if (log)
    for (std::int64_t j = 0; j < width; ++j) sums[j] = log_of_sum<C>(sums[j]);
  else
    for (std::int64_t j = 0; j < width; ++j) sums[j] = 1 / sums[j];
  for (std::int64_t i = 0; i < size; ++i) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t at = i * inner + j;
      const C total = static_cast<C>(sums[j]);
      y[at] = log ? (x[at] - tops[j]) - total : y[at] * total;
    }
  }
}

template <class C>
void forward(const SoftmaxArgs& a) {
  Scratch scratch;
  const Shape& shape = a.x.view.shape;
  const std::int64_t outer = shape[0], size = shape[1], inner = shape[2];
  const C* x = read<C>(scratch, a.x);
  const Writer<C> y(scratch, a.y);
  const auto element_bytes = static_cast<std::int64_t>(sizeof(C));
  constexpr std::int64_t kMostStreamed = 2048;  // elements
  const std::int64_t row_bytes = size * element_bytes;
  const bool streamed = inner == 1 && y.data() == a.y.view.data && outgrows_caches(outer * row_bytes) &&
                        (size <= kShort ? kSideBySide * size : size) <= kMostStreamed;
  // Where memory is far, rows are computed in a block in the first-level cache, while the next ones are fetched.
  const auto rows = [&](std::int64_t o, std::int64_t end) {
    alignas(kCacheLine) C block[kMostStreamed];
    while (o < end) {
      const bool side_by_side = size <= kShort && o + kSideBySide <= end;
      const std::int64_t count = side_by_side ? kSideBySide : 1, bytes = count * row_bytes;
      const C* const from = x + o * size;
      C* const to = y.data() + o * size;
      if (streamed && o + 2 * count <= end)
        for (std::int64_t i = 0; i < count * size; i += kCacheLine / element_bytes)
          __builtin_prefetch(from + count * size + i);
      const bool whole = streamed && is_at_line(to) && bytes % kCacheLine == 0;
      (side_by_side ? softmax_short_rows<C> : softmax_row<C>)(from, whole ? block : to, size, a.log);
      if (whole)
        stream_lines(reinterpret_cast<const std::byte*>(block), reinterpret_cast<std::byte*>(to),
                     static_cast<std::size_t>(bytes));
      o += count;
    }
    if (streamed) end_streaming();
  };
  const std::int64_t line_bytes = 2 * size * static_cast<std::int64_t>(sizeof(C));
  for_lines(outer, inner, line_bytes, kSideBySide,
            [&](std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
              if (inner == 1) return rows(begin, end);
              Scratch own;
              C* tops = own.take<C>(to - from);
              auto* sums = own.take<double>(to - from);
              for (std::int64_t o = begin; o < end; ++o) {
                const std::int64_t at = o * size * inner + from;
                softmax_columns(x + at, y.data() + at, size, inner, to - from, a.log, tops, sums);
              }
            });
  y.finish();
}

// softmax: dx = y * (dy - s) with s = sum(dy * y); log: dx = dy - exp(y) * s with s = sum(dy). One number s for a row
// of size, or one for each column. Loops of their own: one that chooses between the two in each element calls exp.
template <class S>
auto at(S s, std::int64_t i) {
  if constexpr (std::is_pointer_v<S>)
    return s[i];
  else
    return s;
}
template <class C, class S>
void grad(const C* dy, const C* y, S s, C* dx, std::int64_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) dx[i] = y[i] * (dy[i] - at(s, i));
}
template <class C, class S>
void log_grad(const C* dy, const C* y, S s, C* dx, std::int64_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) dx[i] = dy[i] - math::exp(y[i]) * at(s, i);
}

template <class C>
void backward(const SoftmaxGradArgs& a) {
  Scratch scratch;
  const Shape& shape = a.y.view.shape;
  const std::int64_t outer = shape[0], size = shape[1], inner = shape[2];
  const C* all_dy = read<C>(scratch, a.dy);
  const C* all_y = read<C>(scratch, a.y);
  const Writer<C> all_dx(scratch, a.dx);
  const auto rows = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      const C* dy = all_dy + o * size;
      const C* y = all_y + o * size;
      C* dx = all_dx.data() + o * size;
      if (a.log)
        log_grad(dy, y, static_cast<C>(sum(dy, size)), dx, size);
      else
        grad(dy, y, static_cast<C>(sum_of(size, [=](std::int64_t i) { return static_cast<double>(dy[i]) * y[i]; })), dx,
             size);
    }
  };
  const auto columns = [&](std::int64_t o, std::int64_t from, std::int64_t width) {
    Scratch own;
    auto* sums = own.take<double>(width);
    const std::int64_t begin = o * size * inner + from;
    const C* dy = all_dy + begin;
    const C* y = all_y + begin;
    C* dx = all_dx.data() + begin;
    std::fill_n(sums, width, 0.0);
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t j = 0; j < width; ++j)
        sums[j] += a.log ? dy[i * inner + j] : static_cast<double>(dy[i * inner + j]) * y[i * inner + j];
    auto* rounded = own.take<C>(width);
    std::copy_n(sums, width, rounded);
    for (std::int64_t at = 0; at < size * inner; at += inner) {
      if (a.log)
        log_grad(dy + at, y + at, rounded, dx + at, width);
      else
        grad(dy + at, y + at, rounded, dx + at, width);
    }
  };
  const std::int64_t line_bytes = 3 * size * static_cast<std::int64_t>(sizeof(C));
  for_lines(outer, inner, line_bytes, 1, [&](std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
    if (inner == 1) return rows(begin, end);
    for (std::int64_t o = begin; o < end; ++o) columns(o, from, to - from);
  });
  all_dx.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const SoftmaxArgs& args) {
  check_floating(SoftmaxArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const SoftmaxGradArgs& args) {
  check_floating(SoftmaxGradArgs::kName, args.y.view.dtype, stream);
  dispatch_compute(args.y.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, backward<C>); });
}

}  // namespace lockstep::kernels::host
