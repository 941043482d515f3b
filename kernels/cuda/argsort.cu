// Sorting along the middle of [outer, size, inner]. In short lines each thread counts who comes before its element;
// long ones are sorted all together, by value and then, stably, by line.
#include <bit>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/cuda/sort.cuh"
#include "lockstep/kernels/sort_key.h"

namespace lockstep::kernels::cuda {
namespace {

struct Lines {
  std::int64_t count, size, inner, wanted;
  bool descending;
  Splitter by_size, by_inner;  // of elements, line by line; of lines

  // The place of `position` in `line` of a tensor with `size_` elements to a line.
  LOCKSTEP_HD std::int64_t at(std::int64_t line, std::int64_t position, std::int64_t size_) const {
    std::int64_t j;
    const std::int64_t o = by_inner.split(line, &j);
    return (o * size_ + position) * inner + j;
  }
};

template <class F>
__device__ void for_each_position(std::int64_t count, F&& f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) f(i);
}

template <class T>
__global__ void __launch_bounds__(kThreads) rank_lines_kernel(const T* x, std::int64_t* indices, const Lines s) {
  for_each_position(s.count * s.size, [&](std::int64_t i) {
    std::int64_t own;
    const std::int64_t line = s.by_size.split(i, &own), first = s.at(line, 0, s.size);
    const auto key_of = [&](std::int64_t k) { return sort_key(widen(x[first + k * s.inner]), s.descending); };
    const auto key = key_of(own);
    std::int64_t rank = 0;
    for (std::int64_t k = 0; k < s.size; ++k) {
      const auto other = key_of(k);
      rank += other < key || (other == key && k < own);
    }
    if (rank < s.wanted) indices[s.at(line, rank, s.wanted)] = own;
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) sort_keys_kernel(const T* x, std::int64_t* keys, const Lines s) {
  for_each_position(s.count * s.size, [&](std::int64_t i) {
    std::int64_t position;
    const std::int64_t line = s.by_size.split(i, &position);
    keys[i] = static_cast<std::int64_t>(sort_key(widen(x[s.at(line, position, s.size)]), s.descending));
  });
}

// The line of every element, in the order of the values.
__global__ void __launch_bounds__(kThreads)
    line_keys_kernel(const std::int64_t* positions, std::int64_t* keys, const Lines s) {
  for_each_position(s.count * s.size, [&](std::int64_t i) {
    std::int64_t ignored;
    keys[i] = s.by_size.split(positions[i], &ignored);
  });
}

// order: of positions (null: as they are).
__global__ void __launch_bounds__(kThreads)
    write_indices_kernel(const std::int64_t* positions, const std::int64_t* order, std::int64_t* indices,
                         const Lines s) {
  for_each_position(s.count * s.size, [&](std::int64_t i) {
    std::int64_t rank, position;
    const std::int64_t line = s.by_size.split(i, &rank);
    if (rank >= s.wanted) return;
    s.by_size.split(positions[order ? order[i] : i], &position);
    indices[s.at(line, rank, s.wanted)] = position;
  });
}

template <class T>
void run(const Stream& stream, const ArgsortArgs& args) {
  constexpr const char* kOp = ArgsortArgs::kName;
  constexpr std::int64_t kShort = 1024;
  const Shape& shape = args.x.view.shape;
  const std::int64_t count = element_count(shape), lines = shape[0] * shape[2];
  if (count == 0) return;
  const Lines s{lines,
                shape[1],
                shape[2],
                args.indices.view.shape[1],
                args.descending,
                Splitter(shape[1], count),
                Splitter(shape[2], lines)};
  auto* indices = data<std::int64_t>(args.indices);
  const Grid grid = grid_for(stream, count);
  if (s.size <= kShort) return launch(stream, kOp, rank_lines_kernel<T>, grid, data<T>(args.x), indices, s);
  Scratch scratch(stream);
  auto* keys = scratch.take<std::int64_t>(count);
  launch(stream, kOp, sort_keys_kernel<T>, grid, data<T>(args.x), keys, s);
  const Sorted by_value = sort_bits(stream, kOp, keys, count, kSortKeyBits<Compute<T>>, scratch);
  if (lines == 1) {
    launch(stream, kOp, write_indices_kernel, grid, by_value.positions, static_cast<std::int64_t*>(nullptr), indices,
           s);
    return;
  }
  auto* line_keys = scratch.take<std::int64_t>(count);
  launch(stream, kOp, line_keys_kernel, grid, by_value.positions, line_keys, s);
  const Sorted by_line = sort_keys(stream, kOp, line_keys, count, lines, scratch);
  launch(stream, kOp, write_indices_kernel, grid, by_value.positions, by_line.positions, indices, s);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const ArgsortArgs& args) {
  dispatch(args.x.view.dtype, [&]<class T>(Type<T>) { run<T>(stream, args); });
}

void list_argsort(KernelList& list) {
  for_all([&]<class T>(Type<T>) {
    list.add(rank_lines_kernel<T>);
    list.add(sort_keys_kernel<T>);
  });
  list.add(line_keys_kernel);
  list.add(write_indices_kernel);
}

}  // namespace lockstep::kernels::cuda
