// Kernels that move or make elements without computing: where, cast, fill, arange.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/half_rows.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"

namespace lockstep::kernels::host {
namespace {

template <class T>  // Bits
void where_loop(const std::array<const void*, 3>& in, void* out, std::int64_t count, const Scalars&) {
  const auto* condition = static_cast<const bool*>(in[0]);
  const auto* x = static_cast<const T*>(in[1]);
  const auto* y = static_cast<const T*>(in[2]);
  auto* z = static_cast<T*>(out);
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const auto a = x[i].value, b = y[i].value;  // both are read, so that no branch is needed
    z[i].value = condition[i] ? a : b;
  }
}

template <class From, class To>
void cast_loop(const std::array<const void*, 1>& in, void* out, std::int64_t count, const Scalars&) {
  const auto* x = static_cast<const From*>(in[0]);
  auto* y = static_cast<To*>(out);
  if constexpr (std::is_same_v<From, To>) {
    std::memmove(y, x, static_cast<std::size_t>(count) * sizeof(To));
  } else if constexpr ((std::is_same_v<From, Half> && std::is_same_v<To, float>) ||
                       (std::is_same_v<From, float> && std::is_same_v<To, Half>)) {
    convert_row(x, y, count);
  } else {
    for (std::int64_t i = 0; i < count; ++i) y[i] = functors::convert<To>(x[i]);
  }
}

Loop<1> find_cast(DType from, DType to) {
  return dispatch(from, [to]<class From>(Type<From>) {
    return dispatch(to, []<class To>(Type<To>) -> Loop<1> { return cast_loop<From, To>; });
  });
}

template <class T>
void fill_view(const View& out, T value) {
  const LoopNest<1> nest = make_loop_nest<1>(out.shape, {&out});
  const std::int64_t size = nest.inner_size(), stride = nest.inner_stride(0);
  for_each_row(nest, [&](const std::array<std::int64_t, 1>& offsets) {
    T* row = static_cast<T*>(out.data) + offsets[0];
    if (stride == 1)
      std::fill_n(row, size, value);
    else
      for (std::int64_t i = 0; i < size; ++i) row[i * stride] = value;
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const WhereArgs& args) {
  launch(stream, args, [](const WhereArgs& a) {
    const Loop<3> loop = dispatch_size(a.out.view.dtype, []<class T>(Type<T>) -> Loop<3> { return where_loop<T>; });
    elementwise<3>({&a.condition.view, &a.x.view, &a.y.view}, a.out.view, HalfAs::bits, loop, {});
  });
}

void Kernels::enqueue(const Stream& stream, const CastArgs& args) {
  launch(stream, args, [](const CastArgs& a) {
    elementwise<1>({&a.in.view}, a.out.view, HalfAs::bits, find_cast(a.in.view.dtype, a.out.view.dtype), {});
  });
}

void Kernels::enqueue(const Stream& stream, const FillArgs& args) {
  launch(stream, args, [](const FillArgs& a) {
    dispatch(a.out.view.dtype, [&]<class T>(Type<T>) {
      if constexpr (std::is_same_v<T, std::int64_t>)
        fill_view<T>(a.out.view, a.integer);
      else
        fill_view<T>(a.out.view, functors::convert<T>(a.value));
    });
  });
}

void Kernels::enqueue(const Stream& stream, const ArangeArgs& args) {
  if (args.out.view.dtype == DType::boolean) [[unlikely]]
    fail_dtype(ArangeArgs::kName, DType::boolean, stream);
  launch(stream, args, [](const ArangeArgs& a) {
    const View& out = a.out.view;
    dispatch(out.dtype, [&]<class T>(Type<T>) {
      const std::int64_t count = out.shape[0], stride = out.strides[0];
      T* y = data<T>(a.out);
      if constexpr (std::is_same_v<T, std::int64_t>) {
        if (std::trunc(a.start) == a.start && std::trunc(a.step) == a.step) {  // exact beyond 2^53
          const auto start = static_cast<std::int64_t>(a.start), step = static_cast<std::int64_t>(a.step);
          for (std::int64_t i = 0; i < count; ++i) y[i * stride] = functors::plus(start, functors::times(i, step));
          return;
        }
      }
      for (std::int64_t i = 0; i < count; ++i)
        y[i * stride] = functors::convert<T>(a.start + static_cast<double>(i) * a.step);
    });
  });
}

}  // namespace lockstep::kernels::host
