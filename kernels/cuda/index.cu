// Indexing. An index out of range is reported, and its element is skipped (or zero, where it would have been read).
// Additions happen in index order and no two threads add to one element: either one thread walks a line, or the indices
// are sorted and one thread walks the entries of one target.
#include "lockstep/kernels/cuda/cub.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/cuda/positions.cuh"
#include "lockstep/kernels/cuda/report.cuh"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

using lockstep::cuda::KernelReport;

struct Target {  // the dimension that is indexed
  std::int64_t size, stride;
  int op;
  KernelReport* report;
};

__device__ bool checked(const Target& t, std::int64_t index) {
  if (is_inside(index, t.size)) return true;
  report_index(t.report, t.op, index, t.size);
  return false;
}

// offsets: of out, index, in (without the indexed dimension).
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* in, const std::int64_t* index, T* out, const Offsets<3> offsets, const Target target) {
  for_each_position(offsets.count, [&](std::int64_t i) {
    const At<3> at = offsets.at(i);
    const std::int64_t from = index[at.view[1]];
    out[at.view[0]] = checked(target, from) ? in[at.view[2] + from * target.stride] : T(0);
  });
}

// Whole rows, in packs of 16 bytes. Neighbouring threads take a row, up to a warp; each reads the index once.
using RowPack = Pack<std::uint32_t, 4>;
struct Rows {
  std::int64_t count, packs;
  std::int64_t in_row, out_row, index_stride;  // from one to the next: packs, packs, elements
  int shift;                                   // threads of a row, as a power of two
};
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(const RowPack* in, const std::int64_t* index,
                                                               RowPack* out, const Rows rows, const Target target) {
  constexpr int kAhead = 4;
  const int lanes = 1 << rows.shift, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int64_t in_block = kThreads >> rows.shift, step = gridDim.x * in_block;
  for (std::int64_t row = blockIdx.x * in_block + (threadIdx.x >> rows.shift); row < rows.count; row += step) {
    const std::int64_t from = index[row * rows.index_stride];
    const bool inside = checked(target, from);
    for (std::int64_t first = lane; first < rows.packs; first += kAhead * lanes) {
      RowPack ahead[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (const std::int64_t pack = first + k * lanes; inside && pack < rows.packs)
          ahead[k] = in[from * rows.in_row + pack];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (const std::int64_t pack = first + k * lanes; pack < rows.packs) out[row * rows.out_row + pack] = ahead[k];
    }
  }
}

template <class T>
__device__ T sum(T a, T b) {
  return narrow<T>(functors::plus(widen(a), widen(b)));
}

struct Line {
  std::int64_t size, index_stride, in_stride;
};
// offsets of the lines: of out, index, in.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_lines_kernel(const T* in, const std::int64_t* index, T* out, const Offsets<3> offsets, const Line line,
                     const Target target) {
  for_each_position(offsets.count, [&](std::int64_t i) {
    const At<3> at = offsets.at(i);
    for (std::int64_t j = 0; j < line.size; ++j) {
      const std::int64_t to = index[at.view[1] + j * line.index_stride];
      if (!checked(target, to)) continue;
      T& sums = out[at.view[0] + to * target.stride];
      sums = sum(sums, in[at.view[2] + j * line.in_stride]);
    }
  });
}

// The number of key i: to what entry i of index is added, in steps of the target; `limit` for a bad index. offsets: of
// out (without the indexed dimension) and index, row-major.
__global__ void __launch_bounds__(kThreads)
    keys_kernel(const std::int64_t* index, const Tagged keys, const Offsets<2> offsets, std::int64_t limit,
                const Target target) {
  for_each_position(offsets.count, [&](std::int64_t i) {
    const At<2> at = offsets.at(i);
    const std::int64_t to = index[at.view[1]];
    const auto number = static_cast<std::uint64_t>(checked(target, to) ? at.view[0] + to * target.stride : limit);
    keys.keys[i] = number << keys.position_bits | static_cast<std::uint64_t>(i);
  });
}

// A number times `step` is an offset in out. entries: where an entry lies in `in`; slices: the elements of one entry,
// in out and in.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_sorted_kernel(const T* in, T* out, const Tagged sorted, std::int64_t count, std::int64_t limit,
                      std::int64_t step, const Offsets<1> entries, const Offsets<2> slices, const Splitter by_slice) {
  for_each_position(count * slices.count, [&](std::int64_t i) {
    std::int64_t element;
    std::int64_t entry = by_slice.split(i, &element);
    const std::uint64_t number = sorted.number(entry);
    if (number == static_cast<std::uint64_t>(limit) || (entry > 0 && sorted.number(entry - 1) == number)) return;
    const At<2> at = slices.at(element);
    T& to = out[static_cast<std::int64_t>(number) * step + at.view[0]];
    T total = to;
    for (; entry < count && sorted.number(entry) == number; ++entry)
      total = sum(total, in[entries.at(sorted.position(entry)).view[0] + at.view[1]]);
    to = total;
  });
}

