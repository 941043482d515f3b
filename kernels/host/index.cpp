// Indexing. Every index is checked before the first element is written.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"

namespace lockstep::kernels::host {
namespace {

[[noreturn, gnu::noinline, gnu::cold]] void fail_index(const char* op, std::int64_t index, std::int64_t position,
                                                       std::int64_t size) {
  lockstep::detail::fail<InvalidArgument>("[", op, "] expected indices in [0, ", size, "), got ", index,
                                          " at position ", position);
}

// Positions count the elements of `index` in row-major order.
void check_indices(const char* op, const View& index, std::int64_t size) {
  const auto* data = static_cast<const std::int64_t*>(index.data);
  const std::int64_t count = element_count(index.shape);
  if (is_contiguous(index.shape, index.strides)) {
    constexpr std::int64_t kBlock = 512;
    const auto last = static_cast<std::uint64_t>(size) - 1;
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const std::int64_t end = std::min(begin + kBlock, count);
      std::uint64_t signs = 0;  // of a negative index, or of what is left of one above the last
      for (std::int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<std::uint64_t>(data[i]);
        signs |= at | (last - at);
      }
      if (signs >> 63 == 0) continue;
      for (std::int64_t i = begin; i < end; ++i)
        if (static_cast<std::uint64_t>(data[i]) >= static_cast<std::uint64_t>(size)) fail_index(op, data[i], i, size);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0, rest = i;
    for (int d = index.rank() - 1; d >= 0; --d) {
      offset += rest % index.shape[d] * index.strides[d];
      rest /= index.shape[d];
    }
    if (static_cast<std::uint64_t>(data[offset]) >= static_cast<std::uint64_t>(size))
      fail_index(op, data[offset], i, size);
  }
}

// A view with one dimension taken out: what a loop nest covers while that dimension is walked by index.
View without(const View& view, int dim, const Shape& shape) {
  View v = view;
  v.shape = shape;
  v.strides[dim] = 0;
  return v;
}

// Row-major loops over `index`, in the order of its elements, whatever the strides: additions happen in that order.
template <class F>
void for_each_in_order(const Shape& shape, const std::array<const View*, 3>& views, F&& f) {
  LoopNest<3> nest{};
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 0) return;
    nest.sizes[nest.rank] = shape[d];
    for (std::size_t v = 0; v < 3; ++v) nest.strides[nest.rank][v] = views[v]->strides[d];
    ++nest.rank;
  }
  const std::int64_t size = nest.inner_size();
  for_each_row(nest, [&](const std::array<std::int64_t, 3>& at) {
    for (std::int64_t i = 0; i < size; ++i)
      f(at[0] + i * nest.inner_stride(0), at[1] + i * nest.inner_stride(1), at[2] + i * nest.inner_stride(2));
  });
}

template <class T>
void gather_views(const GatherArgs& a) {
  const View& in = a.in.view;
  const View& index = a.index.view;
  check_indices(GatherArgs::kName, index, in.shape[a.dim]);
  const std::int64_t stride = in.strides[a.dim];
  const View rest = without(in, a.dim, index.shape);
  const T* x = data<T>(a.in);
  const auto* positions = data<std::int64_t>(a.index);
  T* y = data<T>(a.out);
  for_each_in_order(
      index.shape, {&a.out.view, &index, &rest},
      [=](std::int64_t to, std::int64_t at, std::int64_t from) { y[to] = x[from + positions[at] * stride]; });
}

template <class T>
void add_to(T& to, T value) {
  using functors::Compute;
  to = static_cast<T>(functors::plus(static_cast<Compute<T>>(to), static_cast<Compute<T>>(value)));
}

template <class T>
void scatter_add_views(const ScatterAddArgs& a) {
  const View& out = a.out.view;
  const View& index = a.index.view;
  check_indices(ScatterAddArgs::kName, index, out.shape[a.dim]);
  const std::int64_t stride = out.strides[a.dim];
  const View rest = without(out, a.dim, index.shape);
  const T* x = data<T>(a.in);
  const auto* positions = data<std::int64_t>(a.index);
  T* y = data<T>(a.out);
  for_each_in_order(index.shape, {&rest, &index, &a.in.view}, [=](std::int64_t to, std::int64_t at, std::int64_t from) {
    add_to(y[to + positions[at] * stride], x[from]);
  });
}

// The slice of `view` at one position of `dim`, and a loop nest over two such slices.
struct Slices {
  LoopNest<2> nest;  // strides: of the written view, of the read view
  Slices(const View& written, const View& read, int dim) {
    Shape shape = written.shape;
    shape[dim] = 1;
    nest = make_loop_nest<2>(shape, {&written, &read});
  }
};

