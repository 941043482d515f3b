// Batch normalisation. Statistics are one pass in double, of the distances from a pivot: the mean of up to
// 64 elements of the channel that come first, which is near the mean of all unless these are in some order. The error
// of the variance is that of a second pass times 1 + (pivot - mean)^2 / variance, which for k of n elements is at most
// 1 + n / k.
#include <algorithm>
#include <cmath>

#include "lockstep/kernels/host/channel_terms.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/norm.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/widen.h"
#include "lockstep/kernels/scalar_math.h"

namespace lockstep::kernels::host {
namespace {

struct Sizes {
  std::int64_t batch, channels, length;
  explicit Sizes(const Shape& x) : batch(x[0]), channels(x[1]), length(x[2]) {}
  double count() const { return static_cast<double>(batch * length); }  // elements of a channel
};

// Calls f(plane, c) for each channel c of each image, in pieces.
template <class F>
void for_each_plane(const Sizes& s, std::int64_t element_bytes, F&& f) {
  const std::int64_t planes = s.batch * s.channels;
  for_pieces(planes, piece_rows(planes, s.length * element_bytes, kPieceBytes),
             [&](std::int64_t begin, std::int64_t end) {
               std::int64_t c = begin % s.channels;
               for (std::int64_t plane = begin; plane < end; ++plane) {
                 f(plane, c);
                 if (++c == s.channels) c = 0;
               }
             });
}

// Compiled once: what is done for a channel would be unrolled and vectorised wherever it is called, which gains
// nothing.
#define LOCKSTEP_APART __attribute__((noinline))

// The two sums of term(i, c) over the elements i of a plane.
template <class Term>
LOCKSTEP_APART Two sum_plane(std::int64_t begin, std::int64_t count, std::int64_t c, const Term& term) {
  constexpr std::int64_t kRegisters = 4, kStep = kRegisters * kDoubles;
  Vector<double> first[std::size_t{kRegisters}] = {}, second[std::size_t{kRegisters}] = {};
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
#pragma GCC unroll 4
    for (std::int64_t r = 0; r < kRegisters; ++r) {
      const TwoRegisters of = term(InPlane(), begin + i + r * kDoubles, c);
      first[r] += of.first, second[r] += of.second;
    }
  Two total{add_lanes((first[0] + first[1]) + (first[2] + first[3])),
            add_lanes((second[0] + second[1]) + (second[2] + second[3]))};
  for (; i < count; ++i) {
    const Two of = term(Number(), begin + i, c);
    total.first += of.first, total.second += of.second;
  }
  return total;
}

// The two sums of term(i, c) over the elements i of each channel c. Walks memory in order; where a channel has one
// element per image, the channels are what is vector code. `element_bytes`: that a term reads.
template <class Term>
void sum_channels(const Sizes& s, std::int64_t element_bytes, double* first, double* second, const Term& term) {
  Scratch scratch;
  if (s.length == 1) {
    const PieceSums one(scratch, s.batch, s.channels * element_bytes, s.channels);
    const PieceSums two(scratch, s.batch, s.channels * element_bytes, s.channels);
    for_pieces(s.batch, one.rows(), [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t piece = begin / one.rows();
      for (const PieceSums* sums : {&one, &two}) std::fill_n(sums->of(piece), s.channels, 0.0);
      sum_rows(begin, end, s.channels, one.of(piece), two.of(piece), term);
    });
    std::copy_n(one.total(), s.channels, first);
    std::copy_n(two.total(), s.channels, second);
    return;
  }
  auto* planes = scratch.take<Two>(s.batch * s.channels);
  for_each_plane(s, element_bytes, [&](std::int64_t plane, std::int64_t c) {
    planes[plane] = sum_plane(plane * s.length, s.length, c, term);
  });
  std::fill_n(first, s.channels, 0.0), std::fill_n(second, s.channels, 0.0);
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t c = 0; c < s.channels; ++c) {
      first[c] += planes[n * s.channels + c].first;
      second[c] += planes[n * s.channels + c].second;
    }
}

// out[i] = f(i, c) for every element i of plane.
template <class C, class F>
LOCKSTEP_APART void write_plane(std::int64_t plane, std::int64_t length, std::int64_t c, C* out, const F& f) {
  const std::int64_t begin = plane * length;
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = begin; i < begin + length; ++i) out[i] = f(i, c);
}

// The same for every element of every channel c. The last rows come first: what has just been read lies in the cache.
template <class C, class F>
void for_each_element(const Sizes& s, C* out, const F& f) {
  constexpr std::int64_t kBytes = 3 * sizeof(C);
  if (s.length == 1) {
    for_pieces(s.batch, piece_rows(s.batch, s.channels * kBytes, kPieceBytes),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t n = s.batch - 1 - begin; n >= s.batch - end; --n) {
                   LOCKSTEP_INDEPENDENT
                   for (std::int64_t c = 0; c < s.channels; ++c) out[n * s.channels + c] = f(n * s.channels + c, c);
                 }
               });
    return;
  }
  for_each_plane(s, kBytes, [&](std::int64_t plane, std::int64_t c) { write_plane(plane, s.length, c, out, f); });
}

