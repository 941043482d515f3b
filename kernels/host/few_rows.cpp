#include "lockstep/kernels/host/few_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/kernels/host/half_rows.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {
namespace {

// Wider than vector.h's where the processor has them: to widen 16 bits and multiply them by several rows takes as long
// as to read them.
#if defined(__AVX512F__)
constexpr int kBytes = 64, kRegisters = 32;
#else
constexpr int kBytes = kVectorBytes, kRegisters = 16;
#endif
typedef float Lanes __attribute__((vector_size(kBytes)));
typedef std::uint32_t Words __attribute__((vector_size(kBytes)));
typedef std::uint16_t Shorts __attribute__((vector_size(kBytes / 2)));
constexpr int kLanes = kBytes / 4, kStep = 2 * kLanes;

template <class To>
To read(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

Lanes widen(const float* from) { return read<Lanes>(from); }
Lanes widen(const BFloat16* from) {
  const Words high = __builtin_convertvector(read<Shorts>(from), Words) << 16;
  return read<Lanes>(&high);
}
Lanes widen(const Half* from) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, read<__m256i>(from));  // the one without a mask warns in g++
#elif defined(__AVX__) && defined(__F16C__)
  return _mm256_cvtph_ps(read<__m128i>(from));
#else
  Lanes to;
  for (int i = 0; i < kLanes; ++i) to[i] = from[i];
  return to;
#endif
}

// Of each line its elements from `begin` on, fewer than kStep, and zeros behind them.
template <int Lines, class T>
struct Rest {
  Rest(const T* const* lines, int used, std::int64_t begin, std::int64_t count) {
    for (int i = 0; i < used; ++i) std::copy_n(lines[i] + begin, count, all[i]), pointers[i] = all[i];
  }
  T all[std::size_t{Lines}][std::size_t{kStep}] = {};
  const T* pointers[std::size_t{Lines}];
};

