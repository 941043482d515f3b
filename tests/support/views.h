// Tensors for kernel tests: any dtype and layout, element access by index, and guard bytes around every element.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/kernels/api.h"

namespace support {

inline constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// Of the dtype's statistics.
inline lockstep::DType wide(lockstep::DType dtype) {
  return dtype == lockstep::DType::f64 ? lockstep::DType::f64 : lockstep::DType::f32;
}

using namespace lockstep;  // NOLINT: test support is written as if it were inside

enum class Layout {
  contiguous,
  transposed,     // dimensions stored in reverse order
  broadcast,      // every second dimension repeats with stride 0, beginning with the last
  slice,          // part of a larger tensor: gaps between rows, and a start that no vector likes
  channels_last,  // of rank 4, [N, C, H, W] stored in the order N, H, W, C
  shifted,        // contiguous, with a start that no vector likes
};
inline constexpr Layout kInputLayouts[] = {Layout::contiguous, Layout::transposed, Layout::broadcast, Layout::slice};
inline constexpr Layout kOutputLayouts[] = {Layout::contiguous, Layout::transposed, Layout::slice};
inline const char* name_of(Layout layout) {
  constexpr const char* kNames[] = {"contiguous", "transposed", "broadcast", "slice", "channels_last", "shifted"};
  return kNames[static_cast<int>(layout)];
}

inline constexpr DType kAllDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,   DType::i32,
                                       DType::i64, DType::u8,  DType::i8,  DType::boolean};
inline constexpr DType kFloatingDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

// What one rounding to the dtype may change, relative.
inline double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-23;
    case DType::f64:
      return 0x1p-52;
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0;
  }
}

// The device that kernels are tested on: LOCKSTEP_TEST_DEVICE, default cpu. With host:0 and LOCKSTEP_HOST_MODE=async
// the tests go through the queue of a stream.
inline Device test_device() {
  static const Device device = [] {
    const char* text = std::getenv("LOCKSTEP_TEST_DEVICE");
    return text ? Device::parse(text) : Device::cpu();
  }();
  return device;
}

// In which image kernels of the device take their images.
inline std::vector<Layout> image_layouts() {
  if (!kernels::table(test_device().type()).takes_channels_last) return {Layout::contiguous};
  return {Layout::contiguous, Layout::channels_last};
}

class TestTensor {
 public:
  TestTensor(DType dtype, Shape shape, Layout layout = Layout::contiguous, Device device = test_device())
      : shape_(shape), strides_(Dims::filled(shape.rank(), 0)), dtype_(dtype), device_(device) {
    std::int64_t stride = 1;
    const auto take = [&](int d, std::int64_t gap) {
      if (layout == Layout::broadcast && (shape.rank() - 1 - d) % 2 == 0) return;
      strides_[d] = stride;
      stride = stride * std::max<std::int64_t>(shape[d], 1) + gap;
    };
    const std::int64_t gap = layout == Layout::slice ? 3 : 0;
    if (layout == Layout::channels_last)
      for (const int d : {1, 3, 2, 0}) take(d, gap);
    else if (layout == Layout::transposed)
      for (int d = 0; d < shape.rank(); ++d) take(d, gap);
    else
      for (int d = shape.rank() - 1; d >= 0; --d) take(d, gap);
    offset_ = kGuard + (layout == Layout::slice || layout == Layout::shifted ? 1 : 0);
    // 8-byte units: the start of an i64 or f64 element must be aligned.
    storage_.resize((static_cast<std::size_t>(offset_ + stride + kGuard) * size_of(dtype) + 7) / 8);
    std::memset(storage_.data(), kPattern, storage_.size() * 8);
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t count() const { return element_count(shape_); }
  View view() const { return {const_cast<std::byte*>(element(0)), shape_, strides_, dtype_, device_, true}; }
  In in() const { return {view()}; }
  Out out() { return {view()}; }
  InOut inout() { return {view()}; }

  // The element at a row-major position, whatever the layout.
  double operator[](std::int64_t position) const { return at_offset(offset_of(position)); }
  double at(const Dims& index) const { return at_offset(offset_of(index)); }
  std::int64_t integer(std::int64_t position) const {
    std::int64_t value;
    std::memcpy(&value, element(offset_of(position)), sizeof value);
    return value;
  }
  void set(std::int64_t position, double value) {
    std::byte* memory = element(offset_of(position));
    dispatch(dtype_, [&]<class T>(Type<T>) {
      T stored;
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
        stored = T(static_cast<float>(value));
      else
        stored = static_cast<T>(value);
      std::memcpy(memory, &stored, sizeof stored);
    });
  }
  void set_integer(std::int64_t position, std::int64_t value) {
    std::memcpy(element(offset_of(position)), &value, sizeof value);
  }

  // f(position) for every element; the values are rounded to the dtype.
  template <class F>
  TestTensor& fill(F&& f) {
    for (std::int64_t i = 0; i < count(); ++i) set(i, f(i));
    return *this;
  }
  // Numbers between low and high that look random; whole ones for the integer dtypes, 0 and 1 for bool.
  TestTensor& fill_random(std::uint64_t seed, double low = -2, double high = 2) {
    std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    return fill([&](std::int64_t) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double fraction = static_cast<double>(state >> 40) * 0x1p-24;
      if (dtype_ == DType::boolean) return fraction < 0.5 ? 0.0 : 1.0;
      const double value = low + (high - low) * fraction;
      return is_floating(dtype_) ? value : dtype_ == DType::u8 ? std::floor(std::fabs(value)) : std::floor(value);
    });
  }

