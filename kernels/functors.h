// One definition of each scalar function, for every backend. The 16-bit types compute in float: a functor sees float,
// double or an integer type. Integers wrap.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/kernels/args.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/hd.h"
#include "lockstep/kernels/scalar_math.h"

namespace lockstep::functors {

// The type in which an element type computes.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

template <class T>
inline constexpr bool kInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// ---- arithmetic that wraps for integers (signed overflow is undefined in C++)

template <class T>
LOCKSTEP_HD constexpr T plus(T x, T y) {
  if constexpr (kInteger<T>)
    return static_cast<T>(static_cast<std::uint64_t>(x) + static_cast<std::uint64_t>(y));
  else
    return x + y;
}
template <class T>
LOCKSTEP_HD constexpr T minus(T x, T y) {
  if constexpr (kInteger<T>)
    return static_cast<T>(static_cast<std::uint64_t>(x) - static_cast<std::uint64_t>(y));
  else
    return x - y;
}
template <class T>
LOCKSTEP_HD constexpr T times(T x, T y) {
  if constexpr (kInteger<T>)
    return static_cast<T>(static_cast<std::uint64_t>(x) * static_cast<std::uint64_t>(y));
  else
    return x * y;
}
template <class T>
LOCKSTEP_HD inline bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return x != x;
  else
    return false;
}
// Both propagate NaN.
template <class T>
LOCKSTEP_HD inline T larger(T x, T y) {
  return x > y || is_nan(x) ? x : y;
}
template <class T>
LOCKSTEP_HD inline T smaller(T x, T y) {
  return x < y || is_nan(x) ? x : y;
}
template <class T>
LOCKSTEP_HD inline T power(T x, T y) {
  if constexpr (kInteger<T>) {
    if (y < 0) return x == 1 ? T(1) : static_cast<std::int64_t>(x) == -1 ? (y % 2 == 0 ? T(1) : x) : T(0);
    T result = 1;
    for (; y > 0; y = static_cast<T>(y >> 1), x = times(x, x))
      if (y & 1) result = times(result, x);
    return result;
  } else {
    return std::pow(x, y);
  }
}

// The quotient rounded down, and what is left, which has the sign of y. Integers: x / 0 is 0, what is left of it is x.
template <class T>
LOCKSTEP_HD inline T remainder(T x, T y) {
  if constexpr (kInteger<T>) {
    if (y == 0) return x;
    if (static_cast<std::int64_t>(y) == -1) return 0;  // the smallest number over -1 would end the process
    const T rest = static_cast<T>(x % y);
    return rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(rest + y) : rest;
  } else {
    const T rest = std::fmod(x, y);
    return rest != T(0) && (rest < T(0)) != (y < T(0)) ? rest + y : rest;
  }
}
template <class T>
LOCKSTEP_HD inline T floor_quotient(T x, T y) {
  if constexpr (kInteger<T>) {
    if (y == 0) return 0;
    if (static_cast<std::int64_t>(y) == -1) return minus(T(0), x);
    const T quotient = static_cast<T>(x / y), rest = static_cast<T>(x % y);
    return rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(quotient - 1) : quotient;
  } else {
    if (y == T(0)) return x / y;
    // x less what is left of it is a multiple of y, up to rounding.
    const T rest = std::fmod(x, y);
    T quotient = (x - rest) / y;
    if (rest != T(0) && (rest < T(0)) != (y < T(0))) quotient -= T(1);
    if (quotient == T(0)) return std::copysign(T(0), x / y);
    const T whole = std::floor(quotient);
    return quotient - whole > T(0.5) ? whole + T(1) : whole;
  }
}

