// Elements in registers: conversions of the 16-bit types by the hardware, and packs that are moved in one instruction.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "lockstep/kernels/functors.h"

namespace lockstep::kernels::cuda {

using functors::Compute;

template <class T>
__device__ inline Compute<T> widen(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>)
    return __half2float(__ushort_as_half(x.bits));
  else if constexpr (std::is_same_v<T, BFloat16>)
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
  else
    return x;
#else
  return static_cast<Compute<T>>(x);
#endif
}

template <class T>
__device__ inline T narrow(Compute<T> x) {
#if defined(__CUDA_ARCH__)
  T result;
  if constexpr (std::is_same_v<T, Half>)
    result.bits = __half_as_ushort(__float2half_rn(x));
  else if constexpr (std::is_same_v<T, BFloat16>)
    result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  else
    result = x;
  return result;
#else
  return static_cast<T>(x);
#endif
}

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T element[kCount];
};

// Elements that a thread takes at a time: 16 bytes of f32 and the wider types, 8 of the 16-bit ones. (All operations of
// a dtype are in one kernel; twice the elements would be twice the code.)
template <class T>
inline constexpr int kPack = sizeof(T) == 8 ? 2 : 4;

}  // namespace lockstep::kernels::cuda
