// Kernels that go over the lines along the middle of [outer, size, inner], several threads to a line. A block has
// `lanes` threads for each of several lines; where inner is 1 the lanes of a line are neighbours, else neighbouring
// threads have neighbouring lines.
#pragma once

#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {

struct Lines {
  std::int64_t count, size, inner;
  int lanes, block_lines;
  bool lanes_adjacent;
  Splitter by_inner;

  Lines() = default;
  explicit Lines(const Shape& shape) : count(shape[0] * shape[2]), size(shape[1]), inner(shape[2]) {
    by_inner = Splitter(inner, count);
    FoldShape plan;
    plan.results = count, plan.elements = size;
    plan_fold(plan, inner == 1);
    lanes = plan.lanes, block_lines = plan.block_results, lanes_adjacent = plan.lanes_adjacent;
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
__device__ A from_first_lane(A value, int lane, int distance) {
  A* shared = dynamic_shared<A>();
  const int first = static_cast<int>(threadIdx.x) - lane * distance;
  __syncthreads();
  if (lane == 0) shared[threadIdx.x] = value;
  __syncthreads();
  return shared[first];
}

// Joins the accumulators of the lanes of each line, for all of them.
template <class Operation>
__device__ typename Operation::Accumulator join_line(const Operation& operation, typename Operation::Accumulator value,
                                                     const Lines& lines, int lane, int distance) {
  return from_first_lane(join_lanes(operation, value, lane, lines.lanes, distance), lane, distance);
}

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
