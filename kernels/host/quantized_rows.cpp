#include "lockstep/kernels/host/quantized_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/quantized_lanes.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host {
namespace {

// A kernel takes blocks of a row's codes: 64 bytes, which are 64 columns of 8 bits and 128 of 4.
constexpr std::int64_t kBlock = 64;

// So many rows of the matrix at once as registers hold sums of.
template <int Rows>
constexpr int kColumns = Rows == 1 || kRegisters > 16 ? 4 : 1;
constexpr int kMostColumns = 4;
// More rows take their turns, while a piece of the matrix is in a cache.
constexpr std::int64_t kMostRows = 4;

// What `count` rows of the left-hand side are made to before the product: an element's lane and register are those of
// its code.
struct Left {
  const float* wide;         // [rows, stride]
  const std::int8_t* codes;  // or this, as many
  const std::int32_t*
      less;             // with codes [rows, stride / 8]: what makes up for codes of the matrix that are not negative
  const float* scales;  // of the codes [rows]
  std::int64_t stride;  // a multiple of a block's columns
};

// Codes of `columns` rows of the matrix, and their scales.
struct Right {
  const std::uint8_t* codes[std::size_t{kMostColumns}];
  const float* scales[std::size_t{kMostColumns}];  // of the block
  int shift;                                       // of a block of 4 bits, 1 << shift quarters have one scale
  std::int64_t ahead;                              // bytes to what the next call reads
};

void prefetch(const void* at) { __builtin_prefetch(at); }

// The scales of a block's four quarters.
void four_scales(const float* from, int shift, float* four) {
  for (int i = 0; i < 4; ++i) four[i] = from[i >> shift];
}

// ---- sums[r][j] += x[r] . row j, for `blocks` blocks. `sums` are lanes.

template <int Rows>
using Sums = Lanes[std::size_t{Rows}][std::size_t{kColumns<Rows>}][std::size_t{kParts}];

template <int Rows>
void add_bytes(const Left& x, std::int64_t first, const Right& right, std::int64_t blocks, Sums<Rows>& total) {
  Sums<Rows> sums;
  std::memcpy(&sums, &total, sizeof sums);
  for (std::int64_t at = 0; at < blocks * kBlock; at += kSixteen) {
    for (std::ptrdiff_t p = 0; p < kParts; ++p) {
      Lanes b[std::size_t{kColumns<Rows>}];
#pragma GCC unroll 4
      for (int j = 0; j < kColumns<Rows>; ++j) {
        const std::uint8_t* const from = right.codes[j] + at;
        b[j] = floats(reinterpret_cast<const std::int8_t*>(from) + p * kLanes);
        if (p == 0 && at % kBlock == 0) prefetch(from + right.ahead);
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const Lanes a = read<Lanes>(x.wide + r * x.stride + first + at + p * kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < kColumns<Rows>; ++j) sums[r][j][p] = multiply_add(a, b[j], sums[r][j][p]);
      }
    }
  }
  std::memcpy(&total, &sums, sizeof sums);
}

// The sums of a block in lanes, of which each has its columns' scale.
template <int Rows>
void add_scaled(Sums<Rows>& total, const Lanes (&block)[std::size_t{Rows}][std::size_t{kColumns<Rows>}],
                std::ptrdiff_t part, const float (&scales)[std::size_t{kColumns<Rows>}][4]) {
#pragma GCC unroll 4
  for (int j = 0; j < kColumns<Rows>; ++j) {
    const Lanes scale = four_each(scales[j], part);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) total[r][j][part] = multiply_add(block[r][j], scale, total[r][j][part]);
  }
}

