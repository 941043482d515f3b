#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/cuda/kernels.h"

namespace lockstep::kernels::cuda {
namespace {

// All operations of one dtype: which one is the same for all threads.
template <class T>
struct Unary {
  static constexpr int kInputs = 1, kElements = kPack<T>;
  using In0 = T;
  using Output = T;
  using C = Compute<T>;
  UnaryOp op;
  C a, b;

  template <UnaryOp kOp, int N>
  __device__ void apply(const Pack<T, N>& x, Pack<T, N>& y) const {
    if constexpr (functors::supports<C>(kOp) && kOp != UnaryOp::logical_not) {
#pragma unroll
      for (int k = 0; k < N; ++k) y.element[k] = narrow<T>(functors::unary<kOp>(widen(x.element[k]), a, b));
    }
  }
  template <int N, std::size_t... I>
  __device__ void choose(const Pack<T, N>& x, Pack<T, N>& y, std::index_sequence<I...>) const {
    ((op == static_cast<UnaryOp>(I) ? apply<static_cast<UnaryOp>(I)>(x, y) : void()), ...);
  }
  template <int N>
  __device__ void operator()(const Pack<T, N>& x, Pack<T, N>& y) const {
    choose(x, y, std::make_index_sequence<kCountOf<UnaryOp>>{});
  }
};

}  // namespace

void Kernels::enqueue(const Stream& stream, const UnaryArgs& args) {
  const DType dtype = args.in.view.dtype;
  if (args.op == UnaryOp::logical_not) return logical_not(stream, args);
  dispatch(dtype, [&]<class T>(Type<T>) {
    using C = Compute<T>;
    if constexpr (!std::is_same_v<T, bool>) {
      if (functors::supports<C>(args.op)) {
        UnaryOp op = args.op;
        if (op == UnaryOp::pow_scalar && args.a == 2) op = UnaryOp::square;  // as the host does
        return elementwise(stream, UnaryArgs::kName,
                           Unary<T>{op, functors::convert<C>(args.a), functors::convert<C>(args.b)}, {&args.in.view},
                           args.out.view);
      }
    }
    fail_dtype(UnaryArgs::kName, dtype, stream);
  });
}

void list_unary(KernelList& list) {
  for_all([&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, bool>) list_elementwise<Unary<T>>(list);
  });
}

}  // namespace lockstep::kernels::cuda
