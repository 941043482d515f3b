// Indexing. No element is read or written by an index that is out of range. index_select and index_add check all of
// them before the first element is written. gather and scatter_add, whose indices are as many as their elements, check
// those of a row, or of a part of a long one, before it: to read them twice from memory would take as long as to
// gather. After an error their output is undefined.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {
namespace {

[[noreturn, gnu::noinline, gnu::cold]] void fail_index(const char* op, std::int64_t index, std::int64_t position,
                                                       std::int64_t size) {
  lockstep::detail::fail<InvalidArgument>("[", op, "] expected indices in [0, ", size, "), got ", index,
                                          " at position ", position);
}

bool all_within(const std::int64_t* index, std::int64_t stride, std::int64_t count, std::int64_t size) {
  const auto last = static_cast<std::uint64_t>(size) - 1;
  std::uint64_t signs = 0;  // of a negative index, or of what is left of one above the last
  const auto add = [&](std::int64_t i) {
    const auto at = static_cast<std::uint64_t>(index[i]);
    signs |= at | (last - at);
  };
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) add(i);
  else
    for (std::int64_t i = 0; i < count; ++i) add(i * stride);
  return signs >> 63 == 0;
}

// Throws for the first index that is out of range, if there is one. Positions count the elements of `index` in
// row-major order.
[[gnu::noinline]] void check_indices(const char* op, const View& index, std::int64_t size) {
  const auto* data = static_cast<const std::int64_t*>(index.data);
  const std::int64_t count = element_count(index.shape);
  if (index.rank() == 1 && all_within(data, index.strides[0], count, size)) return;
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

View narrowed(View view, int dim, std::int64_t begin, std::int64_t end) {
  view.data =
      static_cast<std::byte*>(view.data) + begin * view.strides[dim] * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape[dim] = end - begin;
  return view;
}

// Calls f(dim, begin, end) for parts that make up `shape`: along the outermost dimension that has enough for many, else
// the largest, but not along `whole` (-1: any will do). dim is -1 where there is one part. An index and an element that
// is moved cost `element_bytes`.
template <class F>
void in_parts(const Shape& shape, int whole, std::int64_t element_bytes, F&& f) {
  constexpr std::int64_t kEnough = 16, kColumns = 32;  // narrower ones share cache lines
  const std::int64_t bytes = element_count(shape) * element_bytes;
  int dim = -1;
  if (bytes >= 2 * kPieceBytes && !lockstep::detail::computes_alone())
    for (int d = 0; d < shape.rank() && (dim < 0 || shape[dim] < kEnough); ++d)
      if (d != whole && (dim < 0 || shape[d] > shape[dim])) dim = d;
  if (dim < 0) return f(dim, std::int64_t{0}, std::int64_t{0});
  std::int64_t rows = piece_rows(shape[dim], bytes / shape[dim], kPieceBytes);
  if (dim == shape.rank() - 1) rows = (rows + kColumns - 1) / kColumns * kColumns;
  for_pieces(shape[dim], rows, [&](std::int64_t begin, std::int64_t end) { f(dim, begin, end); });
}

// A view with one dimension taken out: what a loop nest covers while that dimension is walked by index.
View without(const View& view, int dim, const Shape& shape) {
  View v = view;
  v.shape = shape;
  v.strides[dim] = 0;
  return v;
}

// Calls f(offsets, count, strides) for the rows of three views of one shape, or for parts of long ones, in row-major
// order whatever the strides: additions happen in that order.
template <class F>
void for_each_row_in_order(const Shape& shape, const std::array<const View*, 3>& views, F&& f) {
  LoopNest<3> nest{};
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 0) return;
    if (shape[d] == 1) continue;
    nest.sizes[nest.rank] = shape[d];
    for (std::size_t v = 0; v < 3; ++v) nest.strides[nest.rank][v] = views[v]->strides[d];
    ++nest.rank;
  }
  constexpr std::int64_t kMost = 2048;  // of which the indices are still in the cache after they are checked
  const std::int64_t size = nest.inner_size();
  const std::array<std::int64_t, 3> strides{nest.inner_stride(0), nest.inner_stride(1), nest.inner_stride(2)};
  for_each_row(nest, [&](std::array<std::int64_t, 3> at) {
    for (std::int64_t left = size; left > 0; left -= kMost) {
      f(at, std::min(left, kMost), strides);
      for (std::size_t v = 0; v < 3; ++v) at[v] += kMost * strides[v];
    }
  });
}

