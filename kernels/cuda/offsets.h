// From the position of an element to where it lies in memory, on either side: the loop nest of
// kernels/common/loop_nest.h in a form that a kernel takes as an argument. Positions are split by multiplications: of
// 32 bits below 2^31, of 64 beyond. No kernel divides 64 bits, which takes a hundred instructions.
#pragma once

#include <bit>
#include <cstdint>

#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/hd.h"

namespace lockstep::kernels::cuda {

// Division by a number that is not known to the compiler, for dividends below 2^31 (Granlund and Montgomery, 1994).
struct Divider {
  std::uint32_t divisor = 1, magic = 1, shift = 0;

  Divider() = default;
  explicit Divider(std::int64_t size) : divisor(static_cast<std::uint32_t>(size)) {
    if (divisor <= 1) return;
    shift = 32 - static_cast<std::uint32_t>(std::countl_zero(divisor - 1));
    magic =
        static_cast<std::uint32_t>(((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
  LOCKSTEP_HD std::uint32_t divide(std::uint32_t n) const {
    return (static_cast<std::uint32_t>(static_cast<std::uint64_t>(n) * magic >> 32) + n) >> shift;
  }
};
inline constexpr std::int64_t kSmall = std::int64_t{1} << 31;

__extension__ typedef unsigned __int128 Twice;

// The same for dividends below 2^63.
struct WideDivider {
  std::uint64_t magic = 1;
  std::uint32_t shift = 0;

  WideDivider() = default;
  explicit WideDivider(std::int64_t size) {
    const auto divisor = static_cast<std::uint64_t>(size);
    if (divisor <= 1) return;
    shift = 64 - static_cast<std::uint32_t>(std::countl_zero(divisor - 1));
    const auto more = static_cast<Twice>((std::uint64_t{1} << shift) - divisor) << 64;
    magic = static_cast<std::uint64_t>(more / divisor) + 1;
  }
  LOCKSTEP_HD std::int64_t divide(std::int64_t dividend) const {
    const auto n = static_cast<std::uint64_t>(dividend);
#if defined(__CUDA_ARCH__)
    const std::uint64_t high = __umul64hi(n, magic);
#else
    const auto high = static_cast<std::uint64_t>(static_cast<Twice>(n) * magic >> 64);
#endif
    return static_cast<std::int64_t>((high + n) >> shift);
  }
};

// Splits positions into (quotient, remainder) by one size.
struct Splitter {
  std::int64_t size = 1;
  Divider divider;
  WideDivider wide;
  bool small = true;

  Splitter() = default;
  // `count`: positions are below it.
  Splitter(std::int64_t size_, std::int64_t count)
      : size(size_ > 0 ? size_ : 1),
        divider(size < kSmall ? size : 1),
        wide(size),
        small(count <= kSmall && size < kSmall) {}
  LOCKSTEP_HD std::int64_t split(std::int64_t position, std::int64_t* remainder) const {
    if (small) {
      const auto n = static_cast<std::uint32_t>(position);
      const std::uint32_t quotient = divider.divide(n);
      *remainder = static_cast<std::int64_t>(n - quotient * divider.divisor);
      return quotient;
    }
    const std::int64_t quotient = wide.divide(position);
    *remainder = position - quotient * size;
    return quotient;
  }
};

template <int N>
struct At {
  std::int64_t view[N];  // elements
};

// Where the element with a given position (the innermost dimension counts fastest) lies in each of N views.
template <int N>
struct Offsets {
  int rank = 0;
  bool small = true;
  std::int64_t count = 1;
  std::int64_t sizes[kMaxRank] = {};
  Divider dividers[kMaxRank];
  WideDivider wide[kMaxRank];  // where there are many elements
  std::int64_t strides[kMaxRank][N] = {};

  Offsets() = default;
  explicit Offsets(const LoopNest<N>& nest) : rank(nest.rank) {
    for (int d = 0; d < rank; ++d) {
      sizes[d] = nest.sizes[d];
      count *= sizes[d];
      for (int v = 0; v < N; ++v) strides[d][v] = nest.strides[d][v];
    }
    if (nest.empty) count = 0;
    small = count <= kSmall;
    for (int d = 0; d < rank && count > 0; ++d)
      if (small)
        dividers[d] = Divider(sizes[d]);
      else
        wide[d] = WideDivider(sizes[d]);
  }

  // The first kUnrolled dimensions are straight-line code; more of it makes large kernels for rare layouts.
  template <int kUnrolled = 3>
  LOCKSTEP_HD At<N> at(std::int64_t position) const {
    At<N> result;
    for (int v = 0; v < N; ++v) result.view[v] = 0;
    if (rank <= 1) {  // strides of rank 0 are zero
      for (int v = 0; v < N; ++v) result.view[v] = position * strides[0][v];
      return result;
    }
    std::int64_t rest = position;
    int d = 0;
    if (small) {
      auto n = static_cast<std::uint32_t>(position);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (; d < kUnrolled; ++d) {
        if (d == rank) return result;
        const std::uint32_t next = dividers[d].divide(n);
        const auto index = static_cast<std::int64_t>(n - next * dividers[d].divisor);
        for (int v = 0; v < N; ++v) result.view[v] += index * strides[d][v];
        n = next;
      }
      rest = n;
    }
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (; d < rank; ++d) {
      const std::int64_t next = small ? dividers[d].divide(static_cast<std::uint32_t>(rest)) : wide[d].divide(rest);
      const std::int64_t index = rest - next * sizes[d];
      for (int v = 0; v < N; ++v) result.view[v] += index * strides[d][v];
      rest = next;
    }
    return result;
  }
};

// Over views of one shape, merged and sorted for the first of them.
template <int N>
Offsets<N> make_offsets(const Shape& shape, const std::array<const View*, N>& views) {
  return Offsets<N>(make_loop_nest<N>(shape, views));
}

// The same over the dimensions as they are: positions count in row-major order.
template <int N>
Offsets<N> row_major_offsets(const Shape& shape, const std::array<const View*, N>& views) {
  LoopNest<N> nest;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 0) nest.empty = true;
    if (shape[d] == 1) continue;
    nest.sizes[nest.rank] = shape[d];
    for (int v = 0; v < N; ++v) nest.strides[nest.rank][v] = views[v]->strides[d];
    ++nest.rank;
  }
  return Offsets<N>(nest);
}

}  // namespace lockstep::kernels::cuda