template <int Rows>
void add_nibbles(const Left& x, std::int64_t first, const Right& right, std::int64_t blocks, Sums<Rows>& total) {
  const int step = 4 >> right.shift;  // scales of a block
  for (std::int64_t block = 0; block < blocks; ++block) {
    float scales[std::size_t{kColumns<Rows>}][4];
    for (int j = 0; j < kColumns<Rows>; ++j) {
      four_scales(right.scales[j] + block * step, right.shift, scales[j]);
      prefetch(right.codes[j] + block * kBlock + right.ahead);
    }
    for (std::ptrdiff_t p = 0; p < kParts; ++p) {
      Ints words[std::size_t{kColumns<Rows>}];
      for (int j = 0; j < kColumns<Rows>; ++j) words[j] = read<Ints>(right.codes[j] + block * kBlock + 4 * p * kLanes);
      Lanes sums[std::size_t{Rows}][std::size_t{kColumns<Rows>}] = {};
      const float* const from = x.wide + first + block * 2 * kBlock + p * kLanes;
      const auto add = [&]<int kPlace>(std::integral_constant<int, kPlace>) {
        Lanes b[std::size_t{kColumns<Rows>}];
#pragma GCC unroll 4
        for (int j = 0; j < kColumns<Rows>; ++j) b[j] = nibbles<kPlace>(words[j]);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const Lanes a = read<Lanes>(from + r * x.stride + std::ptrdiff_t{kPlace} * kSixteen);
#pragma GCC unroll 4
          for (int j = 0; j < kColumns<Rows>; ++j) sums[r][j] = multiply_add(a, b[j], sums[r][j]);
        }
      };
      add(std::integral_constant<int, 0>()), add(std::integral_constant<int, 1>());
      add(std::integral_constant<int, 2>()), add(std::integral_constant<int, 3>());
      add(std::integral_constant<int, 4>()), add(std::integral_constant<int, 5>());
      add(std::integral_constant<int, 6>()), add(std::integral_constant<int, 7>());
      add_scaled<Rows>(total, sums, p, scales);
    }
  }
}

// ---- the same of integers

// Exact: so many blocks that no lane overflows, and their sum is a float's.
template <int Rows, bool kVnni>
void add_byte_products(const Left& x, std::int64_t first, const Right& right, std::int64_t blocks, Sums<Rows>& total) {
  Ints sums[std::size_t{Rows}][std::size_t{kColumns<Rows>}] = {};
  const auto high = reinterpret_cast<Ints>(Ints{} + static_cast<std::int32_t>(0x80808080U));
  for (std::int64_t at = 0; at < blocks * kBlock; at += std::int64_t{4} * kLanes)
#pragma GCC unroll 4
    for (int j = 0; j < kColumns<Rows>; ++j) {
      const auto* const b = reinterpret_cast<const std::int8_t*>(right.codes[j]) + at;
      if (at % kBlock == 0) prefetch(b + right.ahead);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const std::int8_t* const a = x.codes + r * x.stride + first + at;
        if constexpr (kVnni)  // 128 more is not negative
          sums[r][j] = add_products<true>(sums[r][j], read<Ints>(b) ^ high, read<Ints>(a));
        else
          sums[r][j] = add_signed_products<false>(sums[r][j], a, b);
      }
    }
  for (int r = 0; r < Rows; ++r) {
    std::int64_t less = 0;
    if constexpr (kVnni)
      for (std::int64_t i = 0; i < blocks * kBlock / 8; ++i) less += x.less[(r * x.stride + first) / 8 + i];
    for (int j = 0; j < kColumns<Rows>; ++j) {
      std::int64_t sum = 128 * less;
      for (int lane = 0; lane < kLanes; ++lane) sum += sums[r][j][lane];
      total[r][j][0][0] += static_cast<float>(sum);
    }
  }
}

template <int Rows, bool kVnni>
void add_nibble_products(const Left& x, std::int64_t first, const Right& right, std::int64_t blocks,
                         Sums<Rows>& total) {
  const Ints low = Ints{} + 0x0f0f0f0f, sign = Ints{} + 0x08080808;
  const int step = 4 >> right.shift;
  for (std::int64_t block = 0; block < blocks; ++block) {
    float scales[std::size_t{kColumns<Rows>}][4];
    for (int j = 0; j < kColumns<Rows>; ++j) {
      four_scales(right.scales[j] + block * step, right.shift, scales[j]);
      prefetch(right.codes[j] + block * kBlock + right.ahead);
    }
    for (std::ptrdiff_t p = 0; p < kParts; ++p) {
      Lanes sums[std::size_t{Rows}][std::size_t{kColumns<Rows>}];
      for (int j = 0; j < kColumns<Rows>; ++j) {
        const std::ptrdiff_t at = 4 * p * kLanes;
        const Ints words = read<Ints>(right.codes[j] + block * kBlock + at);
        const Ints even = (words & low) ^ sign, odd = ((words >> 4) & low) ^ sign;  // 8 more is not negative
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const std::int64_t here = r * x.stride + first + block * 2 * kBlock;
          Ints sum = read<Ints>(x.less + here / 8 + p * kLanes) * 8;
          sum = add_products<kVnni>(sum, even, read<Ints>(x.codes + here + at));
          sum = add_products<kVnni>(sum, odd, read<Ints>(x.codes + here + kBlock + at));
          sums[r][j] = floats(sum);
        }
      }
      add_scaled<Rows>(total, sums, p, scales);
    }
  }
}

