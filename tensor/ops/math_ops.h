// Arithmetic, comparisons, functions of the elements, reductions and products of tensors.
//
// Everything that has a derivative is differentiable, any number of times. Shapes broadcast by NumPy's rules. dtypes
// meet in result_type; a C++ number never promotes a floating tensor. An integer tensor that meets a number with a
// fraction, a true division or a function such as exp becomes DefaultDType first; a whole number that it cannot hold
// wraps, but is compared by its value. A tensor of rank 0 has one dimension where an operation asks for one. All
// tensors of a call must be on one device. What does not fit is an InvalidArgument, thrown before anything is computed.
// Results have no gaps. They are contiguous, but of images in channels_last (Tensor::memory_format()) functions of the
// elements, cat, pad and means of pixels are too, where all operands of the result's shape are. They are computed on
// the current stream of the device without blocking the host.
#pragma once

#include <limits>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// The dtype in which two meet: bool < u8, i8 < i32 < i64 < f16, bf16 < f32 < f64; u8 and i8 meet in i32,
// f16 and bf16 in f32.
LOCKSTEP_API DType promote_types(DType a, DType b);
// The dtype in which two tensors meet. A tensor of rank 0 beside one with dimensions counts only where it is of another
// kind (bool < integer < floating): bf16[3] and f32[] meet in bf16, i64[3] and f32[] in f32.
LOCKSTEP_API DType result_type(const Tensor& a, const Tensor& b);

// ---- arithmetic

