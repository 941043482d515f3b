// Kernels that move or make elements without computing: where, cast, fill, arange.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/half_rows.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/parts.h"
#include "lockstep/kernels/host/streaming.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace lockstep::kernels::host {
namespace {

template <class T>  // Bits
void where_loop(const std::array<const void*, 3>& in, void* out, std::int64_t count, const Scalars&) {
  const auto* condition = static_cast<const std::uint8_t*>(in[0]);  // of bool GCC makes no vector code
  const auto* x = static_cast<const T*>(in[1]);
  const auto* y = static_cast<const T*>(in[2]);
  auto* z = static_cast<T*>(out);
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    // By a mask: both are read, and no branch is needed.
    using U = decltype(x[i].value);
    const U chosen = static_cast<U>(-static_cast<U>(condition[i] != 0));
    z[i].value = static_cast<U>((x[i].value & chosen) | (y[i].value & ~chosen));
  }
}

// By way of 32 bits where all numbers of a block fit: before AVX-512 processors convert several to those alone.
void floats_to_i64(const float* x, std::int64_t* y, std::int64_t count) {
  constexpr std::int64_t kBlock = 256;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    int larger = 0;  // and NaN
    for (std::int64_t i = begin; i < end; ++i) larger += !(std::fabs(x[i]) < 0x1p31f);
    if (larger == 0)
      for (std::int64_t i = begin; i < end; ++i) y[i] = static_cast<std::int32_t>(x[i]);
    else
      for (std::int64_t i = begin; i < end; ++i) y[i] = functors::convert<std::int64_t>(x[i]);
  }
}

template <class From, class To>  // two dtypes
void cast_loop(const std::array<const void*, 1>& in, void* out, std::int64_t count, const Scalars&) {
  const auto* x = static_cast<const From*>(in[0]);
  auto* y = static_cast<To*>(out);
  if constexpr ((std::is_same_v<From, Half> && std::is_same_v<To, float>) ||
                (std::is_same_v<From, float> && (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>))) {
    convert_row(x, y, count);
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, std::int64_t>) {
    floats_to_i64(x, y, count);
  } else {
    for (std::int64_t i = 0; i < count; ++i) y[i] = functors::convert<To>(x[i]);
  }
}

Loop<1> find_cast(DType from, DType to) {
  return dispatch(from, [to]<class From>(Type<From>) {
    return dispatch(to, []<class To>(Type<To>) -> Loop<1> {
      if constexpr (std::is_same_v<From, To>)
        return nullptr;  // see copy_view()
      else
        return cast_loop<From, To>;
    });
  });
}

// By vectors where source and destination lie differently in their cache lines: memcpy() leaves long rows to the
// processor's own instruction for strings, which then takes several times as long.
void copy_row(const std::byte* from, std::byte* to, std::size_t bytes) {
  constexpr std::size_t kVector = 32;
  if (bytes < kVector || (to - from) % kCacheLine == 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (std::size_t i = 0; i + kVector <= bytes; i += kVector) std::memcpy(to + i, from + i, kVector);
  std::memcpy(to + bytes - kVector, from + bytes - kVector, kVector);
}

// Rows of kBytes, or of `bytes` where that is 0: what is known when this is compiled needs no call.
template <std::size_t kBytes>
void copy_rows(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step, std::int64_t rows,
               std::size_t bytes) {
  for (std::int64_t r = 0; r < rows; ++r, from += from_step, to += to_step)
    if constexpr (kBytes > 0)
      std::memcpy(to, from, kBytes);
    else
      copy_row(from, to, bytes);
}

auto find_copy_rows(std::size_t bytes) {
  switch (bytes) {
    case 4:
      return copy_rows<4>;
    case 8:
      return copy_rows<8>;
    case 16:
      return copy_rows<16>;
    case 32:
      return copy_rows<32>;
    case 64:
      return copy_rows<64>;
    default:
      return copy_rows<0>;
  }
}

// Of whole cache lines.
void stream_rows(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step, std::int64_t rows,
                 std::size_t bytes) {
  for (std::int64_t r = 0; r < rows; ++r, from += from_step, to += to_step) stream_lines(from, to, bytes);
  end_streaming();
}

// Whether rows of the output are to be written around the caches: they are many, and whole cache lines.
bool is_streamed(const LoopNest<2>& nest, const View& out) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(out.dtype));
  std::int64_t bytes = nest.inner_size() * element_bytes, offsets = bytes;  // all combined by or: multiples of a line?
  for (int d = 1; d < nest.rank; ++d) {
    bytes *= nest.sizes[d];
    offsets |= nest.strides[d][0] * element_bytes;
  }
  return outgrows_caches(bytes) && offsets % kCacheLine == 0 && is_at_line(out.data);
}

