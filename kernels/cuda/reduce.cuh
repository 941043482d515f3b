// The engine of all kernels that fold many elements into one result. An operation is a struct
//
//   struct Operation {
//     using Accumulator;                                     // trivially copyable
//     __device__ Accumulator start() const;
//     // Element `position` of the result with the given number; `offset` is where it lies in the input.
//     __device__ Accumulator load(std::int64_t result, std::int64_t offset, std::int64_t position) const;
//     __device__ Accumulator join(Accumulator a, Accumulator b) const;
//     // Here `offset` is where the result lies in the output.
//     __device__ void finish(std::int64_t result, std::int64_t offset, Accumulator total) const;
//   };
//
// A block is `lanes` threads for each of `results` results; neighbouring threads read neighbouring memory: they are
// lanes where the elements of a result are close together, and results where those are. Where there are too few results
// to occupy the device, the elements are split over blockIdx.y, and a second launch joins the parts. The order of every
// sum follows from the sizes.
#pragma once

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {

struct FoldShape {
  std::int64_t results, elements;  // elements of one result
  std::int64_t part;               // elements that one block takes
  Offsets<2> kept;                 // results: in the input, in the output
  Offsets<1> reduced;              // elements: in the input
  int lanes, block_results;        // their product is the number of threads; powers of two
  bool lanes_adjacent;             // neighbouring threads are lanes
};

// Waits for the threads that share a line: those of a warp, where its lanes are neighbours and 32 at most.
__device__ inline void wait_for_lanes(int lanes, int distance) {
  if (lanes <= 32 && distance == 1)
    __syncwarp();
  else
    __syncthreads();
}

// Joins the accumulators of the lanes of each result. Every thread of the block calls it; lane 0 gets the total.
template <class Operation>
__device__ typename Operation::Accumulator join_lanes(const Operation& operation, typename Operation::Accumulator value,
                                                      int lane, int lanes, int distance) {
  using A = typename Operation::Accumulator;
  A* shared = dynamic_shared<A>();
  wait_for_lanes(lanes, distance);
  shared[threadIdx.x] = value;
  for (int half = lanes / 2; half > 0; half /= 2) {
    wait_for_lanes(2 * half, distance);
    if (lane < half) shared[threadIdx.x] = value = operation.join(value, shared[threadIdx.x + half * distance]);
  }
  return value;
}

// parts_in: the elements are the accumulators that a first launch stored, [part][result]. parts_out: store those.
template <class Operation>
__global__ void __launch_bounds__(kThreads)
    fold_kernel(const Operation operation, const FoldShape shape, const typename Operation::Accumulator* parts_in,
                typename Operation::Accumulator* parts_out) {
  using A = typename Operation::Accumulator;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = shape.lanes_adjacent ? thread % shape.lanes : thread / shape.block_results;
  const int in_block = shape.lanes_adjacent ? thread / shape.lanes : thread % shape.block_results;
  const std::int64_t begin = blockIdx.y * shape.part;
  const std::int64_t end = begin + shape.part < shape.elements ? begin + shape.part : shape.elements;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * shape.block_results; first < shape.results;
       first += static_cast<std::int64_t>(gridDim.x) * shape.block_results) {
    const std::int64_t result = first + in_block;
    const bool inside = result < shape.results;
    A total = operation.start();
    At<2> at{};
    if (inside) {
      at = shape.kept.at(result);
      // Four chains, so that sums do not wait for each other; and the loads of several rounds under way, as many as
      // there are registers for.
      constexpr int kRounds = sizeof(A) <= 4 ? 4 : sizeof(A) <= 8 ? 2 : 1;
      A chain[4] = {total, total, total, total};
      std::int64_t i = begin + lane;
      const std::int64_t step = shape.lanes;
      const auto element = [&](std::int64_t position) {
        return parts_in ? parts_in[position * shape.results + result]
                        : operation.load(result, at.view[0] + shape.reduced.template at<2>(position).view[0], position);
      };
      const auto rounds = [&]<int kTimes>() {
        for (; i + (4 * kTimes - 1) * step < end; i += 4 * kTimes * step) {
          A next[4 * kTimes];
#pragma unroll
          for (int k = 0; k < 4 * kTimes; ++k) next[k] = element(i + k * step);
#pragma unroll
          for (int k = 0; k < 4 * kTimes; ++k) chain[k % 4] = operation.join(chain[k % 4], next[k]);
        }
      };
      if constexpr (kRounds > 1) rounds.template operator()<kRounds>();
      rounds.template operator()<1>();
      for (; i < end; i += step) chain[0] = operation.join(chain[0], element(i));
      total = operation.join(operation.join(chain[0], chain[1]), operation.join(chain[2], chain[3]));
    }
    total = join_lanes(operation, total, lane, shape.lanes, shape.lanes_adjacent ? 1 : shape.block_results);
    if (!inside || lane != 0) continue;
    if (parts_out)
      parts_out[blockIdx.y * shape.results + result] = total;
    else
      operation.finish(result, at.view[1], total);
  }
}

