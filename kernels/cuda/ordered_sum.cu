// A sum of several tensors in the order of a list: each element is read once per term and written once.
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Of one launch; a longer sum takes several, of which each goes on with the one before it.
constexpr int kMostTerms = 64;

struct Terms {
  const void* data[kMostTerms];
  int count;
};

template <class T, int kElements>
__device__ Pack<T, kElements> sum_at(const Terms& terms, std::int64_t at) {
  using P = Pack<T, kElements>;
  P sum = static_cast<const P*>(terms.data[0])[at];
  for (int t = 1; t < terms.count; ++t) {
    const P term = static_cast<const P*>(terms.data[t])[at];
#pragma unroll
    for (int k = 0; k < kElements; ++k) sum.element[k] = narrow<T>(widen(sum.element[k]) + widen(term.element[k]));
  }
  return sum;
}

// `out` may be one of the terms: an element is written after it was read, by the same thread.
template <class T>
__global__ void __launch_bounds__(kThreads)
    ordered_sum_kernel(const Terms terms, T* out, std::int64_t count, bool packed) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t packs = packed ? count / kPack<T> : 0;
  for (std::int64_t i = first; i < packs; i += step)
    reinterpret_cast<Pack<T, kPack<T>>*>(out)[i] = sum_at<T, kPack<T>>(terms, i);
  for (std::int64_t i = packs * kPack<T> + first; i < count; i += step) out[i] = sum_at<T, 1>(terms, i).element[0];
}

template <class T>
void run(const Stream& stream, const OrderedSumArgs& args) {
  const View& out = args.out.view;
  const std::int64_t count = element_count(out.shape);
  if (count == 0) return;
  for (std::size_t begin = 0; begin < args.terms.size();) {
    Terms terms{};
    if (begin > 0) terms.data[terms.count++] = out.data;  // the sum so far
    while (terms.count < kMostTerms && begin < args.terms.size())
      terms.data[terms.count++] = args.terms[begin++].view.data;
    bool packed = aligned_for(out.data, out.dtype, kPack<T>);
    for (int t = 0; t < terms.count; ++t) packed &= aligned_for(terms.data[t], out.dtype, kPack<T>);
    const Grid grid = grid_for(stream, packed ? (count + kPack<T> - 1) / kPack<T> : count);
    launch(stream, OrderedSumArgs::kName, ordered_sum_kernel<T>, grid, terms, static_cast<T*>(out.data), count, packed);
  }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const OrderedSumArgs& args) {
  check_floating(OrderedSumArgs::kName, args.out.view.dtype, stream);
  dispatch_floating(args.out.view.dtype, [&]<class T>(Type<T>) { run<T>(stream, args); });
}

void list_ordered_sum(KernelList& list) {
  for_floating([&]<class T>(Type<T>) { list.add(ordered_sum_kernel<T>); });
}

}  // namespace lockstep::kernels::cuda
