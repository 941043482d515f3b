// The engine of all kernels that fold many elements into one result. An operation is a struct
//
//   struct Operation {
//     using Accumulator;                       // trivially copyable
//     using Element;                           // of the inputs, in memory
//     static constexpr int kInputs;            // 1 or 2, which lie alike
//     std::array<const Element*, kInputs> in;
//     __device__ Accumulator start() const;
//     __device__ std::int64_t place(std::int64_t offset) const;  // of an element, the same for all of a pack
//     // Element `position` of the result with the given number, by its value in each input.
//     __device__ Accumulator load(std::int64_t result, std::int64_t place, std::int64_t position, Element...) const;
//     __device__ Accumulator join(Accumulator a, Accumulator b) const;
//     // Here `offset` is where the result lies in the output.
//     __device__ void finish(std::int64_t result, std::int64_t offset, Accumulator total) const;
//   };
//
// One that finds its elements itself has kInputs = 0 and load(result, position).
//
// A block is `lanes` threads for each of `block_results` results; neighbouring threads read neighbouring memory: they
// are lanes where the elements of a result are close together (rows), and results where those are (columns). A lane
// takes `pack` neighbouring elements at a time, or one element of `pack` neighbouring results, and joins what it takes
// one after the other. Where there are too few results to occupy the device, the elements are split over blockIdx.y,
// and a second launch joins the parts. The order of every sum follows from the sizes: where the memory allows it one
// instruction loads a pack, and the order is the same where it does not.
#pragma once

#include <array>
#include <bit>

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
  bool packs = true;               // the order may be that of packs; else a caller knows that they never fit
  int pack = 1;                    // what a lane takes at a time, of elements or of results
  Splitter by_run;                 // by the inner of two dimensions of elements, where packs are loaded
};

// Of operations that ask nothing of where an element lies.
struct Anywhere {
  __device__ std::int64_t place(std::int64_t) const { return 0; }
};

// Waits for the threads that share a line: those of a warp, where its lanes are neighbours and 32 at most.
__device__ inline void wait_for_lanes(int lanes, int distance) {
  if (lanes <= 32 && distance == 1)
    __syncwarp();
  else
    __syncthreads();
}

// Joins the accumulators of the lanes of each result. Every thread of the block calls it; lane 0 gets the totals.
template <class Operation, int kCount>
__device__ void join_lanes(const Operation& operation, typename Operation::Accumulator (&values)[kCount], int lane,
                           int lanes, int distance) {
  using A = typename Operation::Accumulator;
  A* shared = dynamic_shared<A>() + threadIdx.x;
  wait_for_lanes(lanes, distance);
#pragma unroll
  for (int k = 0; k < kCount; ++k) shared[k * kThreads] = values[k];
  for (int half = lanes / 2; half > 0; half /= 2) {
    wait_for_lanes(2 * half, distance);
    if (lane >= half) continue;
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      shared[k * kThreads] = values[k] = operation.join(values[k], shared[k * kThreads + half * distance]);
  }
}
template <class Operation>
__device__ typename Operation::Accumulator join_lanes(const Operation& operation, typename Operation::Accumulator value,
                                                      int lane, int lanes, int distance) {
  typename Operation::Accumulator values[1] = {value};
  join_lanes(operation, values, lane, lanes, distance);
  return values[0];
}

// What a lane takes at a time. An element of f64 is half a pack, and integers are rarely summed: one at a time will do.
template <class Operation>
constexpr int fold_pack() {
  if constexpr (Operation::kInputs > 0)
    if constexpr (std::is_same_v<Compute<typename Operation::Element>, float>)
      return kPack<typename Operation::Element>;
  return 1;
}

// `value(n)`: of the element in input n.
template <class Operation, class F>
__device__ typename Operation::Accumulator load_element(const Operation& operation, std::int64_t result,
                                                        std::int64_t place, std::int64_t position, F&& value) {
  if constexpr (Operation::kInputs == 1)
    return operation.load(result, place, position, value(0));
  else
    return operation.load(result, place, position, value(0), value(1));
}
template <class Operation>
__device__ typename Operation::Accumulator load_element(const Operation& operation, const FoldShape& shape,
                                                        std::int64_t result, std::int64_t begin,
                                                        std::int64_t position) {
  if constexpr (Operation::kInputs == 0) {
    return operation.load(result, position);
  } else {
    const std::int64_t offset = begin + shape.reduced.template at<2>(position).view[0];
    return load_element(operation, result, operation.place(offset), position,
                        [&](int n) { return operation.in[n][offset]; });
  }
}