// ---- the left-hand side

// The place of column `i` of a block of 4 bits: word i / 8 is in that lane, and its bits are shifted to by i % 8 steps.
int place_of_wide(int i) { return i % 8 * kSixteen + i / 8; }
// Bytes of even columns, then those of odd ones.
int place_of_code(int i) { return i % 2 * static_cast<int>(kBlock) + i / 2; }

template <class T>
void place(const T* from, std::int64_t columns, int (*place_of)(int), T* to) {
  constexpr int kNibbles = 2 * static_cast<int>(kBlock);
  for (std::int64_t block = 0; block < columns; block += kNibbles)
    for (int i = 0; i < std::min<std::int64_t>(kNibbles, columns - block); ++i)
      to[block + place_of(i)] = from[block + i];
}

// Codes from -127 to 127 in `codes`, a multiple of the scale that is returned: NaN where an element is not finite.
float round_row(const float* x, std::int64_t columns, std::int8_t* codes) {
  float largest = 0, odd = 0;
  for (std::int64_t k = 0; k < columns; ++k) largest = std::max(largest, std::abs(x[k])), odd += x[k] * 0;
  if (!(odd == 0)) return std::numeric_limits<float>::quiet_NaN();
  const float scale = largest / 127;
  if (scale == 0) return 0;
  const double inverse = 1 / static_cast<double>(scale);
  for (std::int64_t k = 0; k < columns; ++k)
    codes[k] = static_cast<std::int8_t>(std::clamp(std::nearbyint(x[k] * inverse), -127.0, 127.0));
  return scale;
}

Left make_left(Scratch& scratch, const float* x, std::int64_t rows, const QuantizedMatrix& m, bool round_x) {
  const std::int64_t unit = m.is_nibbles ? 2 * kBlock : kBlock;
  Left left{};
  left.stride = (m.columns + unit - 1) / unit * unit;
  const std::int64_t all = (rows + kMostRows) * left.stride;  // a kernel may take more rows than there are
  if (!round_x) {
    float* const wide = scratch.take<float>(all);
    std::fill_n(wide, all, 0.0F);
    for (std::int64_t r = 0; r < rows; ++r)
      if (m.is_nibbles)
        place(x + r * m.columns, m.columns, place_of_wide, wide + r * left.stride);
      else
        std::copy_n(x + r * m.columns, m.columns, wide + r * left.stride);
    left.wide = wide;
    return left;
  }
  auto* const codes = scratch.take<std::int8_t>(all);
  auto* const less = scratch.take<std::int32_t>(all / 8);
  auto* const scales = scratch.take<float>(rows);
  auto* const row = scratch.take<std::int8_t>(left.stride);
  std::fill_n(codes, all, std::int8_t{0}), std::fill_n(less, all / 8, 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::fill_n(row, left.stride, std::int8_t{0});
    scales[r] = round_row(x + r * m.columns, m.columns, row);
    for (std::int64_t k = 0; k < left.stride; ++k) less[(r * left.stride + k) / 8] -= row[k];
    if (m.is_nibbles)
      place(row, m.columns, place_of_code, codes + r * left.stride);
    else
      std::copy_n(row, m.columns, codes + r * left.stride);
  }
  left.codes = codes, left.less = less, left.scales = scales;
  return left;
}

// ---- the whole

// sums [Rows, kColumns<Rows>] of some rows of the matrix, from `row` on; the last one again behind it.
template <int Rows>
using Add = void (*)(const Left&, std::int64_t, const Right&, std::int64_t, Sums<Rows>&);
template <int Rows>
Add<Rows> kernel_of(const QuantizedMatrix& m, bool round_x) {
  if (!round_x) return m.is_nibbles ? add_nibbles<Rows> : add_bytes<Rows>;
  if constexpr (kLanes == kSixteen)
    if (has_vnni()) return m.is_nibbles ? add_nibble_products<Rows, true> : add_byte_products<Rows, true>;
  return m.is_nibbles ? add_nibble_products<Rows, false> : add_byte_products<Rows, false>;
}

