// Batch normalisation. Statistics are two passes in double: the mean, then the squared distances from it.
#include <algorithm>
#include <cmath>

#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/norm.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/sums.h"
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

// sums[c] = the sum of term(i, c) over the elements i of channel c. Walks memory in order; where a channel has one
// element per image, the channels are what becomes vector code. `element_bytes`: that a term reads.
template <class Term>
void sum_channels(const Sizes& s, std::int64_t element_bytes, double* sums, Term&& term) {
  Scratch scratch;
  if (s.length == 1) {
    const PieceSums all(scratch, s.batch, s.channels * element_bytes, s.channels);
    for_pieces(s.batch, all.rows(), [&](std::int64_t begin, std::int64_t end) {
      double* own = all.of(begin / all.rows());
      std::fill_n(own, s.channels, 0.0);
      for (std::int64_t n = begin; n < end; ++n) {
        LOCKSTEP_INDEPENDENT
        for (std::int64_t c = 0; c < s.channels; ++c) own[c] += term(n * s.channels + c, c);
      }
    });
    std::copy_n(all.total(), s.channels, sums);
    return;
  }
  auto* planes = scratch.take<double>(s.batch * s.channels);
  for_each_plane(s, element_bytes, [&](std::int64_t plane, std::int64_t c) {
    planes[plane] = sum_of(s.length, [&, at = plane * s.length](std::int64_t i) { return term(at + i, c); });
  });
  std::fill_n(sums, s.channels, 0.0);
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t c = 0; c < s.channels; ++c) sums[c] += planes[n * s.channels + c];
}

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
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the analyzer takes x for an absent view
    sum_channels(s, sizeof(C), means, [=](std::int64_t i, std::int64_t) { return static_cast<double>(x[i]); });
    for (std::int64_t c = 0; c < s.channels; ++c) means[c] /= count;
    sum_channels(s, sizeof(C), variances, [=](std::int64_t i, std::int64_t c) {
      const double distance = x[i] - means[c];
      return distance * distance;
    });
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
  sum_channels(s, sizeof(C), sums, [=](std::int64_t i, std::int64_t) { return static_cast<double>(dy[i]); });
  sum_channels(s, 2 * sizeof(C), products, [=](std::int64_t i, std::int64_t c) {
    return static_cast<double>(dy[i]) * (static_cast<double>(x[i]) - static_cast<double>(mean[c]));
  });
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
