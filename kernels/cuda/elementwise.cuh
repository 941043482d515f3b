// The driver of the elementwise kernels. An operation is a struct
//
//   struct Operation {
//     static constexpr int kInputs;           // 1 to 3
//     using In0 (, In1, In2), Output;         // element types in memory
//     static constexpr int kElements;         // of a pack, where all views are contiguous and aligned
//     template <int N>
//     __device__ void operator()(Pack<In0, N>, …, Pack<Output, N>& out) const;
//   };
//
// and has two kernels: one for packs, of which each thread has several under way before it needs the first one, since
// what the memory has to do at once is what it is fast by; and one for all other layouts, in which neighbouring threads
// take neighbouring elements.
#pragma once

#include <bit>
#include <type_traits>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {

template <int N>
struct Arrays {
  void* data[N + 1];  // of the output, then of the inputs
};

template <class Operation, int kInput>
struct InputOf;
template <class Operation>
struct InputOf<Operation, 0> : Type<typename Operation::In0> {};
template <class Operation>
struct InputOf<Operation, 1> : Type<typename Operation::In1> {};
template <class Operation>
struct InputOf<Operation, 2> : Type<typename Operation::In2> {};

template <class Operation, int kCount, template <class> class Held = std::type_identity_t>
struct Elements {
  static constexpr int N = Operation::kInputs;
  template <int kInput>
  using In = Pack<typename InputOf<Operation, (kInput < N ? kInput : 0)>::type, kCount>;

  Held<In<0>> in0;
  Held<In<1>> in1;
  Held<In<2>> in2;
  Pack<typename Operation::Output, kCount> out;

  // Calls f(number of the input, its pack).
  template <class F>
  __device__ void for_inputs(F&& f) {
    f(0, in0);
    if constexpr (N > 1) f(1, in1);
    if constexpr (N > 2) f(2, in2);
  }
  __device__ void compute(const Operation& operation) {
    if constexpr (N == 1)
      operation(std::bit_cast<In<0>>(in0), out);
    else if constexpr (N == 2)
      operation(std::bit_cast<In<0>>(in0), std::bit_cast<In<1>>(in1), out);
    else
      operation(std::bit_cast<In<0>>(in0), std::bit_cast<In<1>>(in1), std::bit_cast<In<2>>(in2), out);
  }
};

// Packs that a thread has under way, so that they are 64 bytes.
template <class Operation>
constexpr int packs_under_way() {
  constexpr int N = Operation::kInputs;
  std::size_t bytes = sizeof(typename InputOf<Operation, 0>::type);
  if constexpr (N > 1) bytes += sizeof(typename InputOf<Operation, 1>::type);
  if constexpr (N > 2) bytes += sizeof(typename InputOf<Operation, 2>::type);
  const std::size_t packs = (64 + bytes * Operation::kElements - 1) / (bytes * Operation::kElements);
  return packs < 4 ? static_cast<int>(packs) : 4;
}

// Elements that a thread has under way in other layouts.
template <class Operation>
inline constexpr int kStrided = Operation::kElements < 4 ? Operation::kElements : 4;

template <class Operation>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<typename Operation::In0>)
    elementwise_kernel(const Operation operation, const Arrays<Operation::kInputs> arrays, std::int64_t count) {
  constexpr int kCount = Operation::kElements, kPacks = packs_under_way<Operation>();
  using Output = typename Operation::Output;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads, packs = count / kCount;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; first < packs;
       first += kPacks * step) {
    Elements<Operation, kCount, Words> ahead[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (const std::int64_t at = first + p * step; at < packs)
        ahead[p].for_inputs([&]<class P>(int v, P& pack) { pack = static_cast<const P*>(arrays.data[v + 1])[at]; });

        // One piece of code for all packs: operations are many and some of them long.
#pragma unroll 1
    for (int now = 0; now < kPacks; ++now) {
      const std::int64_t at = first + now * step;
      if (at >= packs) break;
      Elements<Operation, kCount, Words> e{};
#pragma unroll
      for (int p = 0; p < kPacks; ++p)  // registers have no index
        if (p == now) e = ahead[p];
      e.compute(operation);
      static_cast<Pack<Output, kCount>*>(arrays.data[0])[at] = e.out;
    }
  }
  // Less than a pack is left.
  const std::int64_t at = packs * kCount + threadIdx.x;
  if (blockIdx.x > 0 || at >= count) return;
  Elements<Operation, 1> e{};
  e.for_inputs([&]<class P>(int v, P& pack) { pack = static_cast<const P*>(arrays.data[v + 1])[at]; });
  e.compute(operation);
  static_cast<Output*>(arrays.data[0])[at] = e.out.element[0];
}

template <class Operation>
__global__ void __launch_bounds__(kThreads)
    strided_kernel(const Operation operation, const Arrays<Operation::kInputs> arrays,
                   const Offsets<Operation::kInputs + 1> offsets) {
  constexpr int N = Operation::kInputs, kCount = kStrided<Operation>;
  using Output = typename Operation::Output;
  constexpr std::int64_t kTile = kThreads * kCount;
  for (std::int64_t begin = blockIdx.x * kTile; begin < offsets.count; begin += gridDim.x * kTile) {
    Elements<Operation, kCount> e{};
    std::int64_t to[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const std::int64_t position = begin + k * kThreads + threadIdx.x;
      if (position >= offsets.count) continue;
      const At<N + 1> at = offsets.at(position);
      to[k] = at.view[0];
      e.for_inputs([&]<class T>(int v, Pack<T, kCount>& pack) {
        pack.element[k] = static_cast<const T*>(arrays.data[v + 1])[at.view[v + 1]];
      });
    }
    e.compute(operation);
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (begin + k * kThreads + threadIdx.x < offsets.count)
        static_cast<Output*>(arrays.data[0])[to[k]] = e.out.element[k];
  }
}

template <class Operation>
void elementwise(const Stream& stream, const char* op, const Operation& operation,
                 const std::array<const View*, Operation::kInputs>& in, const View& out) {
  constexpr int N = Operation::kInputs;
  std::array<const View*, N + 1> all{&out};
  std::copy(in.begin(), in.end(), all.begin() + 1);
  const Offsets<N + 1> offsets = make_offsets<N + 1>(out.shape, all);
  if (offsets.count == 0) return;
  Arrays<N> arrays;
  bool packed = offsets.rank == 1;
  for (int v = 0; v <= N; ++v) {
    arrays.data[v] = all[v]->data;
    packed &= offsets.strides[0][v] == 1 && aligned_for(all[v]->data, all[v]->dtype, Operation::kElements);
  }
  // No thread goes round more than once: blocks that come one after the other fill the device to the end.
  const auto grid = [&](int elements, int times) {
    const std::int64_t packs = (offsets.count + elements - 1) / elements, of_block = std::int64_t{kThreads} * times;
    Grid filled = grid_for(stream, packs);
    filled.blocks.x =
        std::max(filled.blocks.x, static_cast<unsigned>(std::min<std::int64_t>(packs / of_block, 1 << 30)));
    return filled;
  };
  if (packed)
    launch(stream, op, elementwise_kernel<Operation>, grid(Operation::kElements, packs_under_way<Operation>()),
           operation, arrays, offsets.count);
  else
    launch(stream, op, strided_kernel<Operation>, grid(kStrided<Operation>, 4), operation, arrays, offsets);
}
template <class Operation>
void list_elementwise(KernelList& list) {
  list.add(elementwise_kernel<Operation>);
  list.add(strided_kernel<Operation>);
}

}  // namespace lockstep::kernels::cuda
