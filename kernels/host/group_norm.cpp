// Group and layer normalisation: one row of [channels, length] after another, each of which the cache holds while it is
// passed over. Sums of f32 are in f32 for a few hundred elements, then in double.
#include <algorithm>
#include <cmath>

#include "lockstep/kernels/host/image_group_norm.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/norm.h"
#include "lockstep/kernels/host/sums.h"
#include "lockstep/kernels/host/vector.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

struct Sizes {
  std::int64_t batch, groups, channels, length;
  explicit Sizes(const Shape& x) : batch(x[0]), groups(x[1]), channels(x[2]), length(x[3]) {}
  std::int64_t rows() const { return batch * groups; }
  std::int64_t row() const { return channels * length; }
  // Of the parameters: the first channel of a row.
  std::int64_t first_channel(std::int64_t row) const { return row % groups * channels; }
};

// The mean, and the sum of the squared distances from it. The elements come from the cache, so memory has time to get
// ready what will be written at `to`.
template <class C>
Two statistics(const C* x, std::int64_t count, const C* to) {
  const auto around = [=](C pivot) {
    return sum_pieces<C>(
        count,
        [=](std::int64_t i, Vector<C>& sum, Vector<C>& squares) {
          __builtin_prefetch(to + i, 1);
          const Vector<C> d = load(x + i) - pivot;
          sum += d;
          squares += d * d;
        },
        [=](std::int64_t i, Two& total) {
          const double d = static_cast<double>(x[i]) - static_cast<double>(pivot);
          total.first += d;
          total.second += d * d;
        });
  };
  const auto elements = static_cast<double>(count);
  const std::int64_t few = std::min<std::int64_t>(count, 16);
  const C pivot = static_cast<C>(sum(x, few) / static_cast<double>(few));
  Two sums = around(pivot);
  const double mean = static_cast<double>(pivot) + sums.first / elements;
  double squares = sums.second - sums.first * sums.first / elements;
  if (!(squares < sums.second / 64)) return {mean, squares};
  // The first elements were far outside, and little is left of the difference: once more, from the mean.
  const C centre = static_cast<C>(mean);
  sums = around(centre);
  squares = sums.second - sums.first * sums.first / elements;
  return {static_cast<double>(centre) + sums.first / elements, squares > 0 ? squares : 0};
}

template <class C>
void normalize_row(const Sizes& s, const C* x, const C* weight, const C* bias, C* y, C centre, C scale) {
  if (s.length == 1) {
    // A parameter for every element: the parameters' presence is settled outside of the loops.
    for_each_piece<C>(0, s.channels, s.row(), {x}, [&](std::int64_t begin, std::int64_t end) {
      if (weight && bias) {
        LOCKSTEP_INDEPENDENT
        for (std::int64_t i = begin; i < end; ++i) y[i] = (x[i] - centre) * scale * weight[i] + bias[i];
        return;
      }
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = begin; i < end; ++i) y[i] = (x[i] - centre) * scale;
      if (weight)
        for (std::int64_t i = begin; i < end; ++i) y[i] *= weight[i];
      if (bias)
        for (std::int64_t i = begin; i < end; ++i) y[i] += bias[i];
    });
    return;
  }
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const C slope = weight ? scale * weight[c] : scale, offset = bias ? bias[c] : C(0);
    for_each_piece<C>(c * s.length, (c + 1) * s.length, s.row(), {x}, [&](std::int64_t begin, std::int64_t end) {
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = begin; i < end; ++i) y[i] = (x[i] - centre) * slope + offset;
    });
  }
}