float sum_of(const Lanes& x) {
  typedef float Four __attribute__((vector_size(16)));
  const auto four = [&](int i) { return read<Four>(reinterpret_cast<const char*>(&x) + std::ptrdiff_t{16} * i); };
  Four sum = four(0);
#pragma GCC unroll 4
  for (int i = 1; i < kLanes / 4; ++i) sum += four(i);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

constexpr std::int64_t kUnit = 32;
constexpr std::int64_t padded(std::int64_t count) { return (count + kUnit - 1) / kUnit * kUnit; }

// ---- A matrix whose rows lie together: sums += x[k] * row k.

constexpr int kTogether = kRegisters / 4;  // rows of the matrix, so that sums are loaded and stored less often
constexpr std::int64_t kStrip = 1024;      // columns of which the first-level cache holds the sums of eight rows

// `ahead` elements behind what is read now is what the next call reads.
template <int Rows, class T>
void add_rows(const float* x, std::int64_t x_stride, const T* const* rows, std::int64_t ahead, std::int64_t columns,
              float* sums, std::int64_t sums_stride) {
  for (std::int64_t j = 0; j < columns; j += kStep) {
    Lanes low[kTogether], high[kTogether];
#pragma GCC unroll 8
    for (int k = 0; k < kTogether; ++k) {
      const T* const from = rows[k] + j;
      low[k] = widen(from), high[k] = widen(from + kLanes);
      __builtin_prefetch(from + ahead);
      if constexpr (sizeof(T) * kStep > 64) __builtin_prefetch(from + kLanes + ahead);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      float* const to = sums + r * sums_stride + j;
      Lanes sum0 = read<Lanes>(to), sum1 = read<Lanes>(to + kLanes);
#pragma GCC unroll 8
      for (int k = 0; k < kTogether; ++k) {
        const Lanes factor = Lanes{} + x[r * x_stride + k];
        sum0 = multiply_add(factor, low[k], sum0), sum1 = multiply_add(factor, high[k], sum1);
      }
      std::memcpy(to, &sum0, sizeof sum0), std::memcpy(to + kLanes, &sum1, sizeof sum1);
    }
  }
}

// ---- A matrix whose columns lie together, as the weights of a layer do: dot products.

// As many columns at once as registers hold sums of.
template <int Rows>
constexpr int kColumns = Rows <= 2 ? 4 : kRegisters / 2 / Rows;
constexpr int kMostColumns = 4, kMostSums = kRegisters / 2;

// out [Rows, kColumns] += the products.
template <int Rows, class T>
void add_dots(const float* x, std::int64_t x_stride, const T* const* columns, std::int64_t ahead, std::int64_t depth,
              float* out) {
  constexpr int kCount = kColumns<Rows>;
  Lanes sums[std::size_t{Rows}][std::size_t{kCount}] = {};
  for (std::int64_t k = 0; k < depth; k += kLanes) {
    Lanes b[std::size_t{kCount}];
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) {
      b[j] = widen(columns[j] + k);
      __builtin_prefetch(columns[j] + k + ahead);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Lanes a = read<Lanes>(x + r * x_stride + k);
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) sums[r][j] = multiply_add(a, b[j], sums[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) out[r * kCount + j] += sum_of(sums[r][j]);
}

// ---- The whole.

template <class T>
struct Kernel {
  int rows, columns;
  void (*add_rows)(const float*, std::int64_t, const T* const*, std::int64_t, std::int64_t, float*, std::int64_t);
  void (*add_dots)(const float*, std::int64_t, const T* const*, std::int64_t, std::int64_t, float*);
};
template <class T, int Rows>
constexpr Kernel<T> kKernel{Rows, kColumns<Rows>, add_rows<Rows, T>, add_dots<Rows, T>};
template <class T>
Kernel<T> kernel_for(std::int64_t rows) {
  return rows == 1 ? kKernel<T, 1> : rows == 2 ? kKernel<T, 2> : rows <= 4 ? kKernel<T, 4> : kKernel<T, 8>;
}

// The left-hand rows as floats, with zeros up to the kernel's rows and up to a multiple of kUnit columns.
struct Left {
  const float* data;
  std::int64_t stride;
};

// Pieces are strips of columns and parts of the rows: several where there are few strips, and so many that no sum is a
// long chain, which would be less exact. The parts' sums are added in order.
struct Division {
  std::int64_t strips, parts, part_rows;
};
Division divide(std::int64_t rows, std::int64_t columns, std::int64_t element_bytes) {
  constexpr std::int64_t kMostParts = 8, kLongest = 256;
  Division d;
  d.strips = (columns + kStrip - 1) / kStrip;
  const std::int64_t pieces = std::min(rows * columns * element_bytes / kPieceBytes, 2 * kMostParts);
  d.parts = std::clamp<std::int64_t>(pieces / d.strips, 1, kMostParts);
  d.part_rows = std::min(padded((rows + d.parts - 1) / d.parts), kLongest);
  d.parts = (rows + d.part_rows - 1) / d.part_rows;
  return d;
}

template <class T>
void multiply_rows(const Kernel<T>& kernel, const Left& left, std::int64_t count, const Matrix<T>& matrix, float* out) {
  Scratch scratch;
  const Division d = divide(matrix.rows, matrix.columns, sizeof(T));
  // Not a multiple of 4 KiB: a sum just stored and the next row's to be loaded would look like one to the processor.
  const std::int64_t stride = d.strips * kStrip + 128;
  float* const sums = scratch.take<float>(d.parts * kernel.rows * stride);
  for_pieces(d.strips * d.parts, 1, [&](std::int64_t piece, std::int64_t) {
    const std::int64_t part = piece / d.strips, column = piece % d.strips * kStrip;
    const std::int64_t columns = std::min(kStrip, matrix.columns - column), whole = columns / kStep * kStep;
    float* const to = sums + part * kernel.rows * stride + column;
    for (int r = 0; r < kernel.rows; ++r) std::fill_n(to + r * stride, padded(columns), 0.0F);
    const T zeros[std::size_t{kStrip}] = {};  // instead of rows behind the last
    const std::int64_t end = std::min(matrix.rows, (part + 1) * d.part_rows);
    for (std::int64_t k = part * d.part_rows; k < end; k += kTogether) {
      const T* rows[kTogether];
      for (int i = 0; i < kTogether; ++i)
        rows[i] = k + i < end ? matrix.data + (k + i) * matrix.row_stride + column : zeros;
      kernel.add_rows(left.data + k, left.stride, rows, kTogether * matrix.row_stride, whole, to, stride);
      if (whole == columns) continue;
      const Rest<kTogether, T> rest(rows, kTogether, whole, columns - whole);
      kernel.add_rows(left.data + k, left.stride, rest.pointers, 0, kStep, to + whole, stride);
    }
  });
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t part = 0; part < d.parts; ++part) {
      const float* const from = sums + (part * kernel.rows + r) * stride;
      float* const to = out + r * matrix.columns;
      for (std::int64_t j = 0; j < matrix.columns; ++j) to[j] = part == 0 ? from[j] : to[j] + from[j];
    }
}

template <class T>
void multiply_columns(const Kernel<T>& kernel, const Left& left, std::int64_t count, const Matrix<T>& matrix,
                      float* out) {
  // Of long lines the processor sees by itself that they go on.
  constexpr std::int64_t kLong = 8192;
  const bool is_long = matrix.rows * static_cast<std::int64_t>(sizeof(T)) >= kLong;
  const std::int64_t ahead = is_long ? 0 : kernel.columns * matrix.column_stride;
  const std::int64_t groups = (matrix.columns + kernel.columns - 1) / kernel.columns;
  const std::int64_t bytes = matrix.rows * kernel.columns * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t whole = matrix.rows / kLanes * kLanes;
  for_pieces(groups, piece_rows(groups, bytes, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin * kernel.columns; j < end * kernel.columns; j += kernel.columns) {
      const T* columns[kMostColumns];
      for (std::int64_t i = 0; i < kernel.columns; ++i)  // behind the last: it again
        columns[i] = matrix.data + std::min(j + i, matrix.columns - 1) * matrix.column_stride;
      float sums[kMostSums] = {};
      kernel.add_dots(left.data, left.stride, columns, ahead, whole, sums);
      if (whole < matrix.rows) {
        const Rest<kMostColumns, T> rest(columns, kernel.columns, whole, matrix.rows - whole);
        kernel.add_dots(left.data + whole, left.stride, rest.pointers, 0, kLanes, sums);
      }
      const std::int64_t wanted = std::min<std::int64_t>(kernel.columns, matrix.columns - j);
      for (std::int64_t r = 0; r < count; ++r)
        std::copy_n(sums + r * kernel.columns, wanted, out + r * matrix.columns + j);
    }
  });
}

}  // namespace

