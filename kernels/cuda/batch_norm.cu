// Batch normalisation. Statistics are one pass in double, of the distances from the channel's first element: as exact
// as two passes unless that element is far outside. Where it is no number, the distances are from 0.
#include <cmath>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/norm.cuh"

namespace lockstep::kernels::cuda {
namespace {

// What the elementwise pass needs, per channel.
template <class T>
struct Channels {
  Compute<T>*centre, *scale, *shift;
  Compute<T>* bias;  // of gradients behind a relu alone
};

// The result before its relu: one function, so that the gradient cuts where the result was cut.
template <class C>
__device__ C affine(C x, C centre, C scale, C shift) {
  return (x - centre) * scale + shift;
}

template <class T>
struct Parameters {
  const T *weight, *bias;
  T *running_mean, *running_var;
  Compute<T>*mean, *inv_std;
  std::int64_t length;
  double count, momentum, eps;
  Channels<T> channels;

  __device__ void finish(std::int64_t c, double average, double variance) const {
    double inverse = 1 / std::sqrt(variance + eps);
    if (inv_std) inverse = static_cast<Compute<T>>(inverse);  // as the gradient has it
    channels.centre[c] = static_cast<Compute<T>>(average);
    channels.scale[c] = static_cast<Compute<T>>(weight ? inverse * number(weight, c) : inverse);
    channels.shift[c] = bias ? widen(bias[c]) : Compute<T>(0);
    if (mean) mean[c] = static_cast<Compute<T>>(average);
    if (inv_std) inv_std[c] = static_cast<Compute<T>>(inverse);
  }
};

template <class T>
struct Statistics : AddTwo, Anywhere {
  static constexpr int kInputs = 1;
  using Element = T;
  std::array<const T*, 1> in;
  Parameters<T> p;

  // What distances are taken from. An empty batch has no first element, and statistics that are not a number.
  __device__ double pivot(std::int64_t c) const {
    const double first = p.count > 0 ? number(in[0], c * p.length) : 0;
    return std::isfinite(first) ? first : 0;
  }
  __device__ Two load(std::int64_t c, std::int64_t, std::int64_t, T x) const {
    const double distance = number(x) - pivot(c);
    return {distance, distance * distance};
  }
  __device__ void finish(std::int64_t c, std::int64_t, Two total) const {
    const double shift = total.first / p.count, average = pivot(c) + shift;
    // Of the distances from the mean; rounding may leave less than nothing. NaN stays. Squares of f64 that are too
    // large for it give infinity, and not NaN.
    double squares = total.second;
    if (p.count > 0 && (!std::isinf(squares) || !std::isfinite(shift))) squares -= total.first * shift;
    if (squares < 0) squares = 0;
    if (p.running_mean)
      p.running_mean[c] = rounded<T>((1 - p.momentum) * number(p.running_mean, c) + p.momentum * average);
    if (p.running_var)
      p.running_var[c] = rounded<T>((1 - p.momentum) * number(p.running_var, c) + p.momentum * squares / (p.count - 1));
    p.finish(c, average, squares / p.count);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) evaluation_kernel(const Parameters<T> p, std::int64_t channels) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c < channels) p.finish(c, number(p.running_mean, c), number(p.running_var, c));
}

template <class T>
struct GradSums : AddTwo, Anywhere {
  static constexpr int kInputs = 2;
  using Element = T;
  std::array<const T*, 2> in;  // dy, x
  const T *weight, *bias;
  const Compute<T>*mean, *inv_std;
  T *dweight, *dbias;
  double count;
  bool relu;
  Channels<T> channels;  // centre: offset; scale: of dy, and of x in the result; shift: slope, of x - mean

