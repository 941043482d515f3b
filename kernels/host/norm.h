// What the normalisations of rows share: sums over a row, passes over it, and sums for each channel over all rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "lockstep/kernels/host/fold.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {

struct Two {
  double first = 0, second = 0;
};

// A vector of C in double, as the sum of its parts.
template <class C>
Vector<double> add_parts(const Vector<C>& v) {
  if constexpr (std::is_same_v<C, double>) {
    return v;
  } else {
    float lanes[kWidth<float>];
    store<float>(v, lanes);
    return widened(lanes) + widened(lanes + kWidth<double>);
  }
}

inline double add_lanes(const Vector<double>& v) {
  double sum = 0;
  for (int lane = 0; lane < kWidth<double>; ++lane) sum += v[lane];
  return sum;
}

// The sums over pieces of a row: `vector(i, a, b)` adds to the vectors a and b what the elements from i on give,
// `scalar(i, total)` what one element gives.
template <class C, class AddVector, class AddScalar>
Two sum_pieces(std::int64_t count, AddVector&& vector, AddScalar&& scalar) {
  constexpr std::int64_t kVectors = 4, kStep = kVectors * kWidth<C>, kPiece = 16 * kStep;
  Vector<double> first = {}, second = {};
  std::int64_t i = 0;
  const std::int64_t whole = count / kStep * kStep;
  while (i < whole) {
    Vector<C> a[kVectors] = {}, b[kVectors] = {};
    for (const std::int64_t end = std::min(i + kPiece, whole); i < end; i += kStep)
      for (std::int64_t k = 0; k < kVectors; ++k) vector(i + k * kWidth<C>, a[k], b[k]);
    first += (add_parts<C>(a[0]) + add_parts<C>(a[1])) + (add_parts<C>(a[2]) + add_parts<C>(a[3]));
    second += (add_parts<C>(b[0]) + add_parts<C>(b[1])) + (add_parts<C>(b[2]) + add_parts<C>(b[3]));
  }
  // Behind the last whole step; short rows, which have none, are summed in double alone.
  Vector<C> a = {}, b = {};
  for (; whole > 0 && i + kWidth<C> <= count; i += kWidth<C>) vector(i, a, b);
  Two total{add_lanes(first + add_parts<C>(a)), add_lanes(second + add_parts<C>(b))};
  for (; i < count; ++i) scalar(i, total);
  return total;
}

// Calls f(begin, end) for pieces of [begin, end), and asks for what lies `ahead` elements behind each of them: the next
// row is on its way while this one is written.
template <class C, class F>
void for_each_piece(std::int64_t begin, std::int64_t end, std::int64_t ahead, std::initializer_list<const C*> next,
                    F&& f) {
  constexpr std::int64_t kPiece = 256, kLine = 64 / sizeof(C);
  for (std::int64_t i = begin; i < end; i += kPiece) {
    const std::int64_t stop = std::min(i + kPiece, end);
    for (const C* memory : next)
      for (std::int64_t k = i; k < stop; k += kLine) __builtin_prefetch(memory + ahead + k);
    f(i, stop);
  }
}

// A number for each channel that every row of a piece adds to: in C for a few rows, then in double at `all`.
template <class C>
class ChannelSums {
 public:
  ChannelSums(Scratch& scratch, std::int64_t channels, double* all)
      : channels_(channels), few_(scratch.take<C>(channels)), all_(all) {
    std::fill_n(few_, channels, C(0)), std::fill_n(all_, channels, 0.0);
  }
  C* few() const { return few_; }  // where rows add
  // After a few rows, and after the last one.
  void collect() const {
    for (std::int64_t c = 0; c < channels_; ++c) all_[c] += static_cast<double>(few_[c]), few_[c] = 0;
  }

 private:
  std::int64_t channels_;
  C* few_;
  double* all_;
};
inline constexpr std::int64_t kFewRows = 16;

// The sums of channels over rows that are divided into pieces: each piece has its own, which are added in the order of
// the pieces.
class PieceSums {
 public:
  PieceSums(Scratch& scratch, std::int64_t rows, std::int64_t row_bytes, std::int64_t channels) : channels_(channels) {
    // Few pieces, and long ones: their sums are memory to be written and read, too.
    constexpr std::int64_t kMost = 64, kShare = 64;
    const std::int64_t least =
        kShare * channels * static_cast<std::int64_t>(sizeof(double)) / std::max<std::int64_t>(row_bytes, 1);
    rows_ = std::max({piece_rows(rows, row_bytes, kPieceBytes), (rows + kMost - 1) / kMost, least});
    pieces_ = std::max<std::int64_t>((rows + rows_ - 1) / rows_, 1);
    sums_ = scratch.take<double>(pieces_ * channels);
    if (rows == 0) std::fill_n(sums_, channels, 0.0);
  }
  std::int64_t rows() const { return rows_; }  // of a piece
  std::int64_t pieces() const { return pieces_; }
  double* of(std::int64_t piece) const { return sums_ + piece * channels_; }  // uninitialised
  // Once each piece has its sums.
  const double* total() const {
    for (std::int64_t p = 1; p < pieces_; ++p)
      for (std::int64_t c = 0; c < channels_; ++c) sums_[c] += of(p)[c];
    return sums_;
  }

 private:
  std::int64_t channels_, rows_, pieces_;
  double* sums_;
};

}  // namespace lockstep::kernels::host