// Copies between views of one dtype whose rows have no gaps; false: they have.
bool copy_by_rows(const View& in, const View& out) {
  const LoopNest<2> nest = make_loop_nest<2>(out.shape, {&out, &in});
  if (nest.inner_stride(0) != 1 || nest.inner_stride(1) != 1) return false;
  const auto element_bytes = static_cast<std::int64_t>(size_of(out.dtype));
  const auto bytes = static_cast<std::size_t>(nest.inner_size() * element_bytes);
  const bool streamed = is_streamed(nest, out);
  const auto copy = streamed ? stream_rows : find_copy_rows(bytes), rest = streamed ? stream_rows : copy_rows<0>;
  using Offsets = std::array<std::int64_t, 2>;
  for_parts(nest, 2 * element_bytes, [&](const LoopNest<2>& part, const Offsets& begin) {
    const auto part_bytes = static_cast<std::size_t>(part.inner_size() * element_bytes);
    const bool single = part.rank < 2;
    const std::int64_t rows = single ? 1 : part.sizes[1], to_step = single ? 0 : part.strides[1][0] * element_bytes,
                       from_step = single ? 0 : part.strides[1][1] * element_bytes;
    for_each_row(
        part,
        [&](const Offsets& at) {
          (part_bytes == bytes ? copy : rest)(
              static_cast<const std::byte*>(in.data) + (begin[1] + at[1]) * element_bytes, from_step,
              static_cast<std::byte*>(out.data) + (begin[0] + at[0]) * element_bytes, to_step, rows, part_bytes);
        },
        2);
  });
  return true;
}

// The bytes of the element that a fill writes, first in memory.
std::uint64_t element_to_fill(const FillArgs& a) {
  std::uint64_t bytes = 0;
  dispatch(a.out.view.dtype, [&]<class T>(Type<T>) {
    T value;
    if constexpr (std::is_same_v<T, std::int64_t>)
      value = a.integer;
    else
      value = functors::convert<T>(a.value);
    std::memcpy(&bytes, &value, sizeof value);
  });
  return bytes;
}

template <class T>  // Bits
void fill_view(const View& out, T value) {
  const LoopNest<1> nest = make_loop_nest<1>(out.shape, {&out});
  using Offsets = std::array<std::int64_t, 1>;
  for_parts(nest, sizeof(T), [&](const LoopNest<1>& part, const Offsets& begin) {
    const std::int64_t size = part.inner_size(), stride = part.inner_stride(0);
    for_each_row(part, [&](const Offsets& offsets) {
      T* row = static_cast<T*>(out.data) + begin[0] + offsets[0];
      if (stride == 1)
        for (std::int64_t i = 0; i < size; ++i) row[i].value = value.value;
      else
        for (std::int64_t i = 0; i < size; ++i) row[i * stride].value = value.value;
    });
  });
}

}  // namespace

void copy_view(const View& in, const View& out) {
  if (!copy_by_rows(in, out)) elementwise<1>({&in}, out, HalfAs::bits, nullptr, {});
}

void Kernels::enqueue(const Stream& stream, const WhereArgs& args) {
  launch(stream, args, [](const WhereArgs& a) {
    const Loop<3> loop = dispatch_size(a.out.view.dtype, []<class T>(Type<T>) -> Loop<3> { return where_loop<T>; });
    elementwise<3>({&a.condition.view, &a.x.view, &a.y.view}, a.out.view, HalfAs::bits, loop, {});
  });
}

void Kernels::enqueue(const Stream& stream, const CastArgs& args) {
  launch(stream, args, [](const CastArgs& a) {
    if (a.in.view.dtype == a.out.view.dtype) return copy_view(a.in.view, a.out.view);
    elementwise<1>({&a.in.view}, a.out.view, HalfAs::bits, find_cast(a.in.view.dtype, a.out.view.dtype), {});
  });
}

void Kernels::enqueue(const Stream& stream, const FillArgs& args) {
  launch(stream, args, [](const FillArgs& a) {
    const std::uint64_t bytes = element_to_fill(a);
    dispatch_size(a.out.view.dtype, [&]<class T>(Type<T>) {
      T value;
      std::memcpy(&value, &bytes, sizeof value);
      fill_view(a.out.view, value);
    });
  });
}

void Kernels::enqueue(const Stream& stream, const ArangeArgs& args) {
  if (args.out.view.dtype == DType::boolean) [[unlikely]]
    fail_dtype(ArangeArgs::kName, DType::boolean, stream);
  launch(stream, args, [](const ArangeArgs& a) {
    const View& out = a.out.view;
    dispatch(out.dtype, [&]<class T>(Type<T>) {
      const std::int64_t count = out.shape[0], stride = out.strides[0];
      T* y = data<T>(a.out);
      if constexpr (std::is_same_v<T, std::int64_t>) {
        if (std::trunc(a.start) == a.start && std::trunc(a.step) == a.step) {  // exact beyond 2^53
          const auto start = static_cast<std::int64_t>(a.start), step = static_cast<std::int64_t>(a.step);
          for (std::int64_t i = 0; i < count; ++i) y[i * stride] = functors::plus(start, functors::times(i, step));
          return;
        }
      }
      for (std::int64_t i = 0; i < count; ++i)
        y[i * stride] = functors::convert<T>(a.start + static_cast<double>(i) * a.step);
    });
  });
}

}  // namespace lockstep::kernels::host
