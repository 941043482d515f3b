// Batch normalisation. Statistics are one pass in double, of the distances from a pivot: the mean of up to
// 64 elements of the channel that come first, which is near the mean of all unless these are in some order. The error
// of the variance is that of a second pass times 1 + (pivot - mean)^2 / variance, which for k of n elements is at most
// 1 + n / k.
#include <algorithm>
#include <cmath>

#include "lockstep/kernels/host/fold.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/norm.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/widen.h"

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

constexpr std::int64_t kDoubles = kWidth<double>;

// The two sums of term(i, c) over the elements i of a plane. Terms are pairs of numbers, or of registers of them, of
// the elements from i on.
template <class Term>
Two sum_plane(std::int64_t begin, std::int64_t count, std::int64_t c, Term&& term) {
  constexpr std::int64_t kRegisters = 4, kStep = kRegisters * kDoubles;
  Vector<double> first[std::size_t{kRegisters}] = {}, second[std::size_t{kRegisters}] = {};
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
#pragma GCC unroll 4
    for (std::int64_t r = 0; r < kRegisters; ++r) {
      const auto [one, two] = term.registers(begin + i + r * kDoubles, c);
      first[r] += one, second[r] += two;
    }
  Two total{add_lanes((first[0] + first[1]) + (first[2] + first[3])),
            add_lanes((second[0] + second[1]) + (second[2] + second[3]))};
  for (; i < count; ++i) {
    const auto [one, two] = term.number(begin + i, c);
    total.first += one, total.second += two;
  }
  return total;
}

// The same of some rows of channels, added to what each channel has.
template <class Term>
void sum_rows(std::int64_t begin, std::int64_t end, std::int64_t channels, double* first, double* second, Term&& term) {
  constexpr std::int64_t kRows = 8;  // sums are taken from memory and brought back once for so many
  for (std::int64_t n = begin; n < end; n += kRows) {
    const std::int64_t stop = std::min(n + kRows, end);
    std::int64_t c = 0;
    for (; c + kDoubles <= channels; c += kDoubles) {
      Vector<double> all = load(first + c), other = load(second + c);
      for (std::int64_t row = n; row < stop; ++row) {
        const auto [one, two] = term.registers_of_row(row * channels + c, c);
        all += one, other += two;
      }
      store<double>(all, first + c);
      store<double>(other, second + c);
    }
    for (; c < channels; ++c)
      for (std::int64_t row = n; row < stop; ++row) {
        const auto [one, two] = term.number(row * channels + c, c);
        first[c] += one, second[c] += two;
      }
  }
}

// The two sums of term(i, c) over the elements i of each channel c. Walks memory in order; where a channel has one
// element per image, the channels are what is vector code. `element_bytes`: that a term reads.
template <class Term>
void sum_channels(const Sizes& s, std::int64_t element_bytes, double* first, double* second, Term&& term) {
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

struct TwoRegisters {
  Vector<double> first, second;
};

// Distances from a pivot, and their squares.
template <class C>
struct Distances {
  const C* x;
  const double* pivots;

  TwoRegisters registers(std::int64_t i, std::int64_t c) const {
    const Vector<double> distance = in_register(x + i, 0.0) - pivots[c];
    return {distance, distance * distance};
  }
  TwoRegisters registers_of_row(std::int64_t i, std::int64_t c) const {
    const Vector<double> distance = in_register(x + i, 0.0) - load(pivots + c);
    return {distance, distance * distance};
  }
  Two number(std::int64_t i, std::int64_t c) const {
    const double distance = static_cast<double>(x[i]) - pivots[c];
    return {distance, distance * distance};
  }
};

// Gradients, and their products with distances from the mean.
template <class C>
struct GradientProducts {
  const C *dy, *x;
  const double* means;

  TwoRegisters registers(std::int64_t i, std::int64_t c) const {
    const Vector<double> d = in_register(dy + i, 0.0);
    return {d, d * (in_register(x + i, 0.0) - means[c])};
  }
  TwoRegisters registers_of_row(std::int64_t i, std::int64_t c) const {
    const Vector<double> d = in_register(dy + i, 0.0);
    return {d, d * (in_register(x + i, 0.0) - load(means + c))};
  }
  Two number(std::int64_t i, std::int64_t c) const {
    const auto d = static_cast<double>(dy[i]);
    return {d, d * (static_cast<double>(x[i]) - means[c])};
  }
};

// out[i] = f(i, c) for every element i of every channel c.
template <class C, class F>
void for_each_element(const Sizes& s, C* out, F&& f) {
  constexpr std::int64_t kBytes = 3 * sizeof(C);
  if (s.length == 1) {
    for_pieces(s.batch, piece_rows(s.batch, s.channels * kBytes, kPieceBytes),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t n = begin; n < end; ++n) {
                   LOCKSTEP_INDEPENDENT
                   for (std::int64_t c = 0; c < s.channels; ++c) out[n * s.channels + c] = f(n * s.channels + c, c);
                 }
               });
    return;
  }
  for_each_plane(s, kBytes, [&](std::int64_t plane, std::int64_t c) {
    const std::int64_t begin = plane * s.length;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = begin; i < begin + s.length; ++i) out[i] = f(i, c);
  });
}