  __device__ Two load(std::int64_t c, std::int64_t, std::int64_t, T dy, T x) const {
    double d = number(dy);
    if (relu) {
      const Compute<T> scale = weight ? inv_std[c] * widen(weight[c]) : inv_std[c];
      if (affine(widen(x), mean[c], scale, bias ? widen(bias[c]) : Compute<T>(0)) <= 0) d = 0;  // NaN passes
    }
    return {d, d * (number(x) - number(mean, c))};
  }
  __device__ void finish(std::int64_t c, std::int64_t, Two total) const {
    const double inverse = number(inv_std, c);
    const double factor = weight ? inverse * number(weight, c) : inverse;
    channels.scale[c] = static_cast<Compute<T>>(factor);
    channels.shift[c] = static_cast<Compute<T>>(factor * inverse * inverse * total.second / count);
    channels.centre[c] = static_cast<Compute<T>>(factor * total.first / count);
    if (relu) channels.bias[c] = bias ? widen(bias[c]) : Compute<T>(0);
    if (dweight) dweight[c] = rounded<T>(total.second * inverse);
    if (dbias) dbias[c] = rounded<T>(total.first);
  }
};

template <class T>
__device__ T result(T x, Compute<T> centre, Compute<T> scale, Compute<T> shift, bool relu) {
  const Compute<T> y = affine(widen(x), centre, scale, shift);
  return narrow<T>(relu && y < 0 ? Compute<T>(0) : y);  // NaN stays
}

template <class T>
__device__ T gradient(T dy, T x, Compute<T> mean, Compute<T> scale, Compute<T> slope, Compute<T> offset,
                      Compute<T> bias, bool relu) {
  const Compute<T> wide = widen(x);
  const bool cut = relu && affine(wide, mean, scale, bias) <= 0;  // NaN passes
  return narrow<T>(scale * (cut ? Compute<T>(0) : widen(dy)) - (wide - mean) * slope - offset);
}

// y = (x - centre) * scale + shift, rectified if asked, or, with a dy, dx = scale * dy - (x - mean) * slope - offset,
// where dy is 0 where the relu cut. Packs lie within one channel.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(const T* x, const T* dy, const Compute<T>* mean, T* out, std::int64_t packs, const Splitter by_length,
                 const Splitter by_channels, const Channels<T> channels, bool relu) {
  using P = Pack<T, kCount>;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += step) {
    std::int64_t ignored, c;
    by_channels.split(by_length.split(i, &ignored), &c);
    const Compute<T> centre = channels.centre[c], scale = channels.scale[c], shift = channels.shift[c];
    const P from = reinterpret_cast<const P*>(x)[i];
    P to;
    if (dy) {
      const P grad = reinterpret_cast<const P*>(dy)[i];
      const Compute<T> middle = mean[c], bias = relu ? channels.bias[c] : 0;
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        to.element[k] = gradient<T>(grad.element[k], from.element[k], middle, scale, shift, centre, bias, relu);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) to.element[k] = result<T>(from.element[k], centre, scale, shift, relu);
    }
    reinterpret_cast<P*>(out)[i] = to;
  }
}

// The same of rows of channels, which channels_last images are: a pack is of neighbouring channels.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    apply_rows_kernel(const T* x, const T* dy, const Compute<T>* mean, T* out, std::int64_t packs,
                      const Splitter by_channels, const Channels<T> channels, bool relu) {
  using P = Pack<T, kCount>;
  using Coefficients = Pack<Compute<T>, kCount>;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += step) {
    std::int64_t group;
    by_channels.split(i, &group);
    const auto centre = reinterpret_cast<const Coefficients*>(channels.centre)[group];
    const auto scale = reinterpret_cast<const Coefficients*>(channels.scale)[group];
    const auto shift = reinterpret_cast<const Coefficients*>(channels.shift)[group];
    const P from = reinterpret_cast<const P*>(x)[i];
    P to;
    if (dy) {
      const P grad = reinterpret_cast<const P*>(dy)[i];
      const auto middle = reinterpret_cast<const Coefficients*>(mean)[group];
      Coefficients bias = {};
      if (relu) bias = reinterpret_cast<const Coefficients*>(channels.bias)[group];
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        to.element[k] = gradient<T>(grad.element[k], from.element[k], middle.element[k], scale.element[k],
                                    shift.element[k], centre.element[k], bias.element[k], relu);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        to.element[k] = result<T>(from.element[k], centre.element[k], scale.element[k], shift.element[k], relu);
    }
    reinterpret_cast<P*>(out)[i] = to;
  }
}

template <class T>
void apply(const Stream& stream, const char* op, const View& x, const T* dy, const Compute<T>* mean, T* out,
           const Channels<T>& channels, bool relu) {
  const std::int64_t count = element_count(x.shape), length = x.shape[2];
  if (count == 0) return;
  const auto run = [&]<int kCount>() {
    const std::int64_t packs = count / kCount;
    launch(stream, op, apply_kernel<T, kCount>, grid_for(stream, packs), static_cast<const T*>(x.data), dy, mean, out,
           packs, Splitter(length / kCount, packs), Splitter(x.shape[1], packs), channels, relu);
  };
  const auto fits = [&](int pack) {
    return length % pack == 0 && aligned_for(x.data, x.dtype, pack) && aligned_for(out, x.dtype, pack) &&
           aligned_for(dy, x.dtype, pack);
  };
  constexpr int kRow = kPack<T>;
  if (length == 1 && x.shape[1] % kRow == 0 && aligned_for(x.data, x.dtype, kRow) && aligned_for(out, x.dtype, kRow) &&
      aligned_for(dy, x.dtype, kRow) && aligned_for(mean, dtype_of<Compute<T>>(), kRow)) {
    const std::int64_t packs = count / kRow;
    return launch(stream, op, apply_rows_kernel<T, kRow>, grid_for(stream, packs), static_cast<const T*>(x.data), dy,
                  mean, out, packs, Splitter(x.shape[1] / kRow, packs), channels, relu);
  }
  if (fits(kPack<T>)) return run.template operator()<kPack<T>>();
  if constexpr (kPack<T> == 8)  // planes of 14 x 14
    if (fits(4)) return run.template operator()<4>();
  run.template operator()<1>();
}