template <class C>
void forward(const GroupNormArgs& a) {
  const Sizes s(a.x.view.shape);
  if (s.row() == 0) return;
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const C* bias = read<C>(scratch, a.bias);
  const Writer<C> y(scratch, a.y), mean(scratch, a.mean), inv_std(scratch, a.inv_std);
  const auto count = static_cast<double>(s.row());
  const std::int64_t row_bytes = 2 * s.row() * static_cast<std::int64_t>(sizeof(C));
  for_pieces(s.rows(), piece_rows(s.rows(), row_bytes, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const C* row = x + r * s.row();
      const auto [average, squares] = statistics(row, s.row(), y.data() + r * s.row());
      const double inverse = 1 / std::sqrt(squares / count + a.eps);
      if (mean.data()) mean.data()[r] = static_cast<C>(average);
      if (inv_std.data()) inv_std.data()[r] = static_cast<C>(inverse);
      const std::int64_t c = s.first_channel(r);
      normalize_row(s, row, weight ? weight + c : nullptr, bias ? bias + c : nullptr, y.data() + r * s.row(),
                    static_cast<C>(average), static_cast<C>(inverse));
    }
  });
  y.finish();
}

// What the gradient reads of a row.
template <class C>
struct Row {
  const C *dy, *x, *weight;
  C centre, inverse;
};

// The sums of g = dy * weight and of g * (x - mean) over a row of single elements; adds dy and dy * x' to the
// channels'.
template <class C>
Two sum_elements(const Row<C>& r, std::int64_t size, C* sums, C* products) {
  return sum_pieces<C>(
      size,
      [=](std::int64_t i, Vector<C>& first, Vector<C>& second) {
        const Vector<C> d = load(r.dy + i), v = load(r.x + i) - r.centre, g = d * load(r.weight + i);
        first += g;
        second += g * v;
        store(load(sums + i) + d, sums + i);
        store(load(products + i) + d * v * r.inverse, products + i);
      },
      [=](std::int64_t i, Two& total) {
        const C d = r.dy[i], v = r.x[i] - r.centre, g = d * r.weight[i];
        total.first += static_cast<double>(g);
        total.second += static_cast<double>(g) * static_cast<double>(v);
        sums[i] += d;
        products[i] += d * v * r.inverse;
      });
}

// The same of a row whose channels have several elements.
template <class C>
Two sum_channels(const Sizes& s, const Row<C>& r, C* sums, C* products) {
  Two total;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const C* dy = r.dy + c * s.length;
    const C* x = r.x + c * s.length;
    const Two own = sum_pieces<C>(
        s.length,
        [=, centre = r.centre](std::int64_t i, Vector<C>& first, Vector<C>& second) {
          const Vector<C> d = load(dy + i);
          first += d;
          second += d * (load(x + i) - centre);
        },
        [=, centre = r.centre](std::int64_t i, Two& sum) {
          sum.first += static_cast<double>(dy[i]);
          sum.second += static_cast<double>(dy[i]) * static_cast<double>(x[i] - centre);
        });
    sums[c] += static_cast<C>(own.first);
    products[c] += static_cast<C>(own.second * static_cast<double>(r.inverse));
    total.first += static_cast<double>(r.weight[c]) * own.first;
    total.second += static_cast<double>(r.weight[c]) * own.second;
  }
  return total;
}

// With x' = (x - mean) * inv_std, g = dy * weight and means over a row: dx = inv_std * (g - mean(g) - x' * mean(g *
// x')). `ahead`: of the row that comes next.
template <class C>
void write_gradient(const Sizes& s, const Row<C>& row, const Two& sums, C* dx, std::int64_t ahead) {
  const double inverse = static_cast<double>(row.inverse), count = static_cast<double>(s.row());
  const C centre = row.centre, scale = row.inverse;
  const C offset = static_cast<C>(inverse * sums.first / count);
  const C slope = static_cast<C>(inverse * inverse * inverse * sums.second / count);
  for (std::int64_t c = 0; c < (s.length == 1 ? 1 : s.channels); ++c) {
    const std::int64_t begin = c * s.length, end = s.length == 1 ? s.row() : begin + s.length;
    for_each_piece<C>(begin, end, ahead, {row.dy, row.x}, [&](std::int64_t from, std::int64_t to) {
      if (s.length == 1) {
        LOCKSTEP_INDEPENDENT
        for (std::int64_t i = from; i < to; ++i)
          dx[i] = scale * row.dy[i] * row.weight[i] - (row.x[i] - centre) * slope - offset;
      } else {
        const C factor = scale * row.weight[c];
        LOCKSTEP_INDEPENDENT
        for (std::int64_t i = from; i < to; ++i) dx[i] = factor * row.dy[i] - (row.x[i] - centre) * slope - offset;
      }
    });
  }
}