View without(const View& view, int dim, const Shape& shape) {
  View v = view;
  v.shape = shape;
  v.strides[dim] = 0;
  return v;
}
Target target_of(const View& view, int dim, int op, const Stream& stream) {
  return {view.shape[dim], view.strides[dim], op, lockstep::cuda::kernel_report(stream.device())};
}
// One more than the largest offset of an element.
std::int64_t extent(const View& view) {
  std::int64_t last = 0;
  for (int d = 0; d < view.rank(); ++d) last += (view.shape[d] - 1) * view.strides[d];
  return last + 1;
}

// A one-dimensional index as a view of `shape` that repeats it.
View spread(const View& index, const Shape& shape, int dim) {
  View v = index;
  v.shape = shape;
  v.strides = Dims::filled(shape.rank(), 0);
  v.strides[dim] = index.strides[0];
  return v;
}

void gather_views(const Stream& stream, const char* op, const View& in, const View& index, const View& out,
                  const Target& target, int dim) {
  const View rest = without(in, dim, out.shape);
  const Offsets<3> offsets = make_offsets<3>(out.shape, {&out, &index, &rest});
  if (offsets.count == 0) return;
  dispatch_size(in.dtype, [&]<class T>(Type<T>) {
    launch(stream, op, gather_kernel<T>, grid_for(stream, offsets.count), static_cast<const T*>(in.data),
           static_cast<const std::int64_t*>(index.data), static_cast<T*>(out.data), offsets, target);
  });
}

// False, and nothing is enqueued, unless the indexed dimension is the first of rows that consist of packs.
bool gather_rows(const Stream& stream, const IndexSelectArgs& args, const Target& target) {
  const View &in = args.in.view, &out = args.out.view, &index = args.index.view;
  std::int64_t size = 1;
  for (int d = out.rank() - 1; d >= 0; --d) {
    if (d == args.dim || out.shape[d] == 1) continue;
    if (d < args.dim || in.strides[d] != size || out.strides[d] != size) return false;
    size *= out.shape[d];
  }
  const auto bytes = static_cast<std::int64_t>(size_of(in.dtype));
  const std::int64_t of_pack = 16 / bytes;
  const auto in_packs = [&](std::int64_t elements) { return elements % of_pack == 0; };
  if (!in_packs(size) || !in_packs(in.strides[args.dim]) || !in_packs(out.strides[args.dim]) ||
      !aligned_for(in.data, in.dtype, static_cast<int>(of_pack)) ||
      !aligned_for(out.data, out.dtype, static_cast<int>(of_pack)) || size == 0 || out.shape[args.dim] == 0)
    return false;
  Rows rows{out.shape[args.dim],
            size / of_pack,
            in.strides[args.dim] / of_pack,
            out.strides[args.dim] / of_pack,
            index.strides[0],
            0};
  while (rows.shift < 5 && (1 << rows.shift) < rows.packs) ++rows.shift;
  launch(stream, IndexSelectArgs::kName, gather_rows_kernel, grid_for(stream, rows.count << rows.shift),
         static_cast<const RowPack*>(in.data), static_cast<const std::int64_t*>(index.data),
         static_cast<RowPack*>(out.data), rows, target);
  return true;
}

template <class T>
void add_lines(const Stream& stream, const char* op, const View& in, const View& index, const View& out,
               const Target& target, int dim) {
  const trace::WorkScope scope(stream, {.name = "additions by lines", .kind = trace::Kind::kernel});
  Shape lines = in.shape;
  const std::int64_t size = lines[dim];
  lines[dim] = 1;
  const Offsets<3> offsets = make_offsets<3>(lines, {&out, &index, &in});
  launch(stream, op, add_lines_kernel<T>, grid_for(stream, offsets.count), static_cast<const T*>(in.data),
         static_cast<const std::int64_t*>(index.data), static_cast<T*>(out.data), offsets,
         Line{size, index.strides[dim], in.strides[dim]}, target);
}

// An entry is one element, or a slice.
template <class T>
void add_sorted(const Stream& stream, const char* op, const View& in, const View& index, const View& out,
                const Target& target, std::int64_t limit, std::int64_t step, const Offsets<2>& key_offsets,
                const Offsets<1>& entries, const Offsets<2>& slices) {
  const trace::WorkScope scope(stream, {.name = "additions by sorted indices", .kind = trace::Kind::kernel});
  Scratch scratch(stream);
  const std::int64_t count = key_offsets.count;
  Tagged keys{scratch.take<std::uint64_t>(count), bits_below(count)};
  launch(stream, op, keys_kernel, grid_for(stream, count), static_cast<const std::int64_t*>(index.data), keys,
         key_offsets, limit, target);
  auto* spare = scratch.take<std::uint64_t>(count);
  sort(stream, op, keys, spare, count, bits_below(limit + 1), scratch);
  const std::int64_t threads = count * slices.count;
  launch(stream, op, add_sorted_kernel<T>, grid_for(stream, threads), static_cast<const T*>(in.data),
         static_cast<T*>(out.data), keys, count, limit, step, entries, slices, Splitter(slices.count, threads));
}