// ---- conversion. Floating to integer truncates; what does not fit becomes the nearest end of the range, NaN becomes 0
// (in C++ both are undefined). Integer to integer wraps. Anything but 0 is true.
template <class To, class From>
LOCKSTEP_HD inline To convert(From value) {
  using F = Compute<From>;
  const F x = static_cast<F>(value);
  if constexpr (std::is_same_v<To, bool>) {
    return x != F(0);
  } else if constexpr (std::is_floating_point_v<F> && std::is_integral_v<To>) {
    // The range as numbers of type F: the lower end is exact, the upper end is a power of two just beyond the range.
    constexpr F kLow = static_cast<F>(std::numeric_limits<To>::min());
    constexpr To kHalf = std::numeric_limits<To>::max() / 2 + 1;
    constexpr F kHigh = F(2) * static_cast<F>(kHalf);
    // No branches, and no conversion that is undefined: loops of this become vector code.
    const To inside = static_cast<To>(math::select((x > kLow) & (x < kHigh), x, F(0)));
    const To low = x <= kLow ? std::numeric_limits<To>::min() : inside;
    return x >= kHigh ? std::numeric_limits<To>::max() : low;
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

// Of how many elements window `i` of average pooling is the mean, along dimension `d` of [height, width]. The last one
// may reach beyond the padding: what lies there does not exist.
LOCKSTEP_HD inline std::int64_t window_elements(const Window2d& w, bool padding, std::size_t d, std::int64_t i,
                                                std::int64_t size) {
  const std::int64_t begin = i * w.stride[d] - w.padding[d], outside = padding ? w.padding[d] : 0;
  const std::int64_t end = smaller(begin + w.kernel[d], size + outside) - larger(begin, -outside);
  return end > 0 ? end : 1;
}

// gelu_tanh is x * sigmoid(scale * (x + cubic * x^3)).
template <class T>
inline constexpr T kGeluScale = T(1.59576912160573071176);  // 2 sqrt(2 / pi)
template <class T>
inline constexpr T kGeluCubic = T(0.044715);

// ---- unary: x is the element, a and b are the scalars of the ops that have them

template <class T>
constexpr bool supports(UnaryOp op) {
  switch (op) {
    case UnaryOp::logical_not:
      return true;
    case UnaryOp::neg:
    case UnaryOp::abs:
    case UnaryOp::sign:
    case UnaryOp::square:
    case UnaryOp::relu:
    case UnaryOp::floor:
    case UnaryOp::ceil:
    case UnaryOp::round:
    case UnaryOp::trunc:
    case UnaryOp::add_scalar:
    case UnaryOp::mul_scalar:
    case UnaryOp::pow_scalar:
    case UnaryOp::clamp:
      return !std::is_same_v<T, bool>;
    default:
      return std::is_floating_point_v<Compute<T>>;
  }
}

template <UnaryOp op, class T>
LOCKSTEP_HD inline auto unary(T x, [[maybe_unused]] T a, [[maybe_unused]] T b) {
  if constexpr (op == UnaryOp::neg) {
    if constexpr (kInteger<T>)
      return minus(T(0), x);
    else
      return -x;
  } else if constexpr (op == UnaryOp::abs) {
    if constexpr (kInteger<T>)
      return x < 0 ? minus(T(0), x) : x;
    else
      return std::fabs(x);
  } else if constexpr (op == UnaryOp::sign) {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;  // 0 and NaN stay
  } else if constexpr (op == UnaryOp::exp)
    return math::exp(x);
  else if constexpr (op == UnaryOp::log)
    return math::log(x);
  else if constexpr (op == UnaryOp::sqrt)
    return std::sqrt(x);
  else if constexpr (op == UnaryOp::rsqrt)
    return T(1) / std::sqrt(x);
  else if constexpr (op == UnaryOp::reciprocal)
    return T(1) / x;
  else if constexpr (op == UnaryOp::square)
    return times(x, x);
  else if constexpr (op == UnaryOp::sin)
    return std::sin(x);
  else if constexpr (op == UnaryOp::cos)
    return std::cos(x);
  else if constexpr (op == UnaryOp::tanh)
    return math::tanh(x);
  else if constexpr (op == UnaryOp::sigmoid)
    return math::sigmoid(x);
  else if constexpr (op == UnaryOp::relu)
    return x < T(0) ? T(0) : x;  // NaN stays
  else if constexpr (op == UnaryOp::softplus)
    return math::softplus(x);
  else if constexpr (op == UnaryOp::gelu_exact)
    return x * math::normal_cdf(x);
  else if constexpr (op == UnaryOp::gelu_tanh) {
    // 0.5 (1 + tanh(u)) is sigmoid(2 u), which keeps its digits where the sum cancels.
    return x * math::sigmoid(kGeluScale<T> * (x + kGeluCubic<T> * x * x * x));
  } else if constexpr (op == UnaryOp::silu)
    return x * math::sigmoid(x);
  else if constexpr (op == UnaryOp::hardswish) {
    const T above = math::select(x < T(-3), T(0), x + T(3));  // NaN stays
    return x * math::select(x > T(3), T(1), above / T(6));    // divided first: 6 x may be infinite
  } else if constexpr (op == UnaryOp::normal_cdf)
    return math::normal_cdf(x);
  else if constexpr (op == UnaryOp::logical_not)
    return x == T(0);
  else if constexpr (op == UnaryOp::log1p)
    return std::log1p(x);
  else if constexpr (op == UnaryOp::expm1)
    return std::expm1(x);
  else if constexpr (op == UnaryOp::erf)
    return std::erf(x);
  else if constexpr (op == UnaryOp::floor)
    return math::floor(x);
  else if constexpr (op == UnaryOp::ceil)
    return math::ceil(x);
  else if constexpr (op == UnaryOp::round)
    return math::round(x);
  else if constexpr (op == UnaryOp::trunc)
    return math::trunc(x);
  else if constexpr (op == UnaryOp::add_scalar)
    return plus(x, a);
  else if constexpr (op == UnaryOp::mul_scalar)
    return times(x, a);
  else if constexpr (op == UnaryOp::pow_scalar)
    return power(x, a);
  else {
    static_assert(op == UnaryOp::clamp);
    const T low = x < a ? a : x;
    return low > b ? b : low;
  }
}

// What a product applies to its result, which must be something.
constexpr UnaryOp unary_op(Activation activation) {
  return activation == Activation::relu   ? UnaryOp::relu
         : activation == Activation::gelu ? UnaryOp::gelu_exact
                                          : UnaryOp::gelu_tanh;
}

// ---- binary: alpha is used by add alone

constexpr bool is_predicate(BinaryOp op) { return op >= BinaryOp::eq && op <= BinaryOp::logical_xor; }

template <class T>
constexpr bool supports(BinaryOp op) {
  if (is_predicate(op)) return true;
  switch (op) {
    case BinaryOp::maximum:
    case BinaryOp::minimum:
      return true;
    case BinaryOp::add:
    case BinaryOp::sub:
    case BinaryOp::mul:
    case BinaryOp::pow:
    case BinaryOp::floor_div:
    case BinaryOp::remainder:
      return !std::is_same_v<T, bool>;
    default:
      return std::is_floating_point_v<Compute<T>>;  // an integer division by zero would end the process
  }
}

template <BinaryOp op, class T>
LOCKSTEP_HD inline auto binary(T x, T y, [[maybe_unused]] T alpha) {
  if constexpr (op == BinaryOp::add)
    return plus(x, times(alpha, y));
  else if constexpr (op == BinaryOp::sub)
    return minus(x, y);
  else if constexpr (op == BinaryOp::mul)
    return times(x, y);
  else if constexpr (op == BinaryOp::div)
    return x / y;
  else if constexpr (op == BinaryOp::pow)
    return power(x, y);
  else if constexpr (op == BinaryOp::maximum)
    return larger(x, y);
  else if constexpr (op == BinaryOp::minimum)
    return smaller(x, y);
  else if constexpr (op == BinaryOp::eq)
    return x == y;
  else if constexpr (op == BinaryOp::ne)
    return x != y;
  else if constexpr (op == BinaryOp::lt)
    return x < y;
  else if constexpr (op == BinaryOp::le)
    return x <= y;
  else if constexpr (op == BinaryOp::gt)
    return x > y;
  else if constexpr (op == BinaryOp::ge)
    return x >= y;
  else if constexpr (op == BinaryOp::logical_and)
    return (x != T(0)) & (y != T(0));
  else if constexpr (op == BinaryOp::logical_or)
    return (x != T(0)) | (y != T(0));
  else if constexpr (op == BinaryOp::logical_xor)
    return (x != T(0)) ^ (y != T(0));
  else if constexpr (op == BinaryOp::relu_grad)
    return math::select(y <= T(0), T(0), x);  // NaN passes
  else if constexpr (op == BinaryOp::tanh_grad)
    return x * (T(1) - y * y);
  else if constexpr (op == BinaryOp::sigmoid_grad)
    return x * y * (T(1) - y);
  else if constexpr (op == BinaryOp::softplus_grad)
    return x * math::sigmoid(y);
  else if constexpr (op == BinaryOp::silu_grad) {
    const T s = math::sigmoid(y);
    return x * (s * (T(1) + y * (T(1) - s)));
  } else if constexpr (op == BinaryOp::gelu_grad) {
    return x * math::gelu_slope(y);
  } else if constexpr (op == BinaryOp::gelu_tanh_grad) {
    const T s = math::sigmoid(kGeluScale<T> * (y + kGeluCubic<T> * y * y * y));
    // The slope comes last: it grows without bound where the factor before it is 0 long since.
    return x * (s + s * (T(1) - s) * y * (kGeluScale<T> * (T(1) + T(3) * kGeluCubic<T> * y * y)));
  } else if constexpr (op == BinaryOp::hardswish_grad) {
    // NaN passes the gradient on.
    return math::select(y <= T(-3), T(0), math::select(y < T(3), x * (y / T(3) + T(0.5)), x));
  } else if constexpr (op == BinaryOp::floor_div)
    return floor_quotient(x, y);
  else if constexpr (op == BinaryOp::remainder)
    return remainder(x, y);
  else {
    static_assert(op == BinaryOp::smooth_l1);
    const T d = std::fabs(x - y);
    // Without a parabola where alpha is 0: d < 0 is never true, and the quotient is not chosen.
    return math::select(d < alpha, T(0.5) * d * d / alpha, d - T(0.5) * alpha);
  }
}

}  // namespace lockstep::functors
