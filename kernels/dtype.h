// Element types, and the step from a run-time dtype to a compile-time one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/kernels/half.h"
#include "lockstep/runtime/api.h"

namespace lockstep {

enum class DType : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8, boolean, i8 };
inline constexpr int kDTypeCount = 9;

constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t kSizes[kDTypeCount] = {4, 8, 2, 2, 4, 8, 1, 1, 1};
  return kSizes[static_cast<int>(dtype)];
}
constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }
LOCKSTEP_API std::string to_string(DType dtype);  // "f32", …, "bool", "i8"

template <class T>
struct Type {
  using type = T;
};

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, Half>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return DType::u8;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return DType::i8;
  else {
    static_assert(std::is_same_v<T, bool>, "not an element type of Lockstep");
    return DType::boolean;
  }
}

// Calls `f(Type<T>{})` with the element type of `dtype`.
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(Type<float>{});
    case DType::f64:
      return f(Type<double>{});
    case DType::f16:
      return f(Type<Half>{});
    case DType::bf16:
      return f(Type<BFloat16>{});
    case DType::i32:
      return f(Type<std::int32_t>{});
    case DType::i64:
      return f(Type<std::int64_t>{});
    case DType::u8:
      return f(Type<std::uint8_t>{});
    case DType::i8:
      return f(Type<std::int8_t>{});
    case DType::boolean:
      break;
  }
  return f(Type<bool>{});
}

}  // namespace lockstep