// The two sums of term(i, c) over each channel c, then finish(c), then out[i] = f(i, c). Where planes are long enough
// and there are many channels, a few channels at a time, which are in the cache when they are read
// once more. The sums have the same bits either way. `element_bytes`: that a term reads.
template <class C, class Term, class Finish, class F>
void sum_and_write(const Sizes& s, std::int64_t element_bytes, double* first, double* second, const Term& term,
                   const Finish& finish, C* out, const F& f) {
  constexpr std::int64_t kRunBytes = 4096;   // memory is read in runs of so many
  constexpr std::int64_t kLeastGroups = 32;  // for as many threads
  const std::int64_t plane_bytes = std::max<std::int64_t>(s.length * std::int64_t{sizeof(C)}, 1);
  const std::int64_t run = std::clamp<std::int64_t>(kRunBytes / plane_bytes, 1, std::max<std::int64_t>(s.channels, 1));
  const std::int64_t groups = (s.channels + run - 1) / run, group_bytes = s.batch * run * s.length * element_bytes;
  if (s.length == 1 || (groups < kLeastGroups && groups * group_bytes > kPieceBytes)) {
    sum_channels(s, element_bytes, first, second, term);
    for (std::int64_t c = 0; c < s.channels; ++c) finish(c);
    for_each_element(s, out, f);
    return;
  }
  for_pieces(groups, piece_rows(groups, group_bytes, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) {
      const std::int64_t from = group * run, to = std::min(from + run, s.channels);
      for (std::int64_t c = from; c < to; ++c) first[c] = 0, second[c] = 0;
      for (std::int64_t n = 0; n < s.batch; ++n)
        for (std::int64_t c = from; c < to; ++c) {
          const Two of = sum_plane((n * s.channels + c) * s.length, s.length, c, term);
          first[c] += of.first, second[c] += of.second;
        }
      for (std::int64_t c = from; c < to; ++c) finish(c);
      for (std::int64_t n = s.batch - 1; n >= 0; --n)
        for (std::int64_t c = from; c < to; ++c) write_plane(n * s.channels + c, s.length, c, out, f);
    }
  });
}

template <class C>
LOCKSTEP_APART void find_pivots(const Sizes& s, const C* x, double* pivots) {
  constexpr std::int64_t kElements = 64;
  const std::int64_t rows = s.length == 1 ? std::min(s.batch, kElements) : std::min<std::int64_t>(s.batch, 1);
  const std::int64_t columns = std::min(s.length, kElements);
  std::fill_n(pivots, s.channels, 0.0);
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t c = 0; c < s.channels; ++c) {
      const C* plane = x + (n * s.channels + c) * s.length;
      // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the analyzer takes x for an absent view
      for (std::int64_t i = 0; i < columns; ++i) pivots[c] += static_cast<double>(plane[i]);
    }
  for (std::int64_t c = 0; c < s.channels && rows * columns > 0; ++c) {
    pivots[c] /= static_cast<double>(rows * columns);
    if (!std::isfinite(pivots[c])) pivots[c] = 0;  // the mean of infinity is infinity, wherever it stands
  }
}

template <class C>
void forward(const BatchNormArgs& a) {
  const Sizes s(a.x.view.shape);
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const C* bias = read<C>(scratch, a.bias);
  const Writer<C> y(scratch, a.y), mean(scratch, a.mean), inv_std(scratch, a.inv_std);
  const Writer<C> running_mean(scratch, a.running_mean), running_var(scratch, a.running_var);
  C* centre = scratch.take<C>(s.channels);
  C* scale = scratch.take<C>(s.channels);
  C* shift = scratch.take<C>(s.channels);
  const auto use = [&](std::int64_t c, double average, double variance) LOCKSTEP_APART {
    double inverse = 1 / std::sqrt(variance + a.eps);
    if (inv_std.data())
      inverse = static_cast<C>(inverse);  // as the gradient has it, whose relu cuts where this one does
    centre[c] = static_cast<C>(average);
    scale[c] = static_cast<C>(weight ? inverse * weight[c] : inverse);
    shift[c] = bias ? bias[c] : C(0);
    if (mean.data()) mean.data()[c] = static_cast<C>(average);
    if (inv_std.data()) inv_std.data()[c] = static_cast<C>(inverse);
  };
  const Affine<C> affine{centre, scale, shift};
  const auto result = [=, edge = edge_of<C>(a.relu)](std::int64_t i, std::int64_t c) {
    const C before = affine(Number(), x + i, c);
    return math::select(before < edge, C(0), before);  // NaN stays
  };
  if (a.training) {
    const double count = s.count();
    auto* pivots = scratch.take<double>(s.channels);
    auto* distances = scratch.take<double>(s.channels);  // their sums
    auto* squares = scratch.take<double>(s.channels);
    find_pivots(s, x, pivots);
    const auto finish = [&](std::int64_t c) LOCKSTEP_APART {
      const double shift_of_mean = distances[c] / count, average = pivots[c] + shift_of_mean;
      // Of the distances from the mean. Squares of f64 that are too large for it give infinity, and not NaN; nothing
      // gives a variance of 0.
      double variance = squares[c];
      if (count > 0 && (!std::isinf(variance) || !std::isfinite(shift_of_mean)))
        variance -= distances[c] * shift_of_mean;
      if (running_mean.data()) {
        C& kept = running_mean.data()[c];
        kept = static_cast<C>((1 - a.momentum) * kept + a.momentum * average);
      }
      if (running_var.data()) {
        C& kept = running_var.data()[c];
        kept = static_cast<C>((1 - a.momentum) * kept + a.momentum * variance / (count - 1));
      }
      use(c, average, variance / count);
    };
    sum_and_write(s, sizeof(C), distances, squares, Distances<C>{x, pivots}, finish, y.data(), result);
    running_mean.finish();
    running_var.finish();
  } else {
    for (std::int64_t c = 0; c < s.channels; ++c) use(c, running_mean.data()[c], running_var.data()[c]);
    for_each_element(s, y.data(), result);
  }
  mean.finish();
  inv_std.finish();
  y.finish();
}