template <class C>
void find_pivots(const Sizes& s, const C* x, double* pivots) {
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
  auto* means = scratch.take<double>(s.channels);
  auto* variances = scratch.take<double>(s.channels);
  if (a.training) {
    const double count = s.count();
    auto* pivots = scratch.take<double>(s.channels);
    find_pivots(s, x, pivots);
    sum_channels(s, sizeof(C), means, variances, Distances<C>{x, pivots});
    for (std::int64_t c = 0; c < s.channels; ++c) {
      const double shift = means[c] / count;
      // Of the distances from the mean. Squares of f64 that are too large for it give infinity, and not NaN; nothing
      // gives a variance of 0.
      if (count > 0 && (!std::isinf(variances[c]) || !std::isfinite(shift))) variances[c] -= means[c] * shift;
      means[c] = pivots[c] + shift;
    }
    for (std::int64_t c = 0; c < s.channels; ++c) {
      if (running_mean.data()) {
        C& kept = running_mean.data()[c];
        kept = static_cast<C>((1 - a.momentum) * kept + a.momentum * means[c]);
      }
      if (running_var.data()) {
        C& kept = running_var.data()[c];
        kept = static_cast<C>((1 - a.momentum) * kept + a.momentum * variances[c] / (count - 1));
      }
      variances[c] /= count;
    }
    running_mean.finish();
    running_var.finish();
  } else {
    std::copy_n(running_mean.data(), s.channels, means);
    std::copy_n(running_var.data(), s.channels, variances);
  }
  C* centre = scratch.take<C>(s.channels);
  C* scale = scratch.take<C>(s.channels);
  C* shift = scratch.take<C>(s.channels);
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const double inverse = 1 / std::sqrt(variances[c] + a.eps);
    centre[c] = static_cast<C>(means[c]);
    scale[c] = static_cast<C>(weight ? inverse * weight[c] : inverse);
    shift[c] = bias ? bias[c] : C(0);
    if (mean.data()) mean.data()[c] = static_cast<C>(means[c]);
    if (inv_std.data()) inv_std.data()[c] = static_cast<C>(inverse);
  }
  mean.finish();
  inv_std.finish();
  for_each_element(s, y.data(),
                   [=](std::int64_t i, std::int64_t c) { return (x[i] - centre[c]) * scale[c] + shift[c]; });
  y.finish();
}

// With x' = (x - mean) * inv_std and sums over a channel:
// dbias = sum(dy), dweight = sum(dy * x'), dx = weight * inv_std * (dy - dbias / n - x' * dweight / n).
template <class C>
void backward(const BatchNormGradArgs& a) {
  const Sizes s(a.x.view.shape);
  Scratch scratch;
  const C* dy = read<C>(scratch, a.dy);
  const C* x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const C* mean = read<C>(scratch, a.mean);
  const C* inv_std = read<C>(scratch, a.inv_std);
  const Writer<C> dx(scratch, a.dx), dweight(scratch, a.dweight), dbias(scratch, a.dbias);
  auto* sums = scratch.take<double>(s.channels);
  auto* products = scratch.take<double>(s.channels);  // of dy and x - mean
  auto* means = scratch.take<double>(s.channels);
  for (std::int64_t c = 0; c < s.channels; ++c) means[c] = static_cast<double>(mean[c]);
  sum_channels(s, 2 * sizeof(C), sums, products, GradientProducts<C>{dy, x, means});
  C* scale = scratch.take<C>(s.channels);  // of dy
  C* slope = scratch.take<C>(s.channels);  // of x - mean
  C* offset = scratch.take<C>(s.channels);
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const double inverse = inv_std[c];
    const double factor = weight ? inverse * weight[c] : inverse;
    scale[c] = static_cast<C>(factor);
    slope[c] = static_cast<C>(factor * inverse * inverse * products[c] / s.count());
    offset[c] = static_cast<C>(factor * sums[c] / s.count());
    if (dweight.data()) dweight.data()[c] = static_cast<C>(products[c] * inverse);
    if (dbias.data()) dbias.data()[c] = static_cast<C>(sums[c]);
  }
  dweight.finish();
  dbias.finish();
  for_each_element(s, dx.data(), [=](std::int64_t i, std::int64_t c) {
    return scale[c] * dy[i] - (x[i] - mean[c]) * slope[c] - offset[c];
  });
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
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, backward<C>); });
}

}  // namespace lockstep::kernels::host
