// Normalisation by the root of the mean square: one row after another, each of which the cache holds while it is passed
// over. Sums of f32 are in f32 for a few hundred elements, then in double.
#include <algorithm>
#include <cmath>

#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/norm.h"
#include "lockstep/kernels/host/vector.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

// Memory gets ready what will be written at `to`, while the elements come.
template <class C>
double sum_of_squares(const C* x, std::int64_t size, const C* to) {
  return sum_pieces<C>(
             size,
             [=](std::int64_t i, Vector<C>& squares, Vector<C>&) {
               __builtin_prefetch(to + i, 1);
               const Vector<C> v = load(x + i);
               squares += v * v;
             },
             [=](std::int64_t i, Two& total) {
               const auto v = static_cast<double>(x[i]);
               total.first += v * v;
             })
      .first;
}

template <class C>
void forward(const RmsNormArgs& a) {
  const std::int64_t rows = a.x.view.shape[0], size = a.x.view.shape[1];
  if (rows == 0 || size == 0) return;
  Scratch scratch;
  const C* x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const Writer<C> all_y(scratch, a.y), inv_rms(scratch, a.inv_rms);
  const std::int64_t row_bytes = 2 * size * static_cast<std::int64_t>(sizeof(C));
  for_pieces(rows, piece_rows(rows, row_bytes, kPieceBytes), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const C* row = x + r * size;
      C* y = all_y.data() + r * size;
      const double squares = sum_of_squares(row, size, static_cast<const C*>(y));
      const C scale = static_cast<C>(1 / std::sqrt(squares / static_cast<double>(size) + a.eps));
      if (inv_rms.data()) inv_rms.data()[r] = scale;
      for_each_piece<C>(0, size, size, {row}, [&](std::int64_t begin, std::int64_t end) {
        if (weight) {
          LOCKSTEP_INDEPENDENT
          for (std::int64_t i = begin; i < end; ++i) y[i] = row[i] * scale * weight[i];
        } else {
          LOCKSTEP_INDEPENDENT
          for (std::int64_t i = begin; i < end; ++i) y[i] = row[i] * scale;
        }
      });
    }
  });
  all_y.finish();
}

// What the gradient reads of a row.
template <class C>
struct Row {
  const C *dy, *x, *weight;
  C inverse;
};

// The sum of dy * weight * x over a row; adds dy * x' to the sums of the weight's gradient.
template <class C>
double sum_products(const Row<C>& r, std::int64_t size, C* products) {
  return sum_pieces<C>(
             size,
             [=](std::int64_t i, Vector<C>& sum, Vector<C>&) {
               const Vector<C> d = load(r.dy + i), v = load(r.x + i);
               sum += d * load(r.weight + i) * v;
               store(load(products + i) + d * v * r.inverse, products + i);
             },
             [=](std::int64_t i, Two& total) {
               const C d = r.dy[i], v = r.x[i], g = d * r.weight[i];
               total.first += static_cast<double>(g) * static_cast<double>(v);
               products[i] += d * v * r.inverse;
             })
      .first;
}

// With x' = x * inv_rms, g = dy * weight and the mean over a row: dx = inv_rms * (g - x' * mean(g * x')). dweight is
// the sum of dy * x'.
template <class C>
void backward(const RmsNormGradArgs& a) {
  const std::int64_t rows = a.x.view.shape[0], size = a.x.view.shape[1];
  Scratch scratch;
  const C* dy = read<C>(scratch, a.dy);
  const C* x = read<C>(scratch, a.x);
  const C* weight = read<C>(scratch, a.weight);
  const C* inv_rms = read<C>(scratch, a.inv_rms);
  const Writer<C> all_dx(scratch, a.dx), dweight(scratch, a.dweight);
  const std::int64_t row_bytes = 3 * size * static_cast<std::int64_t>(sizeof(C));
  const PieceSums sums(scratch, rows, row_bytes, size);
  if (!weight) {
    C* ones = scratch.take<C>(size);
    std::fill_n(ones, size, C(1));
    weight = ones;
  }
  for_pieces(rows, sums.rows(), [&](std::int64_t first, std::int64_t last) {
    if (size == 0) return;
    Scratch own;
    const ChannelSums<C> products(own, size, sums.of(first / sums.rows()));
    for (std::int64_t r = first; r < last; ++r) {
      const Row<C> row{dy + r * size, x + r * size, weight, inv_rms[r]};
      C* dx = all_dx.data() + r * size;
      const double inverse = static_cast<double>(row.inverse), sum = sum_products(row, size, products.few());
      const C scale = row.inverse;
      const C slope = static_cast<C>(inverse * inverse * inverse * sum / static_cast<double>(size));
      for_each_piece<C>(0, size, size, {row.dy, row.x}, [&](std::int64_t begin, std::int64_t end) {
        LOCKSTEP_INDEPENDENT
        for (std::int64_t i = begin; i < end; ++i) dx[i] = scale * row.dy[i] * row.weight[i] - row.x[i] * slope;
      });
      if ((r - first + 1) % kFewRows == 0) products.collect();
    }
    products.collect();
  });
  if (dweight.data()) std::copy_n(sums.total(), size, dweight.data());
  dweight.finish();
  all_dx.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const RmsNormArgs& args) {
  check_floating(RmsNormArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const RmsNormGradArgs& args) {
  check_floating(RmsNormGradArgs::kName, args.x.view.dtype, stream);
  dispatch_compute(args.x.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, backward<C>); });
}

}  // namespace lockstep::kernels::host
