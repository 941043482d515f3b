#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/channels_last.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/pool_channels_last.h"
#include "lockstep/kernels/host/widen.h"
#include "lockstep/kernels/host/window_rows.h"

namespace lockstep::kernels::host {
namespace {

// Calls f(plane, output row, offset in the plane of the tap that output column 0 has, output columns that have it) for
// every tap of every output row, row by row. The columns of one tap are what becomes vector code.
template <class F>
void for_each_tap(const Planes& p, const Window2d& w, std::int64_t plane, std::int64_t oh, F&& f) {
  for (int r = 0; r < w.kernel[0]; ++r) {
    const std::int64_t h = oh * w.stride[0] - w.padding[0] + std::int64_t{r} * w.dilation[0];
    if (h < 0 || h >= p.height) continue;
    for (int c = 0; c < w.kernel[1]; ++c) {
      const std::int64_t offset = std::int64_t{c} * w.dilation[1] - w.padding[1];
      f(plane * p.height * p.width, h * p.width + offset, inside(offset, w.stride[1], p.width, p.out_width));
    }
  }
}
template <class F>
void for_each_row(const Planes& p, std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t row = begin; row < end; ++row) f(row / p.out_height, row % p.out_height, row * p.out_width);
}

// Of the taps of one output row, in bytes that would take as long.
template <class C>
std::int64_t row_cost(const Planes& p, const Window2d& w) {
  return p.out_width * w.kernel[0] * w.kernel[1] * static_cast<std::int64_t>(sizeof(C));
}
// Calls f(begin, end) for pieces of all output rows, or of all planes.
template <class C, class F>
void for_row_pieces(const Planes& p, const Window2d& w, F&& f) {
  const std::int64_t rows = p.count * p.out_height;
  for_pieces(rows, piece_rows(rows, row_cost<C>(p, w), kPieceBytes), f);
}
template <class C, class F>
void for_plane_pieces(const Planes& p, const Window2d& w, F&& f) {
  for_pieces(p.count, piece_rows(p.count, p.out_height * row_cost<C>(p, w), kPieceBytes), f);
}

// Of a vector of results, the elements that exist.
template <class C>
void store_first(const Vector<C>& v, std::int64_t count, C* to) {
  if (count >= kWidth<C>) return store<C>(v, to);
  C elements[kWidth<C>];
  store<C>(v, elements);
  std::copy_n(elements, count, to);
}

template <class C>
void max_pool(const MaxPool2dArgs& a) {
  if constexpr (std::is_same_v<C, float>)
    if (is_channels_last(a.x.view, a.y.view)) return max_pool_channels_last(a);
  using Number = std::conditional_t<sizeof(C) == 4, std::int32_t, std::int64_t>;  // as wide, for as many lanes
  constexpr C kLowest = -std::numeric_limits<C>::infinity();
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const Writer<C> y(scratch, a.y);
  auto* indices = data<std::int64_t>(a.indices);
  const Planes p(a.x.view.shape, a.y.view.shape);
  const std::int64_t stride = a.window.stride[1], padded_width = whole_vectors<C>(p.out_width);
  // The first tap that is not padding: it wins even with -infinity.
  auto* first = scratch.take<Number>(padded_width);
  auto* is_padding = scratch.take<bool>(p.out_width);  // all of the window is
  std::fill_n(first, padded_width, Number(0));
  std::fill_n(is_padding, p.out_width, true);
  for (int c = a.window.kernel[1] - 1; c >= 0; --c) {
    const std::int64_t offset = std::int64_t{c} * a.window.dilation[1] - a.window.padding[1];
    const Range columns = inside(offset, stride, p.width, p.out_width);
    std::fill(first + columns.begin, first + columns.end, Number(c));
    std::fill(is_padding + columns.begin, is_padding + columns.end, false);
  }
  const bool some_padding = std::find(is_padding, is_padding + p.out_width, true) != is_padding + p.out_width;
  for_row_pieces<C>(p, a.window, [&](std::int64_t begin, std::int64_t end) {
    Scratch own;
    WindowRows<C> rows(own, p, a.window, x, kLowest);
    auto* places = own.take<std::int64_t>(padded_width);
    for_each_row(p, begin, end, [&](std::int64_t plane, std::int64_t oh, std::int64_t row) {
      const auto taps = rows.taps(plane, oh);
      for (std::int64_t i = 0; !indices && i < p.out_width; i += kWidth<C>) {
        Vector<C> best = kLowest - Vector<C>{};
        for (std::int64_t t = 0; t < taps.count; ++t) {
          const Vector<C> value = load(taps.values[t] + i);
          best = (~(value <= best) & (best == best)) ? value : best;  // see below
        }
        store_first<C>(best, p.out_width - i, y.data() + row + i);
      }
      if (!indices) return;
      for (std::int64_t i = 0; i < p.out_width; i += kWidth<C>) {
        Vector<C> best = kLowest - Vector<C>{};
        Vector<Number> winner = load(first + i), number = {};
        for (std::int64_t t = 0; t < taps.count; ++t, number += 1) {
          const Vector<C> value = load(taps.values[t] + i);
          // Not "value > best": that is false for NaN, which wins.
          const auto wins = ~(value <= best) & (best == best);
          best = wins ? value : best;
          winner = wins ? number : winner;
        }
        store_first<C>(best, p.out_width - i, y.data() + row + i);
        Number winners[kWidth<C>];
        store<Number>(winner, winners);
        for (std::int64_t j = 0; j < kWidth<C>; ++j) places[i + j] = taps.offsets[winners[j]] + (i + j) * stride;
      }
      std::copy_n(places, p.out_width, indices + row);
      for (std::int64_t i = 0; some_padding && i < p.out_width; ++i)
        if (is_padding[i]) indices[row + i] = 0;
      if (taps.count == 0) std::fill_n(indices + row, p.out_width, 0);
    });
  });
  y.finish();
}

template <class T>
void max_unpool(const MaxUnpool2dArgs& a) {
  const Shape& in = a.in.view.shape;
  const Shape& out = a.out.view.shape;
  const std::int64_t planes = in[0] * in[1], plane = in[2] * in[3], out_plane = out[2] * out[3];
  const auto* indices = data<std::int64_t>(a.indices);
  const std::int64_t rows = piece_rows(
      planes, (plane + out_plane) * static_cast<std::int64_t>(sizeof(T) + sizeof(std::int64_t)), kPieceBytes);
  for_pieces(planes, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * plane; i < end * plane; ++i)
      LOCKSTEP_CHECK(indices[i] >= 0 && indices[i] < out_plane, "[max_unpool2d] expected indices in [0, ", out_plane,
                     "), got ", indices[i], " at position ", i);
  });
  if constexpr (!std::is_same_v<T, double>)
    if (is_channels_last(a.in.view, a.out.view)) return max_unpool_channels_last<T>(a);
  const T* x = data<T>(a.in);
  T* y = data<T>(a.out);
  for_pieces(planes, rows, [&](std::int64_t begin, std::int64_t end) {
    std::fill_n(y + begin * out_plane, (end - begin) * out_plane, T(0));
    for (std::int64_t p = begin; p < end; ++p)
      for (std::int64_t i = p * plane; i < (p + 1) * plane; ++i) {
        T& to = y[p * out_plane + indices[i]];
        to = static_cast<T>(to + x[i]);
      }
  });
}

