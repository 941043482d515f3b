// Making tensors. Unless told otherwise they are of DefaultDType, on cpu, and outside any graph.
#pragma once

#include <concepts>
#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// All at its default, or some: zeros({2, 3}, {.dtype = DType::f64, .requires_grad = true}).
struct TensorOptions {
  std::optional<DType> dtype = std::nullopt;
  Device device = Device::cpu();
  bool requires_grad = false;
};

LOCKSTEP_API Tensor empty(const Shape& shape, const TensorOptions& options = {});  // not initialised
LOCKSTEP_API Tensor zeros(const Shape& shape, const TensorOptions& options = {});
LOCKSTEP_API Tensor ones(const Shape& shape, const TensorOptions& options = {});
LOCKSTEP_API Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
LOCKSTEP_API Tensor eye(std::int64_t size, const TensorOptions& options = {});  // the identity matrix
// Shape and device, and the dtype unless another is given, of `like`, in its memory format, without gaps.
LOCKSTEP_API Tensor empty_like(const Tensor& like, std::optional<DType> dtype = std::nullopt);
LOCKSTEP_API Tensor zeros_like(const Tensor& like, std::optional<DType> dtype = std::nullopt);
LOCKSTEP_API Tensor ones_like(const Tensor& like, std::optional<DType> dtype = std::nullopt);
LOCKSTEP_API Tensor full_like(const Tensor& like, double value, std::optional<DType> dtype = std::nullopt);

namespace detail {
LOCKSTEP_API Tensor arange(double start, double end, double step, DType dtype, const TensorOptions& options);
// Copies `count` elements of `from` from host memory, then converts to options.dtype. The data may go away at once.
LOCKSTEP_API Tensor from_memory(const void* data, std::size_t count, DType from, const Shape& shape,
                                const TensorOptions& options);
template <class T>
concept Number = std::is_arithmetic_v<T>;
template <Number... T>
DType literal_dtype() {
  if constexpr ((std::is_same_v<T, bool> && ...))
    return DType::boolean;
  else if constexpr ((std::is_integral_v<T> && ...))
    return DType::i64;
  else
    return DefaultDType::get();
}
}  // namespace detail

// start, start + step, … below `end` (above, for a negative step). i64 when all are integers.
template <detail::Number Start, detail::Number End, detail::Number Step = int>
Tensor arange(Start start, End end, Step step = 1, const TensorOptions& options = {}) {
  return detail::arange(static_cast<double>(start), static_cast<double>(end), static_cast<double>(step),
                        detail::literal_dtype<Start, End, Step>(), options);
}
template <detail::Number End>
Tensor arange(End end, const TensorOptions& options = {}) {
  return detail::arange(0, static_cast<double>(end), 1, detail::literal_dtype<End>(), options);
}

// `steps` numbers from `start` to `end`, both included, equally far apart. Of a floating dtype.
LOCKSTEP_API Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options = {});

// A copy of the elements, in row-major order, which must be as many as the shape has. Of their own dtype unless
// options.dtype says otherwise.
template <class T>
Tensor from_data(std::span<T> values, const Shape& shape, const TensorOptions& options = {}) {
  return detail::from_memory(values.data(), values.size(), dtype_of<std::remove_const_t<T>>(), shape, options);
}
template <class T>
Tensor from_data(const std::vector<T>& values, const Shape& shape, const TensorOptions& options = {}) {
  if constexpr (std::is_same_v<T, bool>) {
    const std::vector<std::uint8_t> bytes(values.begin(), values.end());
    static_assert(sizeof(bool) == 1);
    return detail::from_memory(bytes.data(), bytes.size(), DType::boolean, shape, options);
  } else {
    return from_data(std::span<const T>(values), shape, options);
  }
}
// From literals: numbers with a fraction become DefaultDType, integers i64, bools bool, unless options.dtype says
// otherwise.
template <detail::Number T>
Tensor from_data(std::initializer_list<T> values, const Shape& shape, TensorOptions options = {}) {
  using Element = std::conditional_t<std::is_same_v<T, bool>, bool,
                                     std::conditional_t<std::is_integral_v<T>, std::int64_t, double>>;
  if (!options.dtype) options.dtype = detail::literal_dtype<T>();
  return from_data(std::vector<Element>(values.begin(), values.end()), shape, options);
}
// A tensor of rank 0; the dtype as for literals.
template <detail::Number T>
Tensor tensor(T value, const TensorOptions& options = {}) {
  return from_data({value}, {}, options);
}

}  // namespace lockstep