// What indices that are evenly apart select, as those of flip are: the same elements as a view; false: they are not.
[[gnu::noinline]] bool select_view(const IndexSelectArgs& a) {
  const View& index = a.index.view;
  const auto* positions = data<std::int64_t>(a.index);
  const std::int64_t count = index.shape[0], stride = index.strides[0];
  if (count < 2) return false;
  const std::int64_t step = positions[stride] - positions[0];
  for (std::int64_t i = 2; i < count; ++i)
    if (positions[i * stride] - positions[(i - 1) * stride] != step) return false;
  View selected = a.in.view;
  std::int64_t& along = selected.strides[a.dim];
  selected.data = static_cast<std::byte*>(selected.data) +
                  positions[0] * along * static_cast<std::int64_t>(size_of(selected.dtype));
  selected.shape[a.dim] = count;
  along *= step;
  copy_view(selected, a.out.view);
  return true;
}

template <class T>
void index_select_views(const IndexSelectArgs& a) {
  const View& in = a.in.view;
  const View& out = a.out.view;
  const View& index = a.index.view;
  check_indices(IndexSelectArgs::kName, index, in.shape[a.dim]);
  if (select_view(a)) return;
  const Slices slices(out, in, a.dim);
  const auto* positions = data<std::int64_t>(a.index);
  const std::int64_t size = slices.nest.inner_size(), to_stride = slices.nest.inner_stride(0),
                     from_stride = slices.nest.inner_stride(1), count = index.shape[0], index_stride = index.strides[0],
                     to_along = out.strides[a.dim], from_along = in.strides[a.dim];
  // The innermost loop is over what is closer together in memory: the elements of a slice, or the slices.
  const bool by_element = size > 1 && std::abs(to_along) < std::abs(to_stride);
  for_each_row(slices.nest, [&](const std::array<std::int64_t, 2>& at) {
    for (std::int64_t j = 0; by_element && j < size; ++j) {
      T* to = data<T>(a.out) + at[0] + j * to_stride;
      const T* from = data<T>(a.in) + at[1] + j * from_stride;
      for (std::int64_t i = 0; i < count; ++i) to[i * to_along] = from[positions[i * index_stride] * from_along];
    }
    for (std::int64_t i = 0; !by_element && i < count; ++i) {
      T* to = data<T>(a.out) + at[0] + i * to_along;
      const T* from = data<T>(a.in) + at[1] + positions[i * index_stride] * from_along;
      if (to_stride == 1 && from_stride == 1)
        std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(T));
      else
        for (std::int64_t j = 0; j < size; ++j) to[j * to_stride] = from[j * from_stride];
    }
  });
}

template <class T>
void index_add_views(const IndexAddArgs& a) {
  const View& in = a.in.view;
  const View& out = a.out.view;
  const View& index = a.index.view;
  check_indices(IndexAddArgs::kName, index, out.shape[a.dim]);
  const Slices slices(out, in, a.dim);
  const auto* positions = data<std::int64_t>(a.index);
  const std::int64_t size = slices.nest.inner_size(), to_stride = slices.nest.inner_stride(0),
                     from_stride = slices.nest.inner_stride(1);
  for_each_row(slices.nest, [&](const std::array<std::int64_t, 2>& at) {
    for (std::int64_t i = 0; i < index.shape[0]; ++i) {
      T* to = data<T>(a.out) + at[0] + positions[i * index.strides[0]] * out.strides[a.dim];
      const T* from = data<T>(a.in) + at[1] + i * in.strides[a.dim];
      for (std::int64_t j = 0; j < size; ++j) add_to(to[j * to_stride], from[j * from_stride]);
    }
  });
}

template <class Args>
void check_addable(const Args& args, const Stream& stream) {
  if (args.out.view.dtype == DType::boolean) [[unlikely]]
    fail_dtype(Args::kName, DType::boolean, stream);
}

// As lockstep::dispatch without bool.
template <class F>
void dispatch_addable(DType dtype, F&& f) {
  dispatch(dtype, [&]<class T>(Type<T> type) {
    if constexpr (!std::is_same_v<T, bool>) f(type);
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const GatherArgs& args) {
  dispatch_size(args.in.view.dtype, [&]<class T>(Type<T>) { launch(stream, args, gather_views<T>); });
}
void Kernels::enqueue(const Stream& stream, const ScatterAddArgs& args) {
  check_addable(args, stream);
  dispatch_addable(args.out.view.dtype, [&]<class T>(Type<T>) { launch(stream, args, scatter_add_views<T>); });
}
void Kernels::enqueue(const Stream& stream, const IndexSelectArgs& args) {
  dispatch_size(args.in.view.dtype, [&]<class T>(Type<T>) { launch(stream, args, index_select_views<T>); });
}
void Kernels::enqueue(const Stream& stream, const IndexAddArgs& args) {
  check_addable(args, stream);
  dispatch_addable(args.out.view.dtype, [&]<class T>(Type<T>) { launch(stream, args, index_add_views<T>); });
}

}  // namespace lockstep::kernels::host
