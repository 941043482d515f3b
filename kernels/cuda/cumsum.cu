// Running sums over the middle of [outer, size, inner]. Where there are too few lines to occupy the device they are
// split into chunks: the sums of the chunks come first, then what is before each of them, then the elements. One line
// of integers goes to CUB.
#include <limits>

#include "lockstep/kernels/cuda/cub.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/lines.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kItems = 8;  // neighbours along the line that a thread takes

template <class T>
using Sum = std::conditional_t<functors::kInteger<T>, T, double>;

// `value` of all lanes becomes the sum of those before it; `total` the sum of all.
template <class A>
__device__ A sum_of_lanes_before(A value, int lane, int lanes, int distance, A* total) {
  A* shared = dynamic_shared<A>();
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[thread] = value;
  __syncthreads();
  A sum = value;
  for (int step = 1; step < lanes; step *= 2) {
    const A other = lane >= step ? shared[thread - step * distance] : A(0);
    __syncthreads();
    shared[thread] = sum = functors::plus(other, sum);
    __syncthreads();
  }
  *total = shared[thread + (lanes - 1 - lane) * distance];
  return lane > 0 ? shared[thread - distance] : A(0);
}

// A sixth block on a multiprocessor would put numbers on the stack.
// sums: [chunk][line], of the elements of each chunk (written when y is null) or of all before it (null: nothing is).
template <class T>
__global__ void __launch_bounds__(kThreads, 5)
    cumsum_kernel(const T* x, T* y, Sum<T>* sums, const Lines lines, std::int64_t chunk, bool reverse) {
  using A = Sum<T>;
  for_each_line(lines, [&](bool inside, std::int64_t line, std::int64_t begin, int lane, int distance) {
    const std::int64_t first = blockIdx.y * chunk;
    const std::int64_t last = first + chunk < lines.size ? first + chunk : lines.size;
    const auto at = [&](std::int64_t i) { return begin + (reverse ? lines.size - 1 - i : i) * lines.inner; };
    A running = inside && y && sums ? sums[blockIdx.y * lines.count + line] : A(0);
    for (std::int64_t tile = first; tile < last; tile += std::int64_t{kItems} * lines.lanes) {
      const std::int64_t own = tile + std::int64_t{kItems} * lane;
      A items[kItems], sum = 0, total;
      for (int k = 0; k < kItems; ++k) {
        if (inside && own + k < last) sum = functors::plus(sum, static_cast<A>(widen(x[at(own + k)])));
        items[k] = sum;
      }
      const A before = functors::plus(running, sum_of_lanes_before(sum, lane, lines.lanes, distance, &total));
      for (int k = 0; k < kItems; ++k)
        if (y && inside && own + k < last)
          y[at(own + k)] = narrow<T>(static_cast<Compute<T>>(functors::plus(before, items[k])));
      running = functors::plus(running, total);
    }
    if (!y && inside && lane == 0) sums[blockIdx.y * lines.count + line] = running;
  });
}

template <class A>
__global__ void __launch_bounds__(kThreads) before_kernel(A* sums, std::int64_t lines, std::int64_t chunks) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < lines; i += step) {
    A before = 0;
    for (std::int64_t c = 0; c < chunks; ++c) {
      const A own = sums[c * lines + i];
      sums[c * lines + i] = before;
      before = functors::plus(before, own);
    }
  }
}

template <class T>
void run(const Stream& stream, const CumsumArgs& args) {
  using A = Sum<T>;
  if (element_count(args.x.view.shape) == 0) return;
  const Lines lines(args.x.view.shape);
  const std::int64_t tile = std::int64_t{kItems} * lines.lanes;
  // Enough blocks for every multiprocessor, each with several tiles.
  const std::int64_t wanted = properties(stream.device()).multiprocessors * std::int64_t{4} / lines.blocks();
  const std::int64_t most = std::clamp<std::int64_t>(lines.size / (4 * tile), 1, 1024);
  const std::int64_t parts = std::clamp<std::int64_t>(wanted, 1, most);
  const std::int64_t chunk = ((lines.size + parts - 1) / parts + tile - 1) / tile * tile;
  const std::int64_t chunks = (lines.size + chunk - 1) / chunk;
  Grid grid = lines.grid(sizeof(A));
  grid.blocks.y = static_cast<unsigned>(chunks);
  Scratch scratch(stream);
  A* sums = nullptr;
  if (chunks > 1) {
    sums = scratch.take<A>(chunks * lines.count);
    launch(stream, CumsumArgs::kName, cumsum_kernel<T>, grid, data<T>(args.x), static_cast<T*>(nullptr), sums, lines,
           chunk, args.reverse);
    launch(stream, CumsumArgs::kName, before_kernel<A>, grid_for(stream, lines.count), sums, lines.count, chunks);
  }
  launch(stream, CumsumArgs::kName, cumsum_kernel<T>, grid, data<T>(args.x), data<T>(args.y), sums, lines, chunk,
         args.reverse);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const CumsumArgs& args) {
  const DType dtype = args.x.view.dtype;
  if (dtype == DType::i64) {
    const std::int64_t count = element_count(args.x.view.shape);
    const bool one_line = count > 0 && count == args.x.view.shape[1];
    if (one_line && !args.reverse && count <= std::numeric_limits<std::int32_t>::max())
      return running_sums(stream, CumsumArgs::kName, data<std::int64_t>(args.x), data<std::int64_t>(args.y),
                          static_cast<std::int32_t>(count));
    return run<std::int64_t>(stream, args);
  }
  check_floating(CumsumArgs::kName, dtype, stream);
  dispatch_floating(dtype, [&]<class T>(Type<T>) { run<T>(stream, args); });
}

void list_cumsum(KernelList& list) {
  for_floating([&]<class T>(Type<T>) { list.add(cumsum_kernel<T>); });
  list.add(cumsum_kernel<std::int64_t>);
  list.add(before_kernel<double>);
  list.add(before_kernel<std::int64_t>);
}

}  // namespace lockstep::kernels::cuda