  std::vector<double> values() const {
    std::vector<double> all(static_cast<std::size_t>(count()));
    for (std::int64_t i = 0; i < count(); ++i) all[static_cast<std::size_t>(i)] = (*this)[i];
    return all;
  }
  std::vector<std::byte> bytes() const {
    const auto* begin = reinterpret_cast<const std::byte*>(storage_.data());
    return {begin, begin + storage_.size() * 8};
  }

  // All of the memory, guards included.
  std::byte* storage() { return reinterpret_cast<std::byte*>(storage_.data()); }
  std::size_t storage_bytes() const { return storage_.size() * 8; }

  // True when no byte outside the elements was written.
  bool guards_intact() const {
    std::vector<bool> used(storage_.size() * 8, false);
    for (std::int64_t i = 0; i < count(); ++i) {
      const auto begin = static_cast<std::size_t>(offset_ + offset_of(i)) * size_of(dtype_);
      for (std::size_t b = 0; b < size_of(dtype_); ++b) used[begin + b] = true;
    }
    const std::vector<std::byte> all = bytes();
    for (std::size_t b = 0; b < all.size(); ++b)
      if (!used[b] && all[b] != std::byte{kPattern}) return false;
    return true;
  }

  std::int64_t offset_of(std::int64_t position) const {
    std::int64_t offset = 0;
    for (int d = shape_.rank() - 1; d >= 0; --d) {
      offset += position % shape_[d] * strides_[d];
      position /= shape_[d];
    }
    return offset;
  }
  std::int64_t offset_of(const Dims& index) const {
    std::int64_t offset = 0;
    for (int d = 0; d < shape_.rank(); ++d) offset += index[d] * strides_[d];
    return offset;
  }

 private:
  static constexpr std::int64_t kGuard = 16;  // elements
  static constexpr unsigned char kPattern = 0xAB;

  const std::byte* element(std::int64_t offset) const {
    return reinterpret_cast<const std::byte*>(storage_.data()) +
           static_cast<std::size_t>(offset_ + offset) * size_of(dtype_);
  }
  std::byte* element(std::int64_t offset) { return const_cast<std::byte*>(std::as_const(*this).element(offset)); }
  double at_offset(std::int64_t offset) const {
    const std::byte* memory = element(offset);
    return dispatch(dtype_, [&]<class T>(Type<T>) {
      T stored;
      std::memcpy(&stored, memory, sizeof stored);
      return static_cast<double>(stored);
    });
  }

  Shape shape_;
  Strides strides_;
  DType dtype_;
  Device device_;
  std::int64_t offset_ = 0;
  std::vector<std::uint64_t> storage_;
};

// `value` as the dtype would store it.
inline double rounded(DType dtype, double value) {
  switch (dtype) {
    case DType::f32:
      return static_cast<float>(value);
    case DType::f16:
      return Half(static_cast<float>(value));
    case DType::bf16:
      return BFloat16(static_cast<float>(value));
    default:
      return value;
  }
}

inline bool close(double got, double want, double relative, double absolute) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return got == want;
  return std::fabs(got - want) <= absolute + relative * std::fabs(want);
}

// Compares element by element with want(position); empty when all agree. Tolerances are in units of epsilon(dtype);
// the absolute one is relative to 1.
template <class Want>
std::string mismatch(const TestTensor& got, Want&& want, double relative = 2, double absolute = 0) {
  const double eps = epsilon(got.dtype());
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double expected = rounded(got.dtype(), want(i));
    if (!close(got[i], expected, relative * eps, absolute * eps))
      return cat(got.dtype(), " ", got.shape(), " at ", i, ": expected ", expected, ", got ", got[i]);
  }
  if (!got.guards_intact()) return cat(got.dtype(), " ", got.shape(), ": a byte outside the output was written");
  return {};
}

// Runs a kernel and waits for it. Throws what it throws, at the call or at the wait.
template <class Args>
void run(const Args& args) {
  const Stream stream = current_stream(test_device());
  kernels::launch(stream, args);
  if (!stream.synchronous()) synchronize(stream);
}

}  // namespace support