// What the sums of one row of windows are multiplied with, in whole vectors.
template <class C>
class Shares {
 public:
  Shares(Scratch& scratch, const Planes& p, const Window2d& window, const PoolMean& mean)
      : p_(p),
        window_(window),
        mean_(mean),
        width_(whole_vectors<C>(p.out_width)),
        columns_(scratch.take<std::int64_t>(width_)),
        data_(scratch.take<C>(width_)) {
    if (mean.divisor != 0) std::fill_n(data_, width_, C(1) / static_cast<C>(mean.divisor));
    for (std::int64_t i = 0; i < width_; ++i)
      columns_[i] = functors::window_elements(window_, mean_.padding, 1, i, p_.width);
  }
  const C* of_row(std::int64_t oh) {
    if (mean_.divisor != 0) return data_;
    const std::int64_t rows = functors::window_elements(window_, mean_.padding, 0, oh, p_.height);
    if (std::exchange(rows_, rows) != rows)
      for (std::int64_t i = 0; i < width_; ++i) data_[i] = C(1) / static_cast<C>(rows * columns_[i]);
    return data_;
  }

 private:
  const Planes& p_;
  const Window2d& window_;
  const PoolMean& mean_;
  std::int64_t width_;
  std::int64_t* columns_;  // of each window
  std::int64_t rows_ = 0;  // of the windows that the shares are for
  C* data_;
};

