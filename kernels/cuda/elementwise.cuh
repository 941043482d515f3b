// The driver of the elementwise kernels. An operation is a struct
//
//   struct Operation {
//     static constexpr int kInputs;           // 1 to 3
//     using In0 (, In1, In2), Output;         // element types in memory
//     static constexpr int kElements;         // that a thread computes together
//     __device__ void operator()(Pack<In0, kElements>, …, Pack<Output, kElements>& out) const;
//   };
//
// and one kernel per operation serves all layouts: packs where every view is contiguous and aligned, else one element
// at a time, neighbouring threads taking neighbouring elements.
#pragma once

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {

template <int N>
struct ElementwiseViews {
  void* data[N + 1];  // of the output, then of the inputs
  bool packed;
  Offsets<N + 1> offsets;
};

template <class Operation, int kInput>
struct InputOf;
template <class Operation>
struct InputOf<Operation, 0> : Type<typename Operation::In0> {};
template <class Operation>
struct InputOf<Operation, 1> : Type<typename Operation::In1> {};
template <class Operation>
struct InputOf<Operation, 2> : Type<typename Operation::In2> {};

template <class Operation>
struct Elements {
  static constexpr int N = Operation::kInputs, kCount = Operation::kElements;
  template <int kInput>
  using In = Pack<typename InputOf<Operation, (kInput < N ? kInput : 0)>::type, kCount>;

  In<0> in0;
  In<1> in1;
  In<2> in2;
  Pack<typename Operation::Output, kCount> out;

  template <int kInput>
  __device__ auto& in() {
    if constexpr (kInput == 0)
      return in0;
    else if constexpr (kInput == 1)
      return in1;
    else
      return in2;
  }
  __device__ void compute(const Operation& operation) {
    if constexpr (N == 1)
      operation(in0, out);
    else if constexpr (N == 2)
      operation(in0, in1, out);
    else
      operation(in0, in1, in2, out);
  }
};

template <class Operation>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(const Operation operation, const ElementwiseViews<Operation::kInputs> views) {
  constexpr int N = Operation::kInputs, kCount = Operation::kElements;
  using Output = typename Operation::Output;
  constexpr std::int64_t kTile = kThreads * kCount;
  const std::int64_t count = views.offsets.count;
  for (std::int64_t begin = blockIdx.x * kTile; begin < count; begin += gridDim.x * kTile) {
    Elements<Operation> e{};
    // The same for all threads of a block: either branch is taken by whole warps.
    if (views.packed && begin + kTile <= count) {
      const std::int64_t pack = begin / kCount + threadIdx.x;
      const auto load = [&]<int kInput>(auto& into) {
        if constexpr (kInput < N) {
          using P = std::remove_reference_t<decltype(into)>;
          into = static_cast<const P*>(views.data[kInput + 1])[pack];
        }
      };
      load.template operator()<0>(e.in0);
      load.template operator()<1>(e.in1);
      load.template operator()<2>(e.in2);
      e.compute(operation);
      static_cast<Pack<Output, kCount>*>(views.data[0])[pack] = e.out;
      continue;
    }
    std::int64_t to[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const std::int64_t position = begin + k * kThreads + threadIdx.x;
      if (position >= count) continue;
      const At<N + 1> at = views.offsets.at(position);
      to[k] = at.view[0];
      e.in0.element[k] = static_cast<const typename InputOf<Operation, 0>::type*>(views.data[1])[at.view[1]];
      if constexpr (N > 1)
        e.in1.element[k] = static_cast<const typename InputOf<Operation, 1>::type*>(views.data[2])[at.view[2]];
      if constexpr (N > 2)
        e.in2.element[k] = static_cast<const typename InputOf<Operation, 2>::type*>(views.data[3])[at.view[3]];
    }
    e.compute(operation);
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (begin + k * kThreads + threadIdx.x < count) static_cast<Output*>(views.data[0])[to[k]] = e.out.element[k];
  }
}

template <class Operation>
void elementwise(const Stream& stream, const char* op, const Operation& operation,
                 const std::array<const View*, Operation::kInputs>& in, const View& out) {
  constexpr int N = Operation::kInputs;
  std::array<const View*, N + 1> all{&out};
  std::copy(in.begin(), in.end(), all.begin() + 1);
  ElementwiseViews<N> views;
  views.offsets = make_offsets<N + 1>(out.shape, all);
  if (views.offsets.count == 0) return;
  views.packed = views.offsets.rank <= 1;
  for (int v = 0; v <= N; ++v) {
    views.data[v] = all[v]->data;
    views.packed &= views.offsets.rank == 0 || views.offsets.strides[0][v] == 1;
    views.packed &= aligned_for(all[v]->data, all[v]->dtype, Operation::kElements);
  }
  const std::int64_t packs = (views.offsets.count + Operation::kElements - 1) / Operation::kElements;
  launch(stream, op, elementwise_kernel<Operation>, grid_for(stream, packs), operation, views);
}

}  // namespace lockstep::kernels::cuda
