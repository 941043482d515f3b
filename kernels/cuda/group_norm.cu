// Group and layer normalisation of [batch, groups, channels, length]. The threads of a line go over one group: its
// statistics are one pass in double, of the distances from the first element (as exact as two passes unless that
// element is far outside). Gradients of the parameters are a fold over the channels.
#include <cmath>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"
#include "lockstep/kernels/cuda/norm.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Groups {
  Lines lines;  // one for each group of each image
  std::int64_t channels;
  Splitter by_groups, by_length;  // lines, positions in a line

  Groups(const Shape& x, const Lines& lines_)
      : lines(lines_), channels(x[2]), by_groups(x[1], x[0] * x[1]), by_length(x[3], x[2] * x[3]) {}
  template <class T>
  static Groups of(const Shape& x, std::initializer_list<const void*> data) {
    return {x, Lines::held<T, 3>({x[0] * x[1], x[2] * x[3], 1}, data)};
  }
  // Every position is a channel, as in layer normalisation: parameters lie as a line does.
  LOCKSTEP_HD bool plain() const { return by_length.size == 1; }
  // Of the parameters: the first channel of a line, and how far behind it a position of the line is.
  LOCKSTEP_HD std::int64_t first_channel(std::int64_t line) const {
    std::int64_t group;
    by_groups.split(line, &group);
    return group * channels;
  }
  LOCKSTEP_HD std::int64_t channel_of(std::int64_t position) const {
    std::int64_t ignored;
    return by_length.split(position, &ignored);
  }
};

template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads)
    group_norm_kernel(const T* x, const T* weight, const T* bias, T* y, Compute<T>* mean, Compute<T>* inv_std,
                      double eps, const Groups s) {
  using C = Compute<T>;
  for_each_line(s.lines, [&](bool inside, std::int64_t line, std::int64_t begin, int lane, int distance) {
    const std::int64_t first = s.first_channel(line);
    Parts<T, kRows, 3> parts(
        s.lines, inside, lane,
        {x + begin, s.plain() && weight ? weight + first : nullptr, s.plain() && bias ? bias + first : nullptr});
    const double pivot = inside ? number(x, begin) : 0;
    Two sums{0, 0};
    parts.for_each([&](std::int64_t, C v, C, C) {
      const double d = static_cast<double>(v) - pivot;
      sums.first += d;
      sums.second += d * d;
    });
    sums = join_line(AddTwo{}, sums, s.lines, lane, distance);
    if (!inside) return;  // no barrier follows
    const auto count = static_cast<double>(s.lines.size);
    const double shift = sums.first / count;
    double squares = sums.second - sums.first * shift;
    if (squares < 0) squares = 0;  // by rounding; NaN stays
    const double inverse = 1 / std::sqrt(squares / count + eps);
    const C centre = static_cast<C>(pivot + shift), scale = static_cast<C>(inverse);
    if (lane == 0 && mean) mean[line] = centre;
    if (lane == 0 && inv_std) inv_std[line] = scale;
    parts.store(y + begin, [&](std::int64_t i, C v, C w, C b) {
      C value = (v - centre) * scale;
      if (!s.plain() && (weight || bias)) {
        const std::int64_t c = first + s.channel_of(i);
        if (weight) w = widen(weight[c]);
        if (bias) b = widen(bias[c]);
      }
      if (weight) value *= w;
      if (bias) value += b;
      return value;
    });
  });
}

// With x' = (x - mean) * inv_std and g = dy * weight: dx = inv_std * (g - mean(g) - x' * mean(g * x')).
template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads)
    group_norm_grad_kernel(const T* dy, const T* x, const T* weight, const Compute<T>* mean, const Compute<T>* inv_std,
                           T* dx, const Groups s) {
  using C = Compute<T>;
  for_each_line(s.lines, [&](bool inside, std::int64_t line, std::int64_t begin, int lane, int distance) {
    const C centre = inside ? mean[line] : C(0);
    const std::int64_t first = s.first_channel(line);
    Parts<T, kRows, 3> parts(s.lines, inside, lane,
                             {dy + begin, x + begin, s.plain() && weight ? weight + first : nullptr});
    const auto gradient = [&](std::int64_t i, C d, C w) {
      if (!weight) return d;
      return d * (s.plain() ? w : widen(weight[first + s.channel_of(i)]));
    };
    Two sums{0, 0};
    parts.for_each([&](std::int64_t i, C d, C v, C w) {
      const double g = static_cast<double>(gradient(i, d, w));
      sums.first += g;
      sums.second += g * (static_cast<double>(v) - static_cast<double>(centre));
    });
    sums = join_line(AddTwo{}, sums, s.lines, lane, distance);
    if (!inside) return;  // no barrier follows
    const double inverse = static_cast<double>(inv_std[line]), count = static_cast<double>(s.lines.size);
    const C scale = static_cast<C>(inverse), offset = static_cast<C>(inverse * sums.first / count);
    const C slope = static_cast<C>(inverse * inverse * inverse * sums.second / count);
    parts.store(dx + begin, [&](std::int64_t i, C d, C v, C w) {
      return scale * gradient(i, d, w) - (v - centre) * slope - offset;
    });
  });
}