// Calls f(first result, where it begins, lane, first element, last element, totals) for the results of this block, of
// which a thread has kResults at a time, and stores what it makes of the totals; the lanes share that work.
template <int kResults, class Operation, class F>
__device__ void fold_block(const Operation& operation, const FoldShape& shape,
                           typename Operation::Accumulator* parts_out, F&& f) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = shape.lanes_adjacent ? thread % shape.lanes : thread / shape.block_results;
  const int in_block = shape.lanes_adjacent ? thread / shape.lanes : thread % shape.block_results;
  const std::int64_t begin = blockIdx.y * shape.part, of_block = std::int64_t{shape.block_results} * kResults;
  const std::int64_t end = begin + shape.part < shape.elements ? begin + shape.part : shape.elements;
  for (std::int64_t first = blockIdx.x * of_block; first < shape.results; first += gridDim.x * of_block) {
    const std::int64_t result = first + in_block * kResults;
    const bool inside = result < shape.results;
    typename Operation::Accumulator totals[kResults];
#pragma unroll
    for (int k = 0; k < kResults; ++k) totals[k] = operation.start();
    At<2> at{};
    if (inside) {
      at = shape.kept.at(result);
      f(result, at.view[0], lane, begin, end, totals);
    }
    const int distance = shape.lanes_adjacent ? 1 : shape.block_results;
    join_lanes(operation, totals, lane, shape.lanes, distance);
    wait_for_lanes(shape.lanes, distance);
    const auto* joined = dynamic_shared<typename Operation::Accumulator>() + thread - lane * distance;
#pragma unroll 1
    for (int k = lane; k < kResults && inside; k += shape.lanes)
      if (parts_out)
        parts_out[blockIdx.y * shape.results + result + k] = joined[k * kThreads];
      else
        operation.finish(result + k, at.view[1] + k * shape.kept.strides[0][1], joined[k * kThreads]);
  }
}

// Blocks on a multiprocessor, at least, where a thread holds `count` accumulators of 16 bytes or an operation finds its
// elements itself: more would put numbers on the stack.
template <class Operation>
constexpr int fold_blocks(int count) {
  constexpr int kBytes = sizeof(typename Operation::Accumulator);
  if (Operation::kInputs == 0) return 4;
  return kBytes <= 8 ? 0 : std::clamp(192 / (kBytes * count), 2, 4);
}
// Elements that a thread has under way in any layout: as many as there are registers for, whole packs.
template <class Operation>
inline constexpr int kFoldAhead = std::max(64 / static_cast<int>(sizeof(typename Operation::Accumulator)),
                                           fold_pack<Operation>());

// Of any layout, element by element. parts_in: the elements are the accumulators that a first launch stored,
// [part][result]. parts_out: store those.
template <class Operation>
__global__ void __launch_bounds__(kThreads, fold_blocks<Operation>(kFoldAhead<Operation>))
    fold_kernel(const Operation operation, const FoldShape shape, const typename Operation::Accumulator* parts_in,
                typename Operation::Accumulator* parts_out) {
  using A = typename Operation::Accumulator;
  constexpr int kCount = fold_pack<Operation>(), kAhead = kFoldAhead<Operation>;
  const bool neighbours = shape.lanes_adjacent && shape.pack > 1;  // are a lane's elements
  const std::int64_t step = neighbours ? 1 : shape.lanes, pack_step = std::int64_t{shape.lanes} * kCount;
  fold_block<1>(
      operation, shape, parts_out,
      [&](std::int64_t result, std::int64_t from, int lane, std::int64_t begin, std::int64_t end, A(&total)[1]) {
        for (std::int64_t i = begin + (neighbours ? lane * kCount : lane); i < end; i += kAhead / kCount * pack_step) {
          const auto position = [&](int k) { return i + k / kCount * pack_step + k % kCount * step; };
          A ahead[kAhead];
#pragma unroll
          for (int k = 0; k < kAhead; ++k)
            if (const std::int64_t at = position(k); at < end)
              ahead[k] =
                  parts_in ? parts_in[at * shape.results + result] : load_element(operation, shape, result, from, at);
#pragma unroll
          for (int k = 0; k < kAhead; ++k)
            if (position(k) < end) total[0] = operation.join(total[0], ahead[k]);
        }
      });
}

