// Kernels that move or make elements without computing: where, fill, arange.
#include <cmath>
#include <cstring>

#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/cuda/kernels.h"

namespace lockstep::kernels::cuda {
namespace {

template <class T>  // an unsigned integer
struct Where {
  static constexpr int kInputs = 3, kElements = kPack<T>;
  using In0 = bool;
  using In1 = T;
  using In2 = T;
  using Output = T;
  template <int N>
  __device__ void operator()(const Pack<bool, N>& condition, const Pack<T, N>& x, const Pack<T, N>& y,
                             Pack<T, N>& z) const {
#pragma unroll
    for (int k = 0; k < N; ++k) z.element[k] = condition.element[k] ? x.element[k] : y.element[k];
  }
};

template <class T>  // an unsigned integer
__global__ void __launch_bounds__(kThreads) fill_kernel(T* out, T value, bool packed, const Offsets<1> offsets) {
  constexpr int kCount = 16 / sizeof(T);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  std::int64_t done = 0;
  if (packed) {
    Pack<T, kCount> pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) pack.element[k] = value;
    const std::int64_t packs = offsets.count / kCount;
    for (std::int64_t p = i; p < packs; p += step) reinterpret_cast<Pack<T, kCount>*>(out)[p] = pack;
    done = packs * kCount;
  }
  for (i += done; i < offsets.count; i += step) out[offsets.at(i).view[0]] = value;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    arange_kernel(T* out, std::int64_t count, std::int64_t stride, double start, double step, bool whole) {
  const std::int64_t grid = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += grid) {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      if (whole) {  // exact beyond 2^53
        out[i * stride] =
            functors::plus(static_cast<std::int64_t>(start), functors::times(i, static_cast<std::int64_t>(step)));
        continue;
      }
    }
    const double value = start + static_cast<double>(i) * step;
    if constexpr (std::is_same_v<Compute<T>, T>)
      out[i * stride] = functors::convert<T>(value);
    else
      out[i * stride] = narrow<T>(static_cast<float>(value));
  }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const WhereArgs& args) {
  dispatch_size(args.out.view.dtype, [&]<class T>(Type<T>) {
    elementwise(stream, WhereArgs::kName, Where<T>{}, {&args.condition.view, &args.x.view, &args.y.view},
                args.out.view);
  });
}

void Kernels::enqueue(const Stream& stream, const FillArgs& args) {
  const View& out = args.out.view;
  const Offsets<1> offsets = make_offsets<1>(out.shape, {&out});
  if (offsets.count == 0) return;
  // The bits of one element.
  std::uint64_t bits = 0;
  dispatch(out.dtype, [&]<class T>(Type<T>) {
    T value;
    if constexpr (std::is_same_v<T, std::int64_t>)
      value = args.integer;
    else
      value = functors::convert<T>(args.value);
    std::memcpy(&bits, &value, sizeof value);
  });
  dispatch_size(out.dtype, [&]<class T>(Type<T>) {
    constexpr int kCount = 16 / sizeof(T);
    const bool packed = offsets.rank == 1 && offsets.strides[0][0] == 1 && aligned_for(out.data, out.dtype, kCount);
    launch(stream, FillArgs::kName, fill_kernel<T>,
           grid_for(stream, packed ? offsets.count / kCount + kCount : offsets.count), static_cast<T*>(out.data),
           static_cast<T>(bits), packed, offsets);
  });
}

void Kernels::enqueue(const Stream& stream, const ArangeArgs& args) {
  const View& out = args.out.view;
  if (out.dtype == DType::boolean) [[unlikely]]
    fail_dtype(ArangeArgs::kName, DType::boolean, stream);
  const std::int64_t count = out.shape[0];
  if (count == 0) return;
  const bool whole = std::trunc(args.start) == args.start && std::trunc(args.step) == args.step;
  dispatch(out.dtype, [&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, bool>)
      launch(stream, ArangeArgs::kName, arange_kernel<T>, grid_for(stream, count), static_cast<T*>(out.data), count,
             out.strides[0], args.start, args.step, whole);
  });
}

void list_copy(KernelList& list) {
  for_sizes([&]<class T>(Type<T>) {
    list_elementwise<Where<T>>(list);
    list.add(fill_kernel<T>);
  });
  for_all([&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, bool>) list.add(arange_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