template <int Rows>
void multiply(Left x, std::int64_t count, const QuantizedMatrix& m, std::int64_t row, std::int64_t end, float* out) {
  const Add<Rows> add = kernel_of<Rows>(m, x.codes != nullptr);
  const std::int64_t bytes = m.row_bytes(), groups = m.groups(), blocks = bytes / kBlock, rest = bytes % kBlock;
  const std::int64_t block_columns = m.is_nibbles ? 2 * kBlock : kBlock;
  const int shift = !m.is_nibbles || m.group == 128 ? 2 : m.group == 64 ? 1 : 0;
  // So few blocks that lanes of integers do not overflow.
  constexpr std::int64_t kMostBlocks = 256, kAhead = 1024;
  // Neighbours; or, of short rows, those that are far apart, each of which goes on where its last one ended: memory is
  // fast along long lines.
  const std::int64_t each = (end - row + kColumns<Rows> - 1) / kColumns<Rows>;
  const std::int64_t apart = m.is_nibbles ? each : 1, step = m.is_nibbles ? 1 : kColumns<Rows>;
  for (const std::int64_t stop = m.is_nibbles ? row + each : end; row < stop; row += step) {
    Right right{};
    right.shift = shift, right.ahead = m.is_nibbles ? kAhead : kColumns<Rows> * bytes;
    const std::uint8_t* codes[std::size_t{kMostColumns}];
    const float* scales[std::size_t{kMostColumns}];
    for (int j = 0; j < kColumns<Rows>; ++j) {
      const std::int64_t at = std::min(row + j * apart, end - 1);
      codes[j] = static_cast<const std::uint8_t*>(m.codes) + at * bytes, scales[j] = m.scales + at * groups;
    }
    Sums<Rows> sums = {};
    for (std::int64_t block = 0; block < blocks; block += kMostBlocks) {
      for (int j = 0; j < kColumns<Rows>; ++j)
        right.codes[j] = codes[j] + block * kBlock, right.scales[j] = scales[j] + (block * 4 >> shift);
      add(x, block * block_columns, right, std::min(kMostBlocks, blocks - block), sums);
    }
    if (rest > 0) {  // with zeros behind
      std::uint8_t last[std::size_t{kMostColumns}][std::size_t{kBlock}] = {};
      float last_scales[std::size_t{kMostColumns}][4] = {};
      const std::int64_t before = blocks * 4 >> shift;
      for (int j = 0; j < kColumns<Rows>; ++j) {
        std::copy_n(codes[j] + blocks * kBlock, rest, last[j]);
        if (m.is_nibbles) std::copy_n(scales[j] + before, groups - before, last_scales[j]);
        right.codes[j] = last[j], right.scales[j] = last_scales[j];
      }
      right.ahead = 0;
      add(x, blocks * block_columns, right, 1, sums);
    }
    for (std::int64_t r = 0; r < count; ++r)
      for (int j = 0; j < kColumns<Rows> && row + j * apart < end; ++j) {
        const std::int64_t column = row + j * apart;
        float sum = sum_of(sums[r][j]);
        if (!m.is_nibbles) sum *= m.scales[column];
        if (x.codes) sum *= x.scales[r];
        out[r * m.rows + column] = sum;
      }
  }
}

}  // namespace

void multiply_quantized(const float* x, std::int64_t count, const QuantizedMatrix& m, bool round_x, float* sums) {
  Scratch scratch;
  const Left all = make_left(scratch, x, count, m, round_x);
  constexpr std::int64_t kUnit = 4;  // rows of the matrix that a kernel takes together
  const std::int64_t units = (m.rows + kUnit - 1) / kUnit;
  const std::int64_t cost = kUnit * m.row_bytes() * std::max<std::int64_t>(1, count / 2);
  for_pieces(units, piece_rows(units, cost, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = begin * kUnit, last = std::min(end * kUnit, m.rows);
    for (std::int64_t r = 0; r < count; r += kMostRows) {
      const std::int64_t some = std::min(kMostRows, count - r);
      Left left = all;
      if (left.wide) left.wide += r * left.stride;
      if (left.codes) left.codes += r * left.stride, left.less += r * left.stride / 8, left.scales += r;
      const auto run = some == 1 ? multiply<1> : multiply<4>;
      run(left, some, m, row, last, sums + r * m.rows);
    }
  });
}

}  // namespace lockstep::kernels::host