template <class C>
void avg_pool(const AvgPool2dArgs& a) {
  if constexpr (std::is_same_v<C, float>)
    if (is_channels_last(a.x.view, a.y.view)) return avg_pool_channels_last(a);
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const Writer<C> y(scratch, a.y);
  const Planes p(a.x.view.shape, a.y.view.shape);
  for_row_pieces<C>(p, a.window, [&](std::int64_t begin, std::int64_t end) {
    Scratch own;
    Shares<C> shares(own, p, a.window, a.mean);
    WindowRows<C> rows(own, p, a.window, x, C(0));
    for_each_row(p, begin, end, [&](std::int64_t plane, std::int64_t oh, std::int64_t row) {
      const C* share = shares.of_row(oh);
      const auto taps = rows.taps(plane, oh);
      for (std::int64_t i = 0; i < p.out_width; i += kWidth<C>) {
        Vector<C> sum = {};
        for (std::int64_t t = 0; t < taps.count; ++t) sum += load(taps.values[t] + i);
        store_first<C>(sum * load(share + i), p.out_width - i, y.data() + row + i);
      }
    });
  });
  y.finish();
}

template <class C>
void avg_pool_grad(const AvgPool2dGradArgs& a) {
  if constexpr (std::is_same_v<C, float>)
    if (is_channels_last(a.dy.view, a.dx.view)) return avg_pool_grad_channels_last(a);
  Scratch scratch;
  const C* dy = read<C>(scratch, a.dy);
  const Writer<C> dx(scratch, a.dx);
  const Planes p(a.dx.view.shape, a.dy.view.shape);
  const std::int64_t stride = a.window.stride[1];
  for_plane_pieces<C>(p, a.window, [&](std::int64_t begin, std::int64_t end) {
    Scratch own;
    Shares<C> shares(own, p, a.window, a.mean);
    const std::int64_t plane_elements = p.height * p.width;
    std::fill_n(dx.data() + begin * plane_elements, (end - begin) * plane_elements, C(0));
    for_each_row(p, begin * p.out_height, end * p.out_height,
                 [&](std::int64_t plane, std::int64_t oh, std::int64_t row) {
                   const C* share = shares.of_row(oh);
                   for_each_tap(p, a.window, plane, oh, [&](std::int64_t base, std::int64_t offset, Range columns) {
                     C* to = dx.data() + base + offset;
                     LOCKSTEP_INDEPENDENT
                     for (std::int64_t i = columns.begin; i < columns.end; ++i)
                       to[i * stride] += dy[row + i] * share[i];
                   });
                 });
  });
  dx.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const MaxPool2dArgs& args) {
  check_floating(MaxPool2dArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, max_pool<C>); });
}
void Kernels::enqueue(const Stream& stream, const MaxUnpool2dArgs& args) {
  check_floating(MaxUnpool2dArgs::kName, args.in.view.dtype, stream);
  dispatch_floating(args.in.view.dtype, [&]<class T>(Type<T>) { launch(stream, args, max_unpool<T>); });
}
void Kernels::enqueue(const Stream& stream, const AvgPool2dArgs& args) {
  check_floating(AvgPool2dArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, avg_pool<C>); });
}
void Kernels::enqueue(const Stream& stream, const AvgPool2dGradArgs& args) {
  check_floating(AvgPool2dGradArgs::kName, args.dy.view.dtype, stream);
  dispatch_compute(args.dy.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, avg_pool_grad<C>); });
}

}  // namespace lockstep::kernels::host