template <class T>
void gather_part(const GatherArgs& a, const View& all_indices) {
  const View& in = a.in.view;
  const View& index = a.index.view;
  const std::int64_t size = in.shape[a.dim], stride = in.strides[a.dim];
  const View rest = without(in, a.dim, index.shape);
  for_each_row_in_order(index.shape, {&a.out.view, &index, &rest},
                        [&](const auto& at, std::int64_t count, const auto& strides) {
                          T* y = data<T>(a.out) + at[0];
                          const auto* positions = data<std::int64_t>(a.index) + at[1];
                          const T* x = data<T>(a.in) + at[2];
                          const auto [to, along, from] = strides;
                          if (!all_within(positions, along, count, size))
                            check_indices(GatherArgs::kName, all_indices, size);
                          if (to == 1 && along == 1 && from == 0 && stride == 1)
                            for (std::int64_t i = 0; i < count; ++i) y[i] = x[positions[i]];
                          else
                            for (std::int64_t i = 0; i < count; ++i)
                              y[i * to] = x[i * from + positions[i * along] * stride];
                        });
}

template <class T>
void gather_views(const GatherArgs& a) {
  in_parts(a.index.view.shape, -1, sizeof(std::int64_t) + 2 * sizeof(T),
           [&](int dim, std::int64_t begin, std::int64_t end) {
             if (dim < 0) return gather_part<T>(a, a.index.view);
             GatherArgs part = a;
             part.out.view = narrowed(a.out.view, dim, begin, end);
             part.index.view = narrowed(a.index.view, dim, begin, end);
             if (dim != a.dim) part.in.view = narrowed(a.in.view, dim, begin, end);
             gather_part<T>(part, a.index.view);
           });
}

template <class T>
void add_to(T& to, T value) {
  using functors::Compute;
  to = static_cast<T>(functors::plus(static_cast<Compute<T>>(to), static_cast<Compute<T>>(value)));
}

template <class T>
void scatter_add_part(const ScatterAddArgs& a, const View& all_indices) {
  const View& out = a.out.view;
  const View& index = a.index.view;
  const std::int64_t size = out.shape[a.dim], stride = out.strides[a.dim];
  const View rest = without(out, a.dim, index.shape);
  for_each_row_in_order(index.shape, {&rest, &index, &a.in.view},
                        [&](const auto& at, std::int64_t count, const auto& strides) {
                          T* y = data<T>(a.out) + at[0];
                          const auto* positions = data<std::int64_t>(a.index) + at[1];
                          const T* x = data<T>(a.in) + at[2];
                          const auto [to, along, from] = strides;
                          if (!all_within(positions, along, count, size))
                            check_indices(ScatterAddArgs::kName, all_indices, size);
                          if (to == 0 && along == 1 && from == 1 && stride == 1)
                            for (std::int64_t i = 0; i < count; ++i) add_to(y[positions[i]], x[i]);
                          else
                            for (std::int64_t i = 0; i < count; ++i)
                              add_to(y[i * to + positions[i * along] * stride], x[i * from]);
                        });
}

template <class T>
void scatter_add_views(const ScatterAddArgs& a) {
  in_parts(a.index.view.shape, a.dim, sizeof(std::int64_t) + 3 * sizeof(T),
           [&](int dim, std::int64_t begin, std::int64_t end) {
             if (dim < 0) return scatter_add_part<T>(a, a.index.view);
             ScatterAddArgs part = a;
             part.in.view = narrowed(a.in.view, dim, begin, end);
             part.index.view = narrowed(a.index.view, dim, begin, end);
             part.out.view = narrowed(a.out.view, dim, begin, end);
             scatter_add_part<T>(part, a.index.view);
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
void index_select_part(const IndexSelectArgs& a) {
  const View& in = a.in.view;
  const View& out = a.out.view;
  const View& index = a.index.view;
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
      if (to_along == 1 && index_stride == 1 && from_along == 1)
        for (std::int64_t i = 0; i < count; ++i) to[i] = from[positions[i]];
      else
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
void index_select_views(const IndexSelectArgs& a) {
  check_indices(IndexSelectArgs::kName, a.index.view, a.in.view.shape[a.dim]);
  if (select_view(a)) return;
  in_parts(a.out.view.shape, -1, 2 * sizeof(T), [&](int dim, std::int64_t begin, std::int64_t end) {
    if (dim < 0) return index_select_part<T>(a);
    IndexSelectArgs part = a;
    part.out.view = narrowed(a.out.view, dim, begin, end);
    if (dim == a.dim)
      part.index.view = narrowed(a.index.view, 0, begin, end);
    else
      part.in.view = narrowed(a.in.view, dim, begin, end);
    index_select_part<T>(part);
  });
}

template <class T>
void index_add_part(const IndexAddArgs& a) {
  const View& in = a.in.view;
  const View& out = a.out.view;
  const View& index = a.index.view;
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

template <class T>
void index_add_views(const IndexAddArgs& a) {
  check_indices(IndexAddArgs::kName, a.index.view, a.out.view.shape[a.dim]);
  in_parts(a.in.view.shape, a.dim, 3 * sizeof(T), [&](int dim, std::int64_t begin, std::int64_t end) {
    if (dim < 0) return index_add_part<T>(a);
    IndexAddArgs part = a;
    part.in.view = narrowed(a.in.view, dim, begin, end);
    part.out.view = narrowed(a.out.view, dim, begin, end);
    index_add_part<T>(part);
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