template <class T>
bool is_for_few_rows(const Matrix<T>& rows, const Matrix<T>& matrix, bool has_products) {
  constexpr std::int64_t kMostRows = 8, kMostDots = 4, kElements = std::int64_t{1} << 18, kFewest = 64;
  const std::int64_t most = matrix.column_stride != 1 && has_products ? kMostDots : kMostRows;
  return rows.rows >= 1 && rows.rows <= most && (matrix.column_stride == 1 || matrix.row_stride == 1) &&
         matrix.rows >= kFewest && matrix.columns >= kFewest && matrix.rows * matrix.columns >= kElements;
}

template <class T>
void multiply_few_rows(const Matrix<T>& rows, const Matrix<T>& matrix, float* sums) {
  Scratch scratch;
  const Kernel<T> kernel = kernel_for<T>(rows.rows);
  const std::int64_t stride = padded(rows.columns);
  float* const wide = scratch.take<float>(kernel.rows * stride);
  std::fill_n(wide, kernel.rows * stride, 0.0F);
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    const T* const from = rows.data + r * rows.row_stride;
    if (rows.column_stride == 1)
      convert_row(from, wide + r * stride, rows.columns);
    else
      for (std::int64_t k = 0; k < rows.columns; ++k) wide[r * stride + k] = from[k * rows.column_stride];
  }
  const auto multiply = matrix.column_stride == 1 ? multiply_rows<T> : multiply_columns<T>;
  multiply(kernel, {wide, stride}, rows.rows, matrix, sums);
}

#define LOCKSTEP_FEW_ROWS(T)                                                  \
  template bool is_for_few_rows<T>(const Matrix<T>&, const Matrix<T>&, bool); \
  template void multiply_few_rows<T>(const Matrix<T>&, const Matrix<T>&, float*)
LOCKSTEP_FEW_ROWS(float);
LOCKSTEP_FEW_ROWS(Half);
LOCKSTEP_FEW_ROWS(BFloat16);

}  // namespace lockstep::kernels::host