// A thread that walks a line does well when lines are short or there are many. It also takes what is too large for a
// key: `count` positions beside `limit` numbers.
bool prefers_lines(std::int64_t lines, std::int64_t size, std::int64_t count, std::int64_t limit) {
  return size <= 16 || (lines >= 16384 && size <= 4096) || bits_below(count) + bits_below(limit + 1) > 64;
}

template <class Args>
void check_addable(const Args& args, const Stream& stream) {
  if (args.out.view.dtype == DType::boolean) [[unlikely]]
    fail_dtype(Args::kName, DType::boolean, stream);
}
template <class F>
void dispatch_addable(DType dtype, F&& f) {
  dispatch(dtype, [&]<class T>(Type<T> type) {
    if constexpr (!std::is_same_v<T, bool>) f(type);
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const GatherArgs& args) {
  gather_views(stream, GatherArgs::kName, args.in.view, args.index.view, args.out.view,
               target_of(args.in.view, args.dim, lockstep::cuda::report_gather, stream), args.dim);
}

void Kernels::enqueue(const Stream& stream, const IndexSelectArgs& args) {
  const Target target = target_of(args.in.view, args.dim, lockstep::cuda::report_index_select, stream);
  if (gather_rows(stream, args, target)) return;
  const View index = spread(args.index.view, args.out.view.shape, args.dim);
  gather_views(stream, IndexSelectArgs::kName, args.in.view, index, args.out.view, target, args.dim);
}

void Kernels::enqueue(const Stream& stream, const ScatterAddArgs& args) {
  check_addable(args, stream);
  const View& index = args.index.view;
  const View& out = args.out.view;
  const std::int64_t count = element_count(index.shape);
  if (count == 0) return;
  const Target target = target_of(out, args.dim, lockstep::cuda::report_scatter_add, stream);
  View in = args.in.view;
  in.shape = index.shape;
  const std::int64_t size = index.shape[args.dim];
  dispatch_addable(out.dtype, [&]<class T>(Type<T>) {
    const std::int64_t limit = extent(out);
    if (prefers_lines(count / size, size, count, limit))
      return add_lines<T>(stream, ScatterAddArgs::kName, in, index, out, target, args.dim);
    const View rest = without(out, args.dim, index.shape);
    add_sorted<T>(stream, ScatterAddArgs::kName, in, index, out, target, limit, 1,
                  row_major_offsets<2>(index.shape, {&rest, &index}), row_major_offsets<1>(index.shape, {&in}),
                  Offsets<2>());
  });
}

void Kernels::enqueue(const Stream& stream, const IndexAddArgs& args) {
  check_addable(args, stream);
  const View& in = args.in.view;
  const View& out = args.out.view;
  const View& index = args.index.view;
  const std::int64_t count = element_count(in.shape);
  if (count == 0) return;
  const Target target = target_of(out, args.dim, lockstep::cuda::report_index_add, stream);
  const std::int64_t size = in.shape[args.dim];
  dispatch_addable(out.dtype, [&]<class T>(Type<T>) {
    if (prefers_lines(count / size, size, size, target.size))
      return add_lines<T>(stream, IndexAddArgs::kName, in, spread(index, in.shape, args.dim), out, target, args.dim);
    Shape slice = in.shape;
    slice[args.dim] = 1;
    LoopNest<2> keys;
    keys.rank = 1, keys.sizes[0] = size, keys.strides[0][0] = 0, keys.strides[0][1] = index.strides[0];
    LoopNest<1> entries;
    entries.rank = 1, entries.sizes[0] = size, entries.strides[0][0] = in.strides[args.dim];
    Target numbers = target;
    numbers.stride = 1;
    add_sorted<T>(stream, IndexAddArgs::kName, in, index, out, numbers, target.size, target.stride, Offsets<2>(keys),
                  Offsets<1>(entries), make_offsets<2>(slice, {&out, &in}));
  });
}

void list_index(KernelList& list) {
  for_sizes([&]<class T>(Type<T>) { list.add(gather_kernel<T>); });
  for_all([&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, bool>) {
      list.add(add_lines_kernel<T>);
      list.add(add_sorted_kernel<T>);
    }
  });
  list.add(gather_rows_kernel);
  list.add(keys_kernel);
}

}  // namespace lockstep::kernels::cuda
