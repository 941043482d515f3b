#include "lockstep/kernels/host/strip_gemm.h"

#include <algorithm>
#include <utility>

#include "lockstep/kernels/host/pieces.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#else
#include <cmath>
#endif

namespace lockstep::kernels::host {
namespace {

#if defined(__AVX512F__)
using Lanes = __m512;
constexpr int kLanes = 16, kMostRows = 8;  // of a tile: higher ones need more of a than the cache's ways hold
constexpr int kMostSums = 16;              // one for each product that can be under way, twice
inline Lanes load_lanes(const float* from) { return _mm512_loadu_ps(from); }
inline void store_lanes(Lanes x, float* to) { _mm512_storeu_ps(to, x); }
inline Lanes multiply_add(float a, Lanes b, Lanes c) { return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
using Lanes = __m256;
constexpr int kLanes = 8, kMostRows = 6, kMostSums = 12;  // of a tile, with 2 of b and 1 of a in 16 registers
inline Lanes load_lanes(const float* from) { return _mm256_loadu_ps(from); }
inline void store_lanes(Lanes x, float* to) { _mm256_storeu_ps(to, x); }
inline Lanes multiply_add(float a, Lanes b, Lanes c) { return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c); }
#else
using Lanes = float;
constexpr int kLanes = 1, kMostRows = 1, kMostSums = 16;
inline Lanes load_lanes(const float* from) { return *from; }
inline void store_lanes(Lanes x, float* to) { *to = x; }
inline Lanes multiply_add(float a, Lanes b, Lanes c) { return std::fma(a, b, c); }
#endif

constexpr int kVectors = kStripColumns / kLanes;  // of a strip
constexpr std::int64_t kDepth = 256;              // so much of a strip stays in the first-level cache: 16 KiB

// Calls f(constant) for each number below Count. Unrolled: the accumulators must be registers, which have no index.
template <int Count, class F>
[[gnu::always_inline]] inline void unrolled(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, Count>{});
}

// Rows x Strips strips of c, with `depth` terms from row k of the strips on.
template <int Rows, int Strips>
[[gnu::noinline]] void multiply_tile(const float* a, std::int64_t a_stride, const float* b, std::int64_t strip_stride,
                                     std::int64_t depth, float* c, std::int64_t c_stride, bool add) {
  Lanes sums[std::size_t{Rows}][std::size_t{Strips} * std::size_t{kVectors}];
  unrolled<Rows>([&](auto i) {
    unrolled<Strips * kVectors>(
        [&](auto v) { sums[i][v] = add ? load_lanes(c + i * c_stride + v * kLanes) : Lanes{}; });
  });
  for (std::int64_t k = 0; k < depth; ++k, b += kStripColumns) {
    Lanes right[std::size_t{Strips} * std::size_t{kVectors}];
    unrolled<Strips * kVectors>([&](auto v) {
      constexpr int kStrip = v / kVectors, kVector = v % kVectors;
      right[v] = load_lanes(b + kStrip * strip_stride + std::int64_t{kVector} * kLanes);
    });
    unrolled<Rows>([&](auto i) {
      const float factor = a[i * a_stride + k];
      unrolled<Strips * kVectors>([&](auto v) { sums[i][v] = multiply_add(factor, right[v], sums[i][v]); });
    });
  }
  unrolled<Rows>([&](auto i) {
    unrolled<Strips * kVectors>([&](auto v) { store_lanes(sums[i][v], c + i * c_stride + v * kLanes); });
  });
}

using Tile = void (*)(const float*, std::int64_t, const float*, std::int64_t, std::int64_t, float*, std::int64_t, bool);

// How many strips side by side a tile of so many rows has: with few accumulators the multipliers wait for their results
// and for loads of a, each of which serves one strip.
constexpr int strips_of(int rows) {
  const int fitting = kMostSums / (rows * kVectors);
  return fitting >= 4 ? 4 : fitting >= 2 ? 2 : 1;
}
struct Tiles {
  Tile several, one;
};
template <int... Rows>
constexpr auto tiles_of(std::integer_sequence<int, Rows...>) {
  struct Table {
    Tiles of[sizeof...(Rows)];
  };
  return Table{{{multiply_tile<Rows + 1, strips_of(Rows + 1)>, multiply_tile<Rows + 1, 1>}...}};
}
constexpr auto kTiles = tiles_of(std::make_integer_sequence<int, kMostRows>{});

// The strips from `begin` to `end`.
void multiply_strips(const StripProduct& p, std::int64_t begin, std::int64_t end) {
  // Tiles of nearly one height: a low one at the end would keep the multipliers waiting.
  const std::int64_t tiles = (p.rows + kMostRows - 1) / kMostRows, stride = p.depth * kStripColumns;
  const int side_by_side = strips_of(static_cast<int>((p.rows + tiles - 1) / tiles));
  for (std::int64_t s = begin; s < end;) {
    const int strips = end - s >= side_by_side ? side_by_side : 1;
    for (std::int64_t k = 0; k < p.depth; k += kDepth) {
      const std::int64_t depth = std::min(kDepth, p.depth - k);
      for (std::int64_t t = 0; t < tiles; ++t) {
        const std::int64_t first = p.rows * t / tiles, rows = p.rows * (t + 1) / tiles - first;
        const Tiles& tile = kTiles.of[rows - 1];
        const int at_once = strips > 1 && strips_of(static_cast<int>(rows)) == strips ? strips : 1;
        for (int one = 0; one < strips; one += at_once)
          (at_once > 1 ? tile.several : tile.one)(
              p.a + first * p.a_stride + k, p.a_stride, p.strips + (s + one) * stride + k * kStripColumns, stride,
              depth, p.c + first * p.c_stride + (s + one) * kStripColumns, p.c_stride, p.add || k > 0);
      }
    }
    s += strips;
  }
}

}  // namespace

void strip_gemm(const StripProduct& p) {
  if (p.rows == 0) return;
  if (p.depth == 0) {
    for (std::int64_t i = 0; i < p.rows && !p.add; ++i)
      std::fill_n(p.c + i * p.c_stride, p.strip_count * kStripColumns, 0.0F);
    return;
  }
  constexpr std::int64_t kPieceTerms = std::int64_t{1} << 20;  // multiplications: some 20 microseconds
  for_pieces(p.strip_count, piece_rows(p.strip_count, p.rows * p.depth * kStripColumns, kPieceTerms),
             [&](std::int64_t begin, std::int64_t end) { multiply_strips(p, begin, end); });
}

}  // namespace lockstep::kernels::host