// With x' = (x - mean) * inv_std and sums over a channel:
// dbias = sum(dy), dweight = sum(dy * x'), dx = weight * inv_std * (dy - dbias / n - x' * dweight / n).
// Behind a relu, dy is that of the result, of which no more is known than x: it is computed once more.
template <class C, bool kCuts>
void backward(const BatchNormGradArgs& a) {
  const Sizes s(a.x.view.shape);
  Scratch scratch;
  const C* dy = read<C>(scratch, a.dy);
  const C* x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const C* bias = read<C>(scratch, a.bias);
  const C* mean = read<C>(scratch, a.mean);
  const C* inv_std = read<C>(scratch, a.inv_std);
  const Writer<C> dx(scratch, a.dx), dweight(scratch, a.dweight), dbias(scratch, a.dbias);
  auto* sums = scratch.take<double>(s.channels);
  auto* products = scratch.take<double>(s.channels);  // of dy and x - mean
  auto* means = scratch.take<double>(s.channels);
  C* scale = scratch.take<C>(s.channels);  // of dy, and of x in the result
  C* shift = scratch.take<C>(s.channels);
  const auto begin = [&](std::int64_t c) LOCKSTEP_APART {
    const double inverse = inv_std[c];
    means[c] = static_cast<double>(mean[c]);
    scale[c] = static_cast<C>(weight ? inverse * weight[c] : inverse);
    shift[c] = bias ? bias[c] : C(0);
  };
  for (std::int64_t c = 0; c < s.channels; ++c) begin(c);
  const Affine<C> result{mean, scale, shift};
  C* slope = scratch.take<C>(s.channels);  // of x - mean
  C* offset = scratch.take<C>(s.channels);
  const auto finish = [&](std::int64_t c) LOCKSTEP_APART {
    const double inverse = inv_std[c];
    const double factor = weight ? inverse * weight[c] : inverse;
    slope[c] = static_cast<C>(factor * inverse * inverse * products[c] / s.count());
    offset[c] = static_cast<C>(factor * sums[c] / s.count());
    if (dweight.data()) dweight.data()[c] = static_cast<C>(products[c] * inverse);
    if (dbias.data()) dbias.data()[c] = static_cast<C>(sums[c]);
  };
  const C edge = edge_of<C>(a.relu);
  sum_and_write(s, 2 * sizeof(C), sums, products, GradientProducts<C, kCuts>{dy, x, means, result, edge}, finish,
                dx.data(), [=](std::int64_t i, std::int64_t c) {
                  const C gradient = kCuts ? Number::where_above(result(Number(), x + i, c), edge, dy[i]) : dy[i];
                  return scale[c] * gradient - (x[i] - mean[c]) * slope[c] - offset[c];
                });
  dweight.finish();
  dbias.finish();
  dx.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const BatchNormArgs& args) {
  check_floating(BatchNormArgs::kName, args.x.view.dtype, stream);
  LOCKSTEP_CHECK(args.training || (args.running_mean.view.present && args.running_var.view.present),
                 "[batch_norm] expected running statistics in evaluation, got none");
  const Shape& shape = args.x.view.shape;
  LOCKSTEP_CHECK(!args.training || shape[0] * shape[2] != 1,
                 "[batch_norm] expected more than one value per channel in training, got shape ", shape);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const BatchNormGradArgs& args) {
  check_floating(BatchNormGradArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) {
    constexpr bool kAlways = std::is_same_v<C, double>;  // one kernel is small, and nobody waits for f64
    launch(stream, args, kAlways || args.relu ? backward<C, true> : backward<C, kAlways>);
  });
}

}  // namespace lockstep::kernels::host