// Of packs that one instruction loads.
template <class Operation, bool kColumns>
__global__ void __launch_bounds__(kThreads, fold_blocks<Operation>(kColumns ? fold_pack<Operation>() : 1))
    fold_packs_kernel(const Operation operation, const FoldShape shape, typename Operation::Accumulator* parts_out) {
  using A = typename Operation::Accumulator;
  using P = Pack<typename Operation::Element, fold_pack<Operation>()>;
  constexpr int N = Operation::kInputs, kCount = fold_pack<Operation>(), kAhead = 4 / N;
  constexpr int kPositions = kColumns ? 1 : kCount, kResults = kColumns ? kCount : 1;  // of a pack
  const std::int64_t step = std::int64_t{shape.lanes} * kPositions;
  fold_block<kResults>(
      operation, shape, parts_out,
      [&](std::int64_t result, std::int64_t from, int lane, std::int64_t begin, std::int64_t end,
          A(&totals)[kResults]) {
        const std::int64_t packs = (end - begin) / kPositions, packs_end = begin + packs * kPositions;
        for (std::int64_t i = begin + lane * kPositions; i < packs_end; i += kAhead * step) {
          Words<P> ahead[kAhead][N];
          std::int64_t place[kAhead];
#pragma unroll
          for (int p = 0; p < kAhead; ++p) {
            if (i + p * step >= packs_end) break;
            std::int64_t in_run;
            std::int64_t offset = from + shape.by_run.split(i + p * step, &in_run) * shape.reduced.strides[1][0];
            offset += in_run * shape.reduced.strides[0][0];
            place[p] = operation.place(offset);
#pragma unroll
            for (int n = 0; n < N; ++n) ahead[p][n] = *reinterpret_cast<const Words<P>*>(operation.in[n] + offset);
          }
#pragma unroll
          for (int p = 0; p < kAhead; ++p) {
            if (i + p * step >= packs_end) break;
#pragma unroll
            for (int k = 0; k < kCount; ++k) {
              A& total = totals[kColumns ? k : 0];
              total = operation.join(total, load_element(operation, result + (kColumns ? k : 0), place[p],
                                                         i + p * step + (kColumns ? 0 : k), [&](int n) {
                                                           return std::bit_cast<P>(ahead[p][n]).element[k];
                                                         }));
            }
          }
        }
        // Less than a pack is left, for the lane whose turn it is.
        if (!kColumns && lane == (packs & (shape.lanes - 1)))
          for (std::int64_t i = packs_end; i < end; ++i)
            totals[0] = operation.join(totals[0], load_element(operation, shape, result, from, i));
      });
}

inline int power_of_two_from(std::int64_t count, int most) {
  int power = 1;
  while (power < most && power < count) power *= 2;
  return power;
}

// Chooses lanes and results per block for `results` and `elements`, by packs of `pack`.
inline void plan_fold(FoldShape& s, bool lanes_adjacent, int pack = 1) {
  s.lanes_adjacent = lanes_adjacent;
  s.pack = pack;
  if (lanes_adjacent) {
    // At least 4 elements for a lane, so that short rows share a block.
    const int least = std::max(4, pack);
    s.lanes = power_of_two_from((s.elements + least - 1) / least, kThreads);
    s.block_results = kThreads / s.lanes;
  } else {
    s.block_results = power_of_two_from(s.results / pack, 32);
    s.lanes = kThreads / s.block_results;
  }
  s.part = s.elements;
}

