// Normalisation by the root of the mean square over the rows of [rows, size]. The threads of a line go over one row,
// and the sum of its squares is in double. The gradient of the weight is a fold over the rows.
#include <cmath>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"
#include "lockstep/kernels/cuda/norm.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const T* x, const T* weight, T* y, Compute<T>* inv_rms, double eps, const Lines s) {
  using C = Compute<T>;
  for_each_line(s, [&](bool inside, std::int64_t line, std::int64_t begin, int lane, int distance) {
    Parts<T, kRows, 2> parts(s, inside, lane, {x + begin, weight});
    double squares = 0;
    parts.for_each([&](std::int64_t, C v, C) { squares += static_cast<double>(v) * static_cast<double>(v); });
    squares = join_line(Add{}, squares, s, lane, distance);
    if (!inside) return;  // no barrier follows
    const C scale = static_cast<C>(1 / std::sqrt(squares / static_cast<double>(s.size) + eps));
    if (lane == 0 && inv_rms) inv_rms[line] = scale;
    parts.store(y + begin, [&](std::int64_t, C v, C w) { return weight ? v * scale * w : v * scale; });
  });
}

// With x' = x * inv_rms and g = dy * weight: dx = inv_rms * (g - x' * mean(g * x')).
template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads)
    rms_norm_grad_kernel(const T* dy, const T* x, const T* weight, const Compute<T>* inv_rms, T* dx, const Lines s) {
  using C = Compute<T>;
  for_each_line(s, [&](bool inside, std::int64_t line, std::int64_t begin, int lane, int distance) {
    Parts<T, kRows, 3> parts(s, inside, lane, {dy + begin, x + begin, weight});
    const auto gradient = [&](C d, C w) { return weight ? d * w : d; };
    double sum = 0;
    parts.for_each(
        [&](std::int64_t, C d, C v, C w) { sum += static_cast<double>(gradient(d, w)) * static_cast<double>(v); });
    sum = join_line(Add{}, sum, s, lane, distance);
    if (!inside) return;  // no barrier follows
    const double inverse = static_cast<double>(inv_rms[line]);
    const C scale = static_cast<C>(inverse);
    const C slope = static_cast<C>(inverse * inverse * inverse * sum / static_cast<double>(s.size));
    parts.store(dx + begin, [&](std::int64_t, C d, C v, C w) { return scale * gradient(d, w) - v * slope; });
  });
}

// Results are the columns: the sums of dy * x'.
template <class T>
struct WeightSums : Add {
  static constexpr int kInputs = 2;
  using Element = T;
  std::array<const T*, 2> in;  // dy, x
  const Compute<T>* inv_rms;
  T* dweight;
  Splitter by_line;  // offsets in x

  __device__ double start() const { return 0; }
  __device__ std::int64_t place(std::int64_t offset) const {
    std::int64_t ignored;
    return by_line.split(offset, &ignored);
  }
  __device__ double load(std::int64_t, std::int64_t line, std::int64_t, T dy, T x) const {
    return number(dy) * number(x) * static_cast<double>(inv_rms[line]);
  }
  __device__ void finish(std::int64_t column, std::int64_t, double total) const { dweight[column] = rounded<T>(total); }
};

template <class T>
void forward(const Stream& stream, const RmsNormArgs& a) {
  const Shape& shape = a.x.view.shape;
  if (element_count(shape) == 0) return;
  const Lines lines = Lines::held<T, 2>({shape[0], shape[1], 1}, {a.x.view.data, or_null<T>(a.weight), a.y.view.data});
  launch(stream, RmsNormArgs::kName, lines.rows ? rms_norm_kernel<T, true> : rms_norm_kernel<T, false>,
         lines.grid(sizeof(double)), data<T>(a.x), or_null<T>(a.weight), data<T>(a.y), or_null<Compute<T>>(a.inv_rms),
         a.eps, lines);
}

template <class T>
void backward(const Stream& stream, const RmsNormGradArgs& a) {
  using C = Compute<T>;
  const Shape& shape = a.x.view.shape;
  if (element_count(shape) > 0) {
    const Lines lines = Lines::held<T, 3>({shape[0], shape[1], 1},
                                          {a.dy.view.data, a.x.view.data, or_null<T>(a.weight), a.dx.view.data});
    launch(stream, RmsNormGradArgs::kName, lines.rows ? rms_norm_grad_kernel<T, true> : rms_norm_grad_kernel<T, false>,
           lines.grid(sizeof(double)), data<T>(a.dy), data<T>(a.x), or_null<T>(a.weight), data<C>(a.inv_rms),
           data<T>(a.dx), lines);
  }
  if (!a.dweight.view.present) return;
  WeightSums<T> sums;
  sums.in = {data<T>(a.dy), data<T>(a.x)};
  sums.inv_rms = data<C>(a.inv_rms), sums.dweight = data<T>(a.dweight);
  sums.by_line = Splitter(shape[1], element_count(shape));
  bool lanes_adjacent;
  FoldShape fold_shape = channel_shape<T>({shape[0], shape[1], 1}, &lanes_adjacent);
  fold_shape.packs = shape[1] % kPack<T> == 0;  // within a line
  fold(stream, RmsNormGradArgs::kName, sums, fold_shape, lanes_adjacent);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const RmsNormArgs& args) {
  check_floating(RmsNormArgs::kName, args.x.view.dtype, stream);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) { forward<T>(stream, args); });
}
void Kernels::enqueue(const Stream& stream, const RmsNormGradArgs& args) {
  check_floating(RmsNormGradArgs::kName, args.x.view.dtype, stream);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) { backward<T>(stream, args); });
}

void list_rms_norm(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(rms_norm_kernel<T, true>);
    list.add(rms_norm_kernel<T, false>);
    list.add(rms_norm_grad_kernel<T, true>);
    list.add(rms_norm_grad_kernel<T, false>);
    list_fold<WeightSums<T>>(list);
  });
}

}  // namespace lockstep::kernels::cuda
