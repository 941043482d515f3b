// Sorting along the middle of [outer, size, inner]. In short lines each thread counts who comes before its element, in
// longer ones a block sorts a line, and what is longer still is sorted all together, by line and value.
#include <cub/block/block_radix_sort.cuh>

#include "lockstep/kernels/cuda/cub.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/cuda/positions.cuh"
#include "lockstep/kernels/sort_key.h"
#include "lockstep/runtime/stream/work_scope.h"

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

// What tells the keys of T apart are their bits from the first of these to the second. (A 16-bit number that is widened
// has zeros below its own bits, or ones where it is negative.)
template <class T>
inline constexpr int kLowest = std::is_same_v<T, BFloat16> ? 16
                               : std::is_same_v<T, Half>   ? 13
                                                           : 0;
template <class T>
inline constexpr int kHighest = kSortKeyBits<Compute<T>>;

constexpr std::int64_t kRanked = 256;

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

// A block takes a line of kItems elements for each thread, at most.
template <class T, int kItems>
__global__ void __launch_bounds__(kThreads) sort_lines_kernel(const T* x, std::int64_t* indices, const Lines s) {
  using Key = SortKey<Compute<T>>;
  using Sort = cub::BlockRadixSort<Key, kThreads, kItems, std::uint16_t>;
  __shared__ typename Sort::TempStorage shared;
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t line = blockIdx.x; line < s.count; line += gridDim.x) {
    const T* const own = x + s.at(line, 0, s.size);
    T values[kItems] = {};
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      if (const int place = thread * kItems + k; place < s.size) values[k] = own[place * s.inner];
    Key keys[kItems];
    std::uint16_t places[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int place = thread * kItems + k;
      places[k] = static_cast<std::uint16_t>(place);
      // What is behind the line stays there, also behind elements with this key.
      keys[k] = place < s.size ? sort_key(widen(values[k]), s.descending) : static_cast<Key>(~Key(0));
    }
    Sort(shared).SortBlockedToStriped(keys, places, kLowest<T>, kHighest<T>);
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      if (const int rank = k * kThreads + thread; rank < s.wanted) indices[s.at(line, rank, s.wanted)] = places[k];
    __syncthreads();  // before the next line is in the same memory
  }
}

// `width` bits of each element's number, from bit `shift` on: its value, and its line above that. In the order that
// `order` has, or as they lie.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sort_keys_kernel(const T* x, const Tagged order, const Tagged keys, int shift, int width, const Lines s) {
  constexpr int kValueBits = kHighest<T> - kLowest<T>;
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - width);
  for_each_position(s.count * s.size, [&](std::int64_t i) {
    const std::int64_t position = order.keys ? order.position(i) : i;
    std::int64_t place;
    const auto line = static_cast<std::uint64_t>(s.by_size.split(position, &place));
    std::uint64_t bits;
    if (shift < kValueBits) {
      const T value = x[s.at(static_cast<std::int64_t>(line), place, s.size)];
      bits = static_cast<std::uint64_t>(sort_key(widen(value), s.descending) >> kLowest<T>) >> shift;
      if (const int above = kValueBits - shift; above < 64) bits |= line << above;
    } else {
      bits = line >> (shift - kValueBits);
    }
    keys.keys[i] = (bits & mask) << keys.position_bits | static_cast<std::uint64_t>(position);
  });
}

__global__ void __launch_bounds__(kThreads)
    write_indices_kernel(const Tagged order, std::int64_t* indices, const Lines s) {
  for_each_position(s.count * s.size, [&](std::int64_t i) {
    std::int64_t rank, place;
    const std::int64_t line = s.by_size.split(i, &rank);
    if (rank >= s.wanted) return;
    s.by_size.split(order.position(i), &place);
    indices[s.at(line, rank, s.wanted)] = place;
  });
}

// From the lowest bits up, as many at once as there is room for above the positions.
template <class T>
void sort_together(const Stream& stream, const T* x, std::int64_t* indices, const Lines& s) {
  constexpr const char* kOp = ArgsortArgs::kName;
  const std::int64_t count = s.count * s.size;
  const Grid grid = grid_for(stream, count);
  const int bits = kHighest<T> - kLowest<T> + bits_below(s.count), room = 64 - bits_below(count);
  Scratch scratch(stream);
  Tagged order{nullptr, bits_below(count)}, keys{scratch.take<std::uint64_t>(count), order.position_bits};
  auto* spare = scratch.take<std::uint64_t>(count);
  for (int shift = 0; shift < bits; shift += room) {
    const int width = std::min(room, bits - shift);
    launch(stream, kOp, sort_keys_kernel<T>, grid, x, order, keys, shift, width, s);
    sort(stream, kOp, keys, spare, count, width, scratch);
    order = keys;
    std::swap(keys.keys, spare);  // where the order is, which is read once more, is spare after that
  }
  launch(stream, kOp, write_indices_kernel, grid, order, indices, s);
}

template <class T>
void run(const Stream& stream, const ArgsortArgs& args) {
  constexpr const char* kOp = ArgsortArgs::kName;
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
  const T* const x = data<T>(args.x);
  auto* const indices = data<std::int64_t>(args.indices);
  const auto way = [&](const char* name) { return trace::Work{.name = name, .kind = trace::Kind::kernel}; };
  if (s.size <= kRanked) {
    const trace::WorkScope scope(stream, way("argsort by ranks"));
    return launch(stream, kOp, rank_lines_kernel<T>, grid_for(stream, count), x, indices, s);
  }
  if (s.size <= 8 * kThreads) {
    const trace::WorkScope scope(stream, way("argsort by blocks"));
    const Grid grid{dim3(static_cast<unsigned>(std::min<std::int64_t>(lines, 1 << 20))), dim3(kThreads), 0};
    return launch(stream, kOp, s.size <= 2 * kThreads ? sort_lines_kernel<T, 2> : sort_lines_kernel<T, 8>, grid, x,
                  indices, s);
  }
  const trace::WorkScope scope(stream, way("argsort by radix"));
  sort_together(stream, x, indices, s);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const ArgsortArgs& args) {
  dispatch(args.x.view.dtype, [&]<class T>(Type<T>) { run<T>(stream, args); });
}

void list_argsort(KernelList& list) {
  for_all([&]<class T>(Type<T>) {
    list.add(rank_lines_kernel<T>);
    list.add(sort_lines_kernel<T, 2>);
    list.add(sort_lines_kernel<T, 8>);
    list.add(sort_keys_kernel<T>);
  });
  list.add(write_indices_kernel);
}

}  // namespace lockstep::kernels::cuda