// Results are the channels of all groups; first: the sum of dy, second: of dy * x'.
template <class T>
struct ParameterSums : AddTwo {
  static constexpr int kInputs = 2;
  using Element = T;
  std::array<const T*, 2> in;  // dy, x
  const Compute<T>*mean, *inv_std;
  T *dweight, *dbias;
  Splitter by_line;  // offsets in x

  __device__ std::int64_t place(std::int64_t offset) const {
    std::int64_t ignored;
    return by_line.split(offset, &ignored);
  }
  __device__ Two load(std::int64_t, std::int64_t line, std::int64_t, T dy, T x) const {
    const double d = number(dy);
    return {d, d * (number(x) - static_cast<double>(mean[line])) * static_cast<double>(inv_std[line])};
  }
  __device__ void finish(std::int64_t c, std::int64_t, Two total) const {
    if (dweight) dweight[c] = rounded<T>(total.second);
    if (dbias) dbias[c] = rounded<T>(total.first);
  }
};

template <class T>
void forward(const Stream& stream, const GroupNormArgs& a) {
  using C = Compute<T>;
  const Shape& shape = a.x.view.shape;
  if (element_count(shape) == 0) return;
  const auto groups = Groups::of<T>(shape, {a.x.view.data, or_null<T>(a.weight), or_null<T>(a.bias), a.y.view.data});
  launch(stream, GroupNormArgs::kName, groups.lines.rows ? group_norm_kernel<T, true> : group_norm_kernel<T, false>,
         groups.lines.grid(sizeof(Two)), data<T>(a.x), or_null<T>(a.weight), or_null<T>(a.bias), data<T>(a.y),
         or_null<C>(a.mean), or_null<C>(a.inv_std), a.eps, groups);
}

template <class T>
void backward(const Stream& stream, const GroupNormGradArgs& a) {
  using C = Compute<T>;
  const Shape& shape = a.x.view.shape;
  if (element_count(shape) > 0) {
    const auto groups = Groups::of<T>(shape, {a.dy.view.data, a.x.view.data, or_null<T>(a.weight), a.dx.view.data});
    launch(stream, GroupNormGradArgs::kName,
           groups.lines.rows ? group_norm_grad_kernel<T, true> : group_norm_grad_kernel<T, false>,
           groups.lines.grid(sizeof(Two)), data<T>(a.dy), data<T>(a.x), or_null<T>(a.weight), data<C>(a.mean),
           data<C>(a.inv_std), data<T>(a.dx), groups);
  }
  if (!a.dweight.view.present && !a.dbias.view.present) return;
  ParameterSums<T> sums;
  sums.in = {data<T>(a.dy), data<T>(a.x)};
  sums.mean = data<C>(a.mean), sums.inv_std = data<C>(a.inv_std);
  sums.dweight = or_null<T>(a.dweight), sums.dbias = or_null<T>(a.dbias);
  sums.by_line = Splitter(shape[2] * shape[3], element_count(shape));
  bool lanes_adjacent;
  FoldShape fold_shape = channel_shape<T>({shape[0], shape[1] * shape[2], shape[3]}, &lanes_adjacent);
  fold_shape.packs &= sums.by_line.size % kPack<T> == 0;  // within a line
  fold(stream, GroupNormGradArgs::kName, sums, fold_shape, lanes_adjacent);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const GroupNormArgs& args) {
  check_floating(GroupNormArgs::kName, args.x.view.dtype, stream);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) { forward<T>(stream, args); });
}
void Kernels::enqueue(const Stream& stream, const GroupNormGradArgs& args) {
  check_floating(GroupNormGradArgs::kName, args.x.view.dtype, stream);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) { backward<T>(stream, args); });
}

void list_group_norm(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(group_norm_kernel<T, true>);
    list.add(group_norm_kernel<T, false>);
    list.add(group_norm_grad_kernel<T, true>);
    list.add(group_norm_grad_kernel<T, false>);
    list_fold<ParameterSums<T>>(list);
  });
}

}  // namespace lockstep::kernels::cuda
