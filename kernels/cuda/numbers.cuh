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

// Bytes that are moved in one instruction at most. A pack may have more.
inline constexpr std::size_t kWidest = 16;

template <class T, int kCount>
struct alignas(sizeof(T) * kCount < kWidest ? sizeof(T) * kCount : kWidest) Pack {
  T element[kCount];
};

// A pack as words: elements smaller than a register would each take one.
template <class P>
struct alignas(P) Words {
  std::conditional_t<sizeof(P) % 4 == 0, std::uint32_t, std::uint16_t> word[sizeof(P) / (sizeof(P) % 4 == 0 ? 4 : 2)];
};

// Elements that a thread takes at a time: 16 bytes, of u8 and bool 8. (All operations of a dtype are in one kernel;
// twice the elements would be twice the code.)
template <class T>
inline constexpr int kPack = sizeof(T) == 1 ? 8 : static_cast<int>(kWidest / sizeof(T));

}  // namespace lockstep::kernels::cuda
