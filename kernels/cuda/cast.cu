#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/transpose.h"

namespace lockstep::kernels::cuda {
namespace {

template <class From, class To>
struct Cast {
  // 16 bytes of the smaller type, but of u8 and bool 8.
  static constexpr int kInputs = 1, kElements = kPack<From> > kPack<To> ? kPack<From> : kPack<To>;
  using In0 = From;
  using Output = To;
  bool inverted;  // logical_not: a cast to bool the other way round

  template <int N>
  __device__ void operator()(const Pack<From, N>& x, Pack<To, N>& y) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (std::is_same_v<To, bool>) {
        y.element[k] = functors::convert<bool>(widen(x.element[k])) != inverted;
      } else if constexpr (std::is_same_v<Compute<To>, To>) {
        y.element[k] = functors::convert<To>(widen(x.element[k]));
      } else {
        y.element[k] = narrow<To>(static_cast<float>(widen(x.element[k])));
      }
    }
  }
};

template <class T>  // an unsigned integer
struct Move {
  static constexpr int kInputs = 1, kElements = sizeof(T) == 1 ? 16 : static_cast<int>(16 / sizeof(T));
  using In0 = T;
  using Output = T;
  template <int N>
  __device__ void operator()(const Pack<T, N>& x, Pack<T, N>& y) const {
    y = x;
  }
};

}  // namespace

void Kernels::enqueue(const Stream& stream, const CastArgs& args) {
  const View& in = args.in.view;
  const View& out = args.out.view;
  if (in.dtype == out.dtype && transpose(stream, CastArgs::kName, in, out)) return;
  if (in.dtype == out.dtype)
    return dispatch_size(in.dtype,
                         [&]<class T>(Type<T>) { elementwise(stream, CastArgs::kName, Move<T>{}, {&in}, out); });
  dispatch(in.dtype, [&]<class From>(Type<From>) {
    dispatch(out.dtype, [&]<class To>(Type<To>) {
      if constexpr (!std::is_same_v<From, To>) elementwise(stream, CastArgs::kName, Cast<From, To>{false}, {&in}, out);
    });
  });
}

void logical_not(const Stream& stream, const UnaryArgs& args) {
  dispatch(args.in.view.dtype, [&]<class From>(Type<From>) {
    elementwise(stream, UnaryArgs::kName, Cast<From, bool>{true}, {&args.in.view}, args.out.view);
  });
}

void list_cast(KernelList& list) {
  for_sizes([&]<class T>(Type<T>) { list_elementwise<Move<T>>(list); });
  for_all([&]<class From>(Type<From>) {
    for_all([&]<class To>(Type<To>) {
      if constexpr (!std::is_same_v<From, To> || std::is_same_v<To, bool>) list_elementwise<Cast<From, To>>(list);
    });
  });
}

}  // namespace lockstep::kernels::cuda
