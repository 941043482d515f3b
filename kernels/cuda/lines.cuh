// Kernels that go over the lines along the middle of [outer, size, inner], several threads to a line. A block has
// `lanes` threads for each of several lines; where inner is 1 the lanes of a line are neighbours, else neighbouring
// threads have neighbouring lines. Rows are lines that consist of packs: there a thread takes the elements of a pack,
// also where they are not aligned so that one instruction moves them: the order of a sum follows from the sizes alone.
#pragma once

#include <array>
#include <bit>

#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {

// Packs of each of N tensors that a thread holds: as many registers as leave room for other threads.
template <int N>
inline constexpr int kHeldPacks = N < 3 ? 4 : 2;

struct Lines {
  std::int64_t count, size, inner;
  int lanes, block_lines;
  bool lanes_adjacent;
  bool rows = false, aligned = false;  // rows, and one instruction moves a pack
  Splitter by_inner;

  Lines() = default;
  explicit Lines(const Shape& shape) : count(shape[0] * shape[2]), size(shape[1]), inner(shape[2]) {
    by_inner = Splitter(inner, count);
    FoldShape plan;
    plan.results = count, plan.elements = size;
    plan_fold(plan, inner == 1);
    lanes = plan.lanes, block_lines = plan.block_results, lanes_adjacent = plan.lanes_adjacent;
  }
  // For what is held in Parts of N tensors: up to 32 lanes have a pack each, then kHeldPacks before there are more.
  template <class T, int N>
  static Lines held(const Shape& shape, std::initializer_list<const void*> data) {
    Lines lines(shape);
    if (lines.inner != 1 || lines.size % kPack<T> != 0) return lines;
    const std::int64_t packs = lines.size / kPack<T>;
    lines.lanes = power_of_two_from(
        std::max(std::min<std::int64_t>(packs, 32), (packs + kHeldPacks<N> - 1) / kHeldPacks<N>), kThreads);
    lines.block_lines = kThreads / lines.lanes;
    lines.rows = lines.aligned = true;
    for (const void* pointer : data) lines.aligned &= aligned_for(pointer, dtype_of<T>(), kPack<T>);
    return lines;
  }
  std::int64_t blocks() const { return (count + block_lines - 1) / block_lines; }
  // Shared memory for one accumulator a thread.
  Grid grid(std::size_t accumulator_bytes) const {
    return {dim3(static_cast<unsigned>(std::min<std::int64_t>(blocks(), 1 << 20))), dim3(kThreads),
            kThreads * accumulator_bytes};
  }
};

template <class C>
struct Larger {
  using Accumulator = C;
  __device__ C join(C a, C b) const { return functors::larger(a, b); }
};
struct Add {
  using Accumulator = double;
  __device__ double join(double a, double b) const { return a + b; }
};

// The value of lane 0 for all lanes of its line.
template <class A>
__device__ A from_first_lane(A value, int lane, int lanes, int distance) {
  A* shared = dynamic_shared<A>();
  const int first = static_cast<int>(threadIdx.x) - lane * distance;
  wait_for_lanes(lanes, distance);
  if (lane == 0) shared[threadIdx.x] = value;
  wait_for_lanes(lanes, distance);
  return shared[first];
}

// Joins the accumulators of the lanes of each line, for all of them.
template <class Operation>
__device__ typename Operation::Accumulator join_line(const Operation& operation, typename Operation::Accumulator value,
                                                     const Lines& lines, int lane, int distance) {
  return from_first_lane(join_lanes(operation, value, lane, lines.lanes, distance), lane, lines.lanes, distance);
}

// What a thread has of the line that begins at `in` of each of N tensors (a null one is not read). A line of up to
// lanes * kPacks packs is read once and stays in registers; a longer one is read anew in every pass, and found in the
// cache. All loads of a part come before the first use.
template <class T, bool kRows, int N = 1>
class Parts {
 public:
  static constexpr int kCount = kRows ? kPack<T> : 1, kPacks = kHeldPacks<N>;
  using P = Pack<T, kCount>;