// dweight and dbias are the sums of dy * x' and of dy. A piece has some groups of some of the batch.
template <class C>
void backward(const GroupNormGradArgs& a) {
  const Sizes s(a.x.view.shape);
  Scratch scratch;
  const C* dy = read<C>(scratch, a.dy);
  const C* x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const C* mean = read<C>(scratch, a.mean);
  const C* inv_std = read<C>(scratch, a.inv_std);
  const Writer<C> all_dx(scratch, a.dx), dweight(scratch, a.dweight), dbias(scratch, a.dbias);
  const std::int64_t channels = s.groups * s.channels, size = s.row();
  const std::int64_t row_bytes = 3 * size * static_cast<std::int64_t>(sizeof(C));
  const std::int64_t batch = size > 0 ? s.batch : 0;
  const PieceSums sums_of_dy(scratch, batch, s.groups * row_bytes, channels);
  const PieceSums sums_of_products(scratch, batch, s.groups * row_bytes, channels);
  C* ones = nullptr;
  if (!weight) std::fill_n(ones = scratch.take<C>(s.channels), s.channels, C(1));
  const std::int64_t images = std::min(sums_of_dy.rows(), batch);
  const std::int64_t groups = std::min(piece_rows(s.groups, images * row_bytes, kPieceBytes), s.groups);
  const std::int64_t parts = groups > 0 ? (s.groups + groups - 1) / groups : 0;
  const auto backward_piece = [&](std::int64_t piece, std::int64_t group) {
    const std::int64_t group_end = std::min(group + groups, s.groups), begin = piece * images;
    const std::int64_t first = group * s.channels, count = (group_end - group) * s.channels;
    Scratch own;
    const ChannelSums<C> of_dy(own, count, sums_of_dy.of(piece) + first);
    const ChannelSums<C> of_products(own, count, sums_of_products.of(piece) + first);
    for (std::int64_t n = begin; n < std::min(begin + images, batch); ++n) {
      for (std::int64_t g = group; g < group_end; ++g) {
        const std::int64_t r = n * s.groups + g, c = g * s.channels;
        const Row<C> row{dy + r * size, x + r * size, weight ? weight + c : ones, mean[r], inv_std[r]};
        C* of_channels = of_dy.few() + (c - first);
        C* products = of_products.few() + (c - first);
        const Two sums = s.length == 1 ? sum_elements(row, size, of_channels, products)
                                       : sum_channels(s, row, of_channels, products);
        write_gradient(s, row, sums, all_dx.data() + r * size, groups == 1 ? s.groups * size : size);
      }
      if ((n - begin + 1) % kFewRows == 0) of_dy.collect(), of_products.collect();
    }
    of_dy.collect(), of_products.collect();
  };
  if (batch > 0)
    for_pieces(sums_of_dy.pieces() * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) backward_piece(i / parts, i % parts * groups);
    });
  if (dweight.data()) std::copy_n(sums_of_products.total(), channels, dweight.data());
  if (dbias.data()) std::copy_n(sums_of_dy.total(), channels, dbias.data());
  dweight.finish();
  dbias.finish();
  all_dx.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const GroupNormArgs& args) {
  check_floating(GroupNormArgs::kName, args.x.view.dtype, stream);
  if (has_pixels(args.x.view)) return launch(stream, args, [](const GroupNormArgs& a) { group_norm_of_pixels(a); });
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const GroupNormGradArgs& args) {
  check_floating(GroupNormGradArgs::kName, args.x.view.dtype, stream);
  if (has_pixels(args.x.view)) return launch(stream, args, [](const GroupNormGradArgs& a) { group_norm_of_pixels(a); });
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, backward<C>); });
}

}  // namespace lockstep::kernels::host
