#include <bit>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/sort.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Few keys: each thread counts who comes before its key.
__global__ void __launch_bounds__(kThreads)
    rank_kernel(const std::int64_t* keys, std::int64_t* sorted, std::int64_t* positions, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto key = static_cast<std::uint64_t>(keys[i]);
  std::int64_t rank = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    const auto other = static_cast<std::uint64_t>(keys[k]);
    rank += other < key || (other == key && k < i);
  }
  sorted[rank] = keys[i];
  positions[rank] = i;
}

// Many keys: a radix sort from the lowest digit up. Every pass is stable: a thread has neighbouring elements, and its
// place among those with the same digit follows from counts of (digit, block) and (digit, thread).
constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits, kItems = 8;
constexpr std::int64_t kTile = kThreads * kItems;
static_assert(kDigits * kThreads % kThreads == 0);

__device__ int digit_of(std::int64_t key, int shift) { return static_cast<int>(key >> shift) & (kDigits - 1); }

// counts[digit][block] of the elements of every block.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int64_t* keys, std::int64_t count, int shift, std::int64_t* counts) {
  __shared__ int block_counts[kDigits];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kDigits) block_counts[thread] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * kTile;
  for (int k = 0; k < kItems; ++k) {
    const std::int64_t i = begin + k * kThreads + thread;
    if (i < count) atomicAdd(&block_counts[digit_of(keys[i], shift)], 1);  // of integers: the order does not matter
  }
  __syncthreads();
  if (thread < kDigits) counts[static_cast<std::int64_t>(thread) * gridDim.x + blockIdx.x] = block_counts[thread];
}

// The sum of the values of all threads before this one; `value` of all threads must be set.
template <class T>
__device__ T sum_before(T value, T* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = value;
  __syncthreads();
  T total = value;
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const T other = thread >= distance ? shared[thread - distance] : T(0);
    __syncthreads();
    shared[thread] = total += other;
    __syncthreads();
  }
  return total - value;
}

// Replaces counts by their sums before each of them: one block for all.
__global__ void __launch_bounds__(kThreads) scan_kernel(std::int64_t* counts, std::int64_t count) {
  __shared__ std::int64_t shared[kThreads];
  const std::int64_t each = (count + kThreads - 1) / kThreads;
  const std::int64_t begin = threadIdx.x * each, end = begin + each < count ? begin + each : count;
  std::int64_t own = 0;
  for (std::int64_t i = begin; i < end; ++i) own += counts[i];
  std::int64_t before = sum_before(own, shared);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t value = counts[i];
    counts[i] = before;
    before += value;
  }
}

// positions_in: null in the first pass, where an element's position is its place.
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const std::int64_t* keys_in, const std::int64_t* positions_in, std::int64_t* keys_out,
                   std::int64_t* positions_out, std::int64_t count, int shift, const std::int64_t* starts) {
  __shared__ int places[kDigits * kThreads];  // [digit][thread]
  __shared__ int shared[kThreads];
  __shared__ int digit_starts[kDigits];
  const int thread = static_cast<int>(threadIdx.x);
  for (int d = 0; d < kDigits; ++d) places[d * kThreads + thread] = 0;
  const std::int64_t begin = blockIdx.x * kTile + thread * kItems;
  for (int k = 0; k < kItems; ++k)
    if (begin + k < count) ++places[digit_of(keys_in[begin + k], shift) * kThreads + thread];
  __syncthreads();
  // Each thread sums kDigits neighbours of the table.
  int own = 0;
  for (int k = 0; k < kDigits; ++k) own += places[thread * kDigits + k];
  int before = sum_before(own, shared);
  for (int k = 0; k < kDigits; ++k) {
    const int value = places[thread * kDigits + k];
    places[thread * kDigits + k] = before;
    before += value;
  }
  __syncthreads();
  if (thread < kDigits) digit_starts[thread] = places[thread * kThreads];
  __syncthreads();
  for (int k = 0; k < kItems; ++k) {
    if (begin + k >= count) break;
    const std::int64_t key = keys_in[begin + k];
    const int digit = digit_of(key, shift);
    const int place = places[digit * kThreads + thread]++ - digit_starts[digit];
    const std::int64_t to = starts[static_cast<std::int64_t>(digit) * gridDim.x + blockIdx.x] + place;
    keys_out[to] = key;
    positions_out[to] = positions_in ? positions_in[begin + k] : begin + k;
  }
}

}  // namespace

Sorted sort_keys(const Stream& stream, const char* op, std::int64_t* keys, std::int64_t count, std::int64_t limit,
                 Scratch& scratch) {
  const auto largest = static_cast<std::uint64_t>(limit > 0 ? limit - 1 : 0);
  return sort_bits(stream, op, keys, count, std::max(1, static_cast<int>(std::bit_width(largest))), scratch);
}

Sorted sort_bits(const Stream& stream, const char* op, std::int64_t* keys, std::int64_t count, int bits,
                 Scratch& scratch) {
  constexpr std::int64_t kFew = 2048;
  Sorted a{scratch.take<std::int64_t>(count), scratch.take<std::int64_t>(count)};
  if (count <= kFew) {
    const Grid grid{dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), 0};
    launch(stream, op, rank_kernel, grid, keys, a.keys, a.positions, count);
    return a;
  }
  Sorted from{keys, nullptr}, to = a, spare{keys, scratch.take<std::int64_t>(count)};
  const std::int64_t blocks = (count + kTile - 1) / kTile;
  auto* counts = scratch.take<std::int64_t>(blocks * kDigits);
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0};
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    launch(stream, op, count_kernel, grid, from.keys, count, shift, counts);
    launch(stream, op, scan_kernel, Grid{dim3(1), dim3(kThreads), 0}, counts, blocks * kDigits);
    launch(stream, op, scatter_kernel, grid, from.keys, from.positions, to.keys, to.positions, count, shift, counts);
    from = to;
    to = to.keys == a.keys ? spare : a;
  }
  return from;
}

void list_sort(KernelList& list) {
  list.add(rank_kernel);
  list.add(count_kernel);
  list.add(scan_kernel);
  list.add(scatter_kernel);
}

}  // namespace lockstep::kernels::cuda