  __device__ Parts(const Lines& lines, bool inside, int lane, const std::array<const T*, N>& in)
      : lines_(lines), size_(inside ? lines.size : 0), lane_(lane), in_(in) {}

  // Calls f(position in the line, value of each tensor) for the thread's elements, in order.
  template <class F>
  __device__ void for_each(F&& f) {
    for_packs([&](std::int64_t at, const std::array<P, N>& packs) {
      for_elements(packs, [&](int k, auto... values) { f(at + k, values...); });
    });
  }
  // Stores what f returns, as out[position].
  template <class F>
  __device__ void store(T* out, F&& f) {
    for_packs([&](std::int64_t at, const std::array<P, N>& packs) {
      P to;
      for_elements(packs, [&](int k, auto... values) { to.element[k] = narrow<T>(f(at + k, values...)); });
      if (kRows && lines_.aligned)
        *reinterpret_cast<P*>(out + at) = to;
      else
        for_elements(packs, [&](int k, auto...) { out[kRows ? at + k : at * lines_.inner] = to.element[k]; });
    });
  }

 private:
  using W = std::conditional_t<kRows, Words<P>, P>;

  template <class F>
  __device__ static void for_elements(const std::array<P, N>& packs, F&& f) {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if constexpr (N == 1)
        f(k, widen(packs[0].element[k]));
      else if constexpr (N == 2)
        f(k, widen(packs[0].element[k]), widen(packs[1].element[k]));
      else
        f(k, widen(packs[0].element[k]), widen(packs[1].element[k]), widen(packs[2].element[k]));
  }
  __device__ std::int64_t position(std::int64_t part, int p) const {
    return ((part * kPacks + p) * lines_.lanes + lane_) * kCount;
  }
  template <class F>
  __device__ void for_packs(F&& f) {
    for (std::int64_t part = 0; position(part, 0) < size_; ++part) {
      if (part != held_part_) load(part);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const std::int64_t at = position(part, p);
        if (at >= size_) break;
        std::array<P, N> packs;
#pragma unroll
        for (int n = 0; n < N; ++n) packs[n] = std::bit_cast<P>(held_[n][p]);
        f(at, packs);
      }
    }
  }
  __device__ void load(std::int64_t part) {
    held_part_ = part;
    if (kRows && lines_.aligned)
      for_loads(part, [](W& to, const T* from) { to = *reinterpret_cast<const W*>(from); });
    else
      for_loads(part, [](W& to, const T* from) {
        P pack;
#pragma unroll
        for (int k = 0; k < kCount; ++k) pack.element[k] = from[k];
        to = std::bit_cast<W>(pack);
      });
  }
  template <class F>
  __device__ void for_loads(std::int64_t part, F&& f) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (const std::int64_t at = position(part, p); in_[n] && at < size_)
          f(held_[n][p], in_[n] + (kRows ? at : at * lines_.inner));
  }

  const Lines& lines_;
  const std::int64_t size_;
  const int lane_;
  const std::array<const T*, N> in_;
  std::int64_t held_part_ = -1;
  W held_[N][kPacks] = {};
};

// Calls f(inside, number of the line, position of its first element, lane, distance between lanes) for the lines of
// this block. All threads of the block make every call.
template <class F>
__device__ void for_each_line(const Lines& s, F&& f) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = s.lanes_adjacent ? thread % s.lanes : thread / s.block_lines;
  const int in_block = s.lanes_adjacent ? thread / s.lanes : thread % s.block_lines;
  const int distance = s.lanes_adjacent ? 1 : s.block_lines;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * s.block_lines; first < s.count;
       first += static_cast<std::int64_t>(gridDim.x) * s.block_lines) {
    const std::int64_t line = first + in_block;
    std::int64_t begin = 0;
    if (line < s.count) {
      std::int64_t j;
      begin = s.by_inner.split(line, &j) * s.size * s.inner;
      begin += j;
    }
    f(line < s.count, line, begin, lane, distance);
  }
}

}  // namespace lockstep::kernels::cuda