LOCKSTEP_API Tensor add(const Tensor& a, const Tensor& b, double alpha = 1);  // a + alpha * b
LOCKSTEP_API Tensor sub(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor mul(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor div(const Tensor& a, const Tensor& b);  // true division
LOCKSTEP_API Tensor pow(const Tensor& base, const Tensor& exponent);
LOCKSTEP_API Tensor maximum(const Tensor& a, const Tensor& b);  // where equal, the gradient is shared by both
LOCKSTEP_API Tensor minimum(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor add(const Tensor& a, double b);
LOCKSTEP_API Tensor mul(const Tensor& a, double b);
LOCKSTEP_API Tensor div(const Tensor& a, double b);
LOCKSTEP_API Tensor pow(const Tensor& base, double exponent);
LOCKSTEP_API Tensor pow(double base, const Tensor& exponent);
// The quotient rounded down, which has no gradient, and what it leaves, which has the sign of b. An integer divided by
// 0 gives 0 and leaves itself.
LOCKSTEP_API Tensor floor_divide(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor floor_divide(const Tensor& a, double b);
LOCKSTEP_API Tensor remainder(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor remainder(const Tensor& a, double b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return add(a, -b); }
LOCKSTEP_API Tensor operator-(double a, const Tensor& b);
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
LOCKSTEP_API Tensor operator/(double a, const Tensor& b);
LOCKSTEP_API Tensor operator-(const Tensor& x);

// In place, with the rules of add_, mul_, …
inline Tensor& operator+=(Tensor& a, const Tensor& b) { return a.add_(b); }
inline Tensor& operator+=(Tensor& a, double b) { return a.add_(b); }
inline Tensor& operator-=(Tensor& a, const Tensor& b) { return a.sub_(b); }
inline Tensor& operator-=(Tensor& a, double b) { return a.sub_(b); }
inline Tensor& operator*=(Tensor& a, const Tensor& b) { return a.mul_(b); }
inline Tensor& operator*=(Tensor& a, double b) { return a.mul_(b); }
inline Tensor& operator/=(Tensor& a, const Tensor& b) { return a.div_(b); }
inline Tensor& operator/=(Tensor& a, double b) { return a.div_(b); }
// Into a view that has no name: x[0] += 1.
inline Tensor operator+=(Tensor&& a, const Tensor& b) { return a.add_(b); }
inline Tensor operator+=(Tensor&& a, double b) { return a.add_(b); }
inline Tensor operator-=(Tensor&& a, const Tensor& b) { return a.sub_(b); }
inline Tensor operator-=(Tensor&& a, double b) { return a.sub_(b); }
inline Tensor operator*=(Tensor&& a, const Tensor& b) { return a.mul_(b); }
inline Tensor operator*=(Tensor&& a, double b) { return a.mul_(b); }
inline Tensor operator/=(Tensor&& a, const Tensor& b) { return a.div_(b); }
inline Tensor operator/=(Tensor&& a, double b) { return a.div_(b); }

// ---- comparisons and logic: bool results, no gradient

LOCKSTEP_API Tensor eq(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor ne(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor lt(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor le(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor gt(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor ge(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor eq(const Tensor& a, double b);
LOCKSTEP_API Tensor ne(const Tensor& a, double b);
LOCKSTEP_API Tensor lt(const Tensor& a, double b);
LOCKSTEP_API Tensor le(const Tensor& a, double b);
LOCKSTEP_API Tensor gt(const Tensor& a, double b);
LOCKSTEP_API Tensor ge(const Tensor& a, double b);
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator==(const Tensor& a, double b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, double b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, double b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, double b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, double b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, double b) { return ge(a, b); }
LOCKSTEP_API Tensor logical_and(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor logical_or(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor logical_xor(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor logical_not(const Tensor& x);

// condition ? a : b, element by element; `condition` is bool, the three broadcast together.
LOCKSTEP_API Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor where(const Tensor& condition, const Tensor& a, double b);
LOCKSTEP_API Tensor where(const Tensor& condition, double a, const Tensor& b);

// ---- functions of the elements

LOCKSTEP_API Tensor abs(const Tensor& x);
LOCKSTEP_API Tensor sign(const Tensor& x);
LOCKSTEP_API Tensor exp(const Tensor& x);
LOCKSTEP_API Tensor log(const Tensor& x);
LOCKSTEP_API Tensor sqrt(const Tensor& x);
LOCKSTEP_API Tensor rsqrt(const Tensor& x);  // 1 / sqrt(x)
LOCKSTEP_API Tensor reciprocal(const Tensor& x);
LOCKSTEP_API Tensor square(const Tensor& x);
LOCKSTEP_API Tensor sin(const Tensor& x);
LOCKSTEP_API Tensor cos(const Tensor& x);
LOCKSTEP_API Tensor tanh(const Tensor& x);
LOCKSTEP_API Tensor sigmoid(const Tensor& x);
LOCKSTEP_API Tensor relu(const Tensor& x);
LOCKSTEP_API Tensor softplus(const Tensor& x);    // log(1 + exp(x))
LOCKSTEP_API Tensor silu(const Tensor& x);        // x * sigmoid(x)
LOCKSTEP_API Tensor hardswish(const Tensor& x);   // x * relu6(x + 3) / 6; the derivative is 0 at -3 and 1 at 3
LOCKSTEP_API Tensor normal_cdf(const Tensor& x);  // of the standard normal distribution
LOCKSTEP_API Tensor log1p(const Tensor& x);       // log(1 + x), exact near 0
LOCKSTEP_API Tensor expm1(const Tensor& x);       // exp(x) - 1, exact near 0
LOCKSTEP_API Tensor erf(const Tensor& x);         // the error function
// Whole numbers, which have no gradient; integers stay. round takes halves to the even neighbour.
LOCKSTEP_API Tensor floor(const Tensor& x);
LOCKSTEP_API Tensor ceil(const Tensor& x);
LOCKSTEP_API Tensor round(const Tensor& x);
LOCKSTEP_API Tensor trunc(const Tensor& x);
// bool
LOCKSTEP_API Tensor isnan(const Tensor& x);
LOCKSTEP_API Tensor isinf(const Tensor& x);
LOCKSTEP_API Tensor isfinite(const Tensor& x);
enum class GeluForm : std::uint8_t { exact, tanh };
LOCKSTEP_API Tensor gelu(const Tensor& x, GeluForm form = GeluForm::exact);
// min(max(x, low), high); pass an infinity for no bound.
LOCKSTEP_API Tensor clamp(const Tensor& x, double low, double high = std::numeric_limits<double>::infinity());

// ---- reductions. Dimensions may be negative; an empty list reduces nothing. Integers are summed in i64, and averaged
// in DefaultDType.

LOCKSTEP_API Tensor sum(const Tensor& x);
LOCKSTEP_API Tensor sum(const Tensor& x, const Dims& dims, bool keep_dims = false);
LOCKSTEP_API Tensor mean(const Tensor& x);
LOCKSTEP_API Tensor mean(const Tensor& x, const Dims& dims, bool keep_dims = false);
// The square root of this is the standard deviation. Divides by n - correction, or by 0
// where that is negative.
LOCKSTEP_API Tensor var(const Tensor& x, const Dims& dims, double correction = 1, bool keep_dims = false);
LOCKSTEP_API Tensor var(const Tensor& x);
// The standard deviation, std of PyTorch; its gradient at 0 is 0.
LOCKSTEP_API Tensor stddev(const Tensor& x, const Dims& dims, double correction = 1, bool keep_dims = false);
LOCKSTEP_API Tensor stddev(const Tensor& x);
// log of the sum of exp(x), without overflow.
LOCKSTEP_API Tensor logsumexp(const Tensor& x, const Dims& dims, bool keep_dims = false);
LOCKSTEP_API Tensor prod(const Tensor& x);
LOCKSTEP_API Tensor prod(const Tensor& x, std::int64_t dim, bool keep_dims = false);
// The Euclidean norm; its gradient at 0 is 0.
LOCKSTEP_API Tensor norm(const Tensor& x);
LOCKSTEP_API Tensor norm(const Tensor& x, const Dims& dims, bool keep_dims = false);

// (sum of |x|^p)^(1/p), of all elements or over dimensions; p = 0 counts what is not 0, infinities give the largest and
// the smallest |x|. Its gradient at 0 is 0; among equal extremes the first gets it.
LOCKSTEP_API Tensor vector_norm(const Tensor& x, double p);
LOCKSTEP_API Tensor vector_norm(const Tensor& x, double p, const Dims& dims, bool keep_dims = false);

struct ValuesAndIndices {
  Tensor values;
  Tensor indices;  // i64
  void fields(auto& f) { f(values, indices); }
};
// The extreme and where it is; among equals the first, which also gets the gradient. NaN counts as the extreme. Throws
// InvalidArgument where there is nothing to choose from.
LOCKSTEP_API Tensor max(const Tensor& x);
LOCKSTEP_API Tensor min(const Tensor& x);
LOCKSTEP_API ValuesAndIndices max(const Tensor& x, std::int64_t dim, bool keep_dims = false);
LOCKSTEP_API ValuesAndIndices min(const Tensor& x, std::int64_t dim, bool keep_dims = false);
LOCKSTEP_API Tensor argmax(const Tensor& x);  // position in row-major order
LOCKSTEP_API Tensor argmin(const Tensor& x);
LOCKSTEP_API Tensor argmax(const Tensor& x, std::int64_t dim, bool keep_dims = false);
LOCKSTEP_API Tensor argmin(const Tensor& x, std::int64_t dim, bool keep_dims = false);
// The extremes over several dimensions; among equals the gradient is shared. They propagate NaN, and throw as max does.
LOCKSTEP_API Tensor amax(const Tensor& x, const Dims& dims, bool keep_dims = false);
LOCKSTEP_API Tensor amin(const Tensor& x, const Dims& dims, bool keep_dims = false);
// bool; anything but 0 is true.
LOCKSTEP_API Tensor any(const Tensor& x);
LOCKSTEP_API Tensor any(const Tensor& x, const Dims& dims, bool keep_dims = false);
LOCKSTEP_API Tensor all(const Tensor& x);
LOCKSTEP_API Tensor all(const Tensor& x, const Dims& dims, bool keep_dims = false);

// ---- order along a dimension

// y[i] = x[0] + … + x[i]. Integers are summed in i64.
LOCKSTEP_API Tensor cumsum(const Tensor& x, std::int64_t dim);
// y[i] = x[0] * … * x[i]. Integers are multiplied in i64.
LOCKSTEP_API Tensor cumprod(const Tensor& x, std::int64_t dim);
// In ascending or descending order, and where each element was; equal ones stay in their order, NaN is greater than all
// numbers.
LOCKSTEP_API ValuesAndIndices sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
LOCKSTEP_API Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
// The k largest or smallest, in order (the largest first, or the smallest).
LOCKSTEP_API ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

// Sums over the dimensions that broadcasting `shape` to x added or stretched: the adjoint of expand.
LOCKSTEP_API Tensor sum_to(const Tensor& x, const Shape& shape);

// ---- products. Floating dtypes, the same in both.

// [.., M, K] @ [.., K, N] -> [.., M, N]; leading dimensions broadcast. A vector on the left is a row, on the right a
// column, and its dimension is dropped from the result.
LOCKSTEP_API Tensor matmul(const Tensor& a, const Tensor& b);
// The same for one pair of ranks alone: matrices, stacks of them with one size, a matrix and a vector, vectors.
LOCKSTEP_API Tensor mm(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor bmm(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor mv(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor dot(const Tensor& a, const Tensor& b);
LOCKSTEP_API Tensor outer(const Tensor& a, const Tensor& b);  // of two vectors [N] and [M]: [N, M], any dtypes

// ---- answers for the host; these block

// Same shape, dtype and elements (NaN differs from itself). Devices may differ.
LOCKSTEP_API bool equal(const Tensor& a, const Tensor& b);
// |a - b| <= absolute + relative * |b| everywhere, after broadcasting. Devices may differ. Infinities must agree.
LOCKSTEP_API bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8);

}  // namespace lockstep
