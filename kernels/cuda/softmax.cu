// Softmax and its logarithm over the middle of [outer, size, inner]. A block has `lanes` threads for each of several
// lines; where inner is 1 the lanes of a line are neighbours, else neighbouring threads have neighbouring lines. The
// passes over a line after the first one find it in the cache.
#include <limits>

#include "lockstep/kernels/cuda/cuda_table.h"
#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Lines {
  std::int64_t count, size, inner;
  int lanes, block_lines;
  bool lanes_adjacent;
  Splitter by_inner;
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

// Calls f(inside, position of the line's first element, lane, distance between lanes) for the lines of this block. All
// threads of the block make every call.
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
    f(line < s.count, begin, lane, distance);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(const T* x, T* y, const Lines lines, bool log) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t begin, int lane, int distance) {
    const std::int64_t size = inside ? lines.size : 0;
    const auto at = [&](std::int64_t i) { return begin + i * lines.inner; };
    C top = -std::numeric_limits<C>::infinity();
    for (std::int64_t i = lane; i < size; i += lines.lanes) top = functors::larger(widen(x[at(i)]), top);
    top = from_first_lane(join_lanes(Larger<C>{}, top, lane, lines.lanes, distance), lane, distance);
    double sum = 0;
    for (std::int64_t i = lane; i < size; i += lines.lanes) sum += math::exp(widen(x[at(i)]) - top);
    sum = from_first_lane(join_lanes(Add{}, sum, lane, lines.lanes, distance), lane, distance);
    if (log) {
      const C shift = static_cast<C>(math::log(sum));
      for (std::int64_t i = lane; i < size; i += lines.lanes) y[at(i)] = narrow<T>((widen(x[at(i)]) - top) - shift);
    } else {
      const C scale = static_cast<C>(1 / sum);
      for (std::int64_t i = lane; i < size; i += lines.lanes)
        y[at(i)] = narrow<T>(math::exp(widen(x[at(i)]) - top) * scale);
    }
  });
}

// softmax: dx = y * (dy - sum(dy * y)); log: dx = dy - exp(y) * sum(dy).
template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_grad_kernel(const T* dy, const T* y, T* dx, const Lines lines, bool log) {
  using C = Compute<T>;
  for_each_line(lines, [&](bool inside, std::int64_t begin, int lane, int distance) {
    const std::int64_t size = inside ? lines.size : 0;
    const auto at = [&](std::int64_t i) { return begin + i * lines.inner; };
    double sum = 0;
    for (std::int64_t i = lane; i < size; i += lines.lanes) {
      const double d = widen(dy[at(i)]);
      sum += log ? d : d * static_cast<double>(widen(y[at(i)]));
    }
    const C total =
        static_cast<C>(from_first_lane(join_lanes(Add{}, sum, lane, lines.lanes, distance), lane, distance));
    for (std::int64_t i = lane; i < size; i += lines.lanes) {
      const C d = widen(dy[at(i)]), v = widen(y[at(i)]);
      dx[at(i)] = narrow<T>(log ? d - math::exp(v) * total : v * (d - total));
    }
  });
}

template <class T, class... Pointers>
void run(Stream& stream, const char* op, const Shape& shape, bool log, auto kernel, Pointers... pointers) {
  if (element_count(shape) == 0) return;
  Lines lines;
  lines.count = shape[0] * shape[2], lines.size = shape[1], lines.inner = shape[2];
  lines.by_inner = Splitter(lines.inner, lines.count);
  FoldShape plan;
  plan.results = lines.count, plan.elements = lines.size;
  plan_fold(plan, lines.inner == 1);
  lines.lanes = plan.lanes, lines.block_lines = plan.block_results, lines.lanes_adjacent = plan.lanes_adjacent;
  const std::int64_t blocks = (lines.count + lines.block_lines - 1) / lines.block_lines;
  const Grid grid{dim3(static_cast<unsigned>(std::min<std::int64_t>(blocks, 1 << 20))), dim3(kThreads),
                  kThreads * sizeof(double)};
  launch(stream, op, kernel, grid, pointers..., lines, log);
}

}  // namespace

void softmax(Stream& stream, const SoftmaxArgs& args) {
  check_floating(SoftmaxArgs::kName, args.x.view.dtype, stream);
  dispatch_floating(args.x.view.dtype, [&]<class T>(Type<T>) {
    run<T>(stream, SoftmaxArgs::kName, args.x.view.shape, args.log, softmax_kernel<T>, data<T>(args.x),
           data<T>(args.y));
  });
}
void softmax_grad(Stream& stream, const SoftmaxGradArgs& args) {
  check_floating(SoftmaxGradArgs::kName, args.y.view.dtype, stream);
  dispatch_floating(args.y.view.dtype, [&]<class T>(Type<T>) {
    run<T>(stream, SoftmaxGradArgs::kName, args.y.view.shape, args.log, softmax_grad_kernel<T>, data<T>(args.dy),
           data<T>(args.y), data<T>(args.dx));
  });
}

void list_softmax(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(softmax_kernel<T>);
    list.add(softmax_grad_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