// Whether one instruction can load each pack: it lies in neighbouring memory, at a multiple of its size.
template <class Operation>
bool loads_packs(const Operation& operation, const FoldShape& s) {
  if (s.pack == 1 || s.reduced.rank > 2) return false;
  const auto fits = [&](const auto& offsets, bool along) {
    bool fit = offsets.rank > 0 || !along;
    for (int d = 0; d < offsets.rank; ++d)
      if (along && d == 0)
        fit &= offsets.strides[0][0] == 1 && (offsets.rank == 1 || offsets.sizes[0] % s.pack == 0);
      else
        fit &= offsets.strides[d][0] % s.pack == 0;
    return fit;
  };
  if (!fits(s.reduced, s.lanes_adjacent) || !fits(s.kept, !s.lanes_adjacent)) return false;
  for (const auto* in : operation.in)
    if (!aligned_for(in, dtype_of<typename Operation::Element>(), s.pack)) return false;
  return true;
}

template <class Operation>
void fold(const Stream& stream, const char* op, const Operation& operation, FoldShape shape, bool lanes_adjacent) {
  using A = typename Operation::Accumulator;
  constexpr int kCount = fold_pack<Operation>();
  if (shape.results == 0) return;
  // Rows of no whole packs begin anywhere, unless there is but one.
  const bool packs = shape.packs && (lanes_adjacent ? shape.results == 1 || shape.elements % kCount == 0
                                                    : shape.results % kCount == 0);
  plan_fold(shape, lanes_adjacent, packs ? kCount : 1);
  const auto blocks_of = [](const FoldShape& s, int thread_results) {
    return (s.results / thread_results + s.block_results - 1) / s.block_results;
  };
  const auto grid_of = [&](const FoldShape& s, std::int64_t parts, int thread_results = 1) {
    const auto x = static_cast<unsigned>(std::min<std::int64_t>(blocks_of(s, thread_results), 1 << 20));
    return Grid{dim3(x, static_cast<unsigned>(parts)), dim3(kThreads), kThreads * sizeof(A) * thread_results};
  };
  // Enough blocks for every multiprocessor, each with at least 16 elements for a lane, or 4 packs of columns.
  const std::int64_t blocks = blocks_of(shape, lanes_adjacent ? 1 : shape.pack);
  const std::int64_t wanted = properties(stream.device()).multiprocessors * std::int64_t{4};
  const int of_lane = !lanes_adjacent && shape.pack > 1 ? 4 : 16;
  const std::int64_t most = shape.elements / (std::int64_t{of_lane} * shape.lanes);
  const std::int64_t parts = std::clamp<std::int64_t>(wanted / blocks, 1, std::clamp<std::int64_t>(most, 1, 1024));
  shape.part = (shape.elements + parts - 1) / parts;
  if (parts > 1 && lanes_adjacent) shape.part = (shape.part + shape.pack - 1) / shape.pack * shape.pack;
  const std::int64_t used = parts > 1 ? (shape.elements + shape.part - 1) / shape.part : 1;
  Scratch scratch(stream);
  A* sums = used > 1 ? scratch.take<A>(used * shape.results) : nullptr;
  bool loaded = false;
  if constexpr (kCount > 1) {
    if ((loaded = loads_packs(operation, shape))) {
      shape.by_run = Splitter(shape.reduced.rank == 2 ? shape.reduced.sizes[0] : shape.elements, shape.elements);
      const auto kernel = lanes_adjacent ? fold_packs_kernel<Operation, false> : fold_packs_kernel<Operation, true>;
      launch(stream, op, kernel, grid_of(shape, used, lanes_adjacent ? 1 : kCount), operation, shape, sums);
    }
  }
  if (!loaded)
    launch(stream, op, fold_kernel<Operation>, grid_of(shape, used), operation, shape, static_cast<const A*>(nullptr),
           sums);
  if (used == 1) return;
  FoldShape second = shape;
  second.elements = used;
  plan_fold(second, shape.results < 32);
  launch(stream, op, fold_kernel<Operation>, grid_of(second, 1), operation, second, static_cast<const A*>(sums),
         static_cast<A*>(nullptr));
}
template <class Operation>
void list_fold(KernelList& list) {
  list.add(fold_kernel<Operation>);
  if constexpr (fold_pack<Operation>() > 1) {
    list.add(fold_packs_kernel<Operation, false>);
    list.add(fold_packs_kernel<Operation, true>);
  }
}

}  // namespace lockstep::kernels::cuda