template <class T>
Channels<T> take_channels(Scratch& scratch, std::int64_t count) {
  using C = Compute<T>;
  C* all = scratch.take<C>(4 * count);
  return {all, all + count, all + 2 * count, all + 3 * count};
}

template <class T>
void forward(const Stream& stream, const BatchNormArgs& a) {
  const Shape& shape = a.x.view.shape;
  const std::int64_t channels = shape[1];
  if (channels == 0) return;
  const auto input = [](const View& v) { return v.present ? static_cast<T*>(v.data) : nullptr; };
  const auto statistic = [](const View& v) { return v.present ? static_cast<Compute<T>*>(v.data) : nullptr; };
  Scratch scratch(stream);
  Statistics<T> s;
  s.in = {data<T>(a.x)};
  s.p = {input(a.weight.view),
         input(a.bias.view),
         input(a.running_mean.view),
         input(a.running_var.view),
         statistic(a.mean.view),
         statistic(a.inv_std.view),
         shape[2],
         static_cast<double>(shape[0] * shape[2]),
         a.momentum,
         a.eps,
         take_channels<T>(scratch, channels)};
  if (a.training) {
    bool lanes_adjacent;
    const FoldShape fold_shape = channel_shape<T>(shape, &lanes_adjacent);
    fold(stream, BatchNormArgs::kName, s, fold_shape, lanes_adjacent);
  } else {
    const Grid grid{dim3(static_cast<unsigned>((channels + kThreads - 1) / kThreads)), dim3(kThreads), 0};
    launch(stream, BatchNormArgs::kName, evaluation_kernel<T>, grid, s.p, channels);
  }
  apply<T>(stream, BatchNormArgs::kName, a.x.view, nullptr, nullptr, data<T>(a.y), s.p.channels, a.relu);
}

template <class T>
void backward(const Stream& stream, const BatchNormGradArgs& a) {
  const Shape& shape = a.x.view.shape;
  if (shape[1] == 0) return;
  const auto input = [](const View& v) { return v.present ? static_cast<T*>(v.data) : nullptr; };
  Scratch scratch(stream);
  GradSums<T> sums;
  sums.in = {data<T>(a.dy), data<T>(a.x)}, sums.weight = input(a.weight.view);
  sums.bias = input(a.bias.view), sums.relu = a.relu;
  sums.mean = data<Compute<T>>(a.mean), sums.inv_std = data<Compute<T>>(a.inv_std);
  sums.dweight = input(a.dweight.view), sums.dbias = input(a.dbias.view);
  sums.count = static_cast<double>(shape[0] * shape[2]);
  sums.channels = take_channels<T>(scratch, shape[1]);
  bool lanes_adjacent;
  const FoldShape fold_shape = channel_shape<T>(shape, &lanes_adjacent);
  fold(stream, BatchNormGradArgs::kName, sums, fold_shape, lanes_adjacent);
  apply<T>(stream, BatchNormGradArgs::kName, a.x.view, sums.in[0], sums.mean, data<T>(a.dx), sums.channels, a.relu);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const BatchNormArgs& args) {
  check_floating(BatchNormArgs::kName, args.x.view.dtype, stream);
  LOCKSTEP_CHECK(args.training || (args.running_mean.view.present && args.running_var.view.present),
                 "[batch_norm] expected running statistics in evaluation, got none");
  const Shape& shape = args.x.view.shape;
  LOCKSTEP_CHECK(!args.training || shape[0] * shape[2] != 1,
                 "[batch_norm] expected more than one value per channel in training, got shape ", shape);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) { forward<T>(stream, args); });
}
void Kernels::enqueue(const Stream& stream, const BatchNormGradArgs& args) {
  check_floating(BatchNormGradArgs::kName, args.x.view.dtype, stream);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) { backward<T>(stream, args); });
}

void list_batch_norm(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list_fold<Statistics<T>>(list);
    list_fold<GradSums<T>>(list);
    list.add(evaluation_kernel<T>);
    list.add(apply_kernel<T, kPack<T>>);
    if constexpr (kPack<T> == 8) list.add(apply_kernel<T, 4>);
    list.add(apply_kernel<T, 1>);
    list.add(apply_rows_kernel<T, kPack<T>>);
  });
}

}  // namespace lockstep::kernels::cuda