inline int power_of_two_from(std::int64_t count, int most) {
  int power = 1;
  while (power < most && power < count) power *= 2;
  return power;
}

// Chooses lanes, results per block and parts for `results` and `elements`.
inline void plan_fold(FoldShape& s, bool lanes_adjacent) {
  s.lanes_adjacent = lanes_adjacent;
  if (lanes_adjacent) {
    // At least 4 elements for a lane, so that short rows share a block.
    s.lanes = power_of_two_from((s.elements + 3) / 4, kThreads);
    s.block_results = kThreads / s.lanes;
  } else {
    s.block_results = power_of_two_from(s.results, 32);
    s.lanes = kThreads / s.block_results;
  }
  s.part = s.elements;
}

template <class Operation>
void fold(const Stream& stream, const char* op, const Operation& operation, FoldShape shape, bool lanes_adjacent) {
  using A = typename Operation::Accumulator;
  if (shape.results == 0) return;
  plan_fold(shape, lanes_adjacent);
  const auto blocks_of = [](const FoldShape& s) { return (s.results + s.block_results - 1) / s.block_results; };
  const auto grid_of = [&](const FoldShape& s, std::int64_t parts) {
    const auto x = static_cast<unsigned>(std::min<std::int64_t>(blocks_of(s), 1 << 20));
    return Grid{dim3(x, static_cast<unsigned>(parts)), dim3(kThreads), kThreads * sizeof(A)};
  };
  // Enough blocks for every multiprocessor, each with at least 16 elements for a lane.
  const std::int64_t wanted = properties(stream.device()).multiprocessors * std::int64_t{4};
  const std::int64_t most = shape.elements / (std::int64_t{16} * shape.lanes);
  const std::int64_t parts =
      std::clamp<std::int64_t>(wanted / blocks_of(shape), 1, std::clamp<std::int64_t>(most, 1, 1024));
  if (parts == 1)
    return launch(stream, op, fold_kernel<Operation>, grid_of(shape, 1), operation, shape,
                  static_cast<const A*>(nullptr), static_cast<A*>(nullptr));
  shape.part = (shape.elements + parts - 1) / parts;
  const std::int64_t used = (shape.elements + shape.part - 1) / shape.part;
  Scratch scratch(stream);
  A* sums = scratch.take<A>(used * shape.results);
  launch(stream, op, fold_kernel<Operation>, grid_of(shape, used), operation, shape, static_cast<const A*>(nullptr),
         sums);
  FoldShape second = shape;
  second.elements = used;
  plan_fold(second, shape.results < 32);
  launch(stream, op, fold_kernel<Operation>, grid_of(second, 1), operation, second, static_cast<const A*>(sums),
         static_cast<A*>(nullptr));
}

}  // namespace lockstep::kernels::cuda
