// Shapes and strides: up to eight sizes, stored inline.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

inline constexpr int kMaxRank = 8;

// A short list of 64-bit numbers: a shape, strides (in elements) or dimension indices.
class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(std::initializer_list<std::int64_t> values) : Dims(values.begin(), values.size()) {}
  explicit constexpr Dims(std::span<const std::int64_t> values) : Dims(values.data(), values.size()) {}
  static constexpr Dims filled(int rank, std::int64_t value) {
    Dims dims;
    dims.resize(rank);
    for (auto& v : dims) v = value;
    return dims;
  }

  constexpr int rank() const { return rank_; }
  constexpr bool empty() const { return rank_ == 0; }
  constexpr std::int64_t operator[](int i) const { return values_[i]; }
  constexpr std::int64_t& operator[](int i) { return values_[i]; }
  constexpr std::int64_t back() const { return values_[rank_ - 1]; }
  constexpr const std::int64_t* begin() const { return values_; }
  constexpr const std::int64_t* end() const { return values_ + rank_; }
  constexpr std::int64_t* begin() { return values_; }
  constexpr std::int64_t* end() { return values_ + rank_; }

  constexpr void resize(int rank) {
    LOCKSTEP_CHECK(rank >= 0 && rank <= kMaxRank, "[shape] expected at most ", kMaxRank, " dimensions, got ", rank);
    for (int i = rank_; i < rank; ++i) values_[i] = 0;
    rank_ = rank;
  }
  constexpr void push_back(std::int64_t value) {
    resize(rank_ + 1);
    values_[rank_ - 1] = value;
  }
  constexpr void insert(int at, std::int64_t value) {
    push_back(value);
    for (int i = rank_ - 1; i > at; --i) values_[i] = values_[i - 1];
    values_[at] = value;
  }
  constexpr void erase(int at) {
    for (int i = at; i + 1 < rank_; ++i) values_[i] = values_[i + 1];
    --rank_;
  }

  friend constexpr bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.values_[i] != b.values_[i]) return false;
    return true;
  }

 private:
  constexpr Dims(const std::int64_t* values, std::size_t count) {
    LOCKSTEP_CHECK(count <= kMaxRank, "[shape] expected at most ", kMaxRank, " dimensions, got ", count);
    rank_ = static_cast<int>(count);
    for (int i = 0; i < rank_; ++i) values_[i] = values[i];
  }
  int rank_ = 0;
  std::int64_t values_[kMaxRank] = {};
};
using Shape = Dims;
using Strides = Dims;

LOCKSTEP_API std::string to_string(const Dims& dims);  // "[2, 3]"

// Number of elements. Throws InvalidArgument when a size is negative or the product does not fit 63 bits.
LOCKSTEP_API std::int64_t element_count(const Shape& shape);
// Row-major strides.
LOCKSTEP_API Strides contiguous_strides(const Shape& shape);
LOCKSTEP_API bool is_contiguous(const Shape& shape, const Strides& strides);
// The shape that both broadcast to (NumPy's rules). Throws InvalidArgument naming `op` and both shapes.
LOCKSTEP_API Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);
// Strides that read `shape` as `target` (0 along broadcast dimensions). `shape` must broadcast to `target`.
LOCKSTEP_API Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target);
// Wraps a negative dimension; throws InvalidArgument naming `op` when it is out of range.
LOCKSTEP_API int normalize_dim(const char* op, std::int64_t dim, int rank);

}  // namespace lockstep
