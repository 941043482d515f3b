#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/cuda/kernels.h"

namespace lockstep::kernels::cuda {
namespace {

// All operations of one dtype; those whose result is bool are a kernel of their own.
template <class T, bool kPredicate>
struct Binary {
  static constexpr int kInputs = 2, kElements = kPack<T>;
  using In0 = T;
  using In1 = T;
  using Output = std::conditional_t<kPredicate, bool, T>;
  using C = Compute<T>;
  BinaryOp op;
  C alpha;

  template <BinaryOp kOp, int N>
  __device__ void apply(const Pack<T, N>& x, const Pack<T, N>& y, Pack<Output, N>& z) const {
    if constexpr (functors::supports<C>(kOp) && functors::is_predicate(kOp) == kPredicate) {
#pragma unroll
      for (int k = 0; k < N; ++k)
        z.element[k] = narrow<Output>(
            static_cast<Compute<Output>>(functors::binary<kOp>(widen(x.element[k]), widen(y.element[k]), alpha)));
    }
  }
  template <int N, std::size_t... I>
  __device__ void choose(const Pack<T, N>& x, const Pack<T, N>& y, Pack<Output, N>& z,
                         std::index_sequence<I...>) const {
    ((op == static_cast<BinaryOp>(I) ? apply<static_cast<BinaryOp>(I)>(x, y, z) : void()), ...);
  }
  template <int N>
  __device__ void operator()(const Pack<T, N>& x, const Pack<T, N>& y, Pack<Output, N>& z) const {
    choose(x, y, z, std::make_index_sequence<kCountOf<BinaryOp>>{});
  }
};

template <class T, bool kPredicate>
void run(const Stream& stream, const BinaryArgs& args) {
  elementwise(stream, BinaryArgs::kName, Binary<T, kPredicate>{args.op, functors::convert<Compute<T>>(args.alpha)},
              {&args.x.view, &args.y.view}, args.out.view);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const BinaryArgs& args) {
  const DType dtype = args.x.view.dtype;
  dispatch(dtype, [&]<class T>(Type<T>) {
    if (!functors::supports<Compute<T>>(args.op)) fail_dtype(BinaryArgs::kName, dtype, stream);
    if (functors::is_predicate(args.op))
      run<T, true>(stream, args);
    else
      run<T, false>(stream, args);
  });
}

void list_binary(KernelList& list) {
  for_all([&]<class T>(Type<T>) {
    list_elementwise<Binary<T, false>>(list);
    list_elementwise<Binary<T, true>>(list);
  });
}

}  // namespace lockstep::kernels::cuda
