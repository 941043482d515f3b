// The arguments of kernels: a struct each, which names the kernel. A kernel may assume what its struct states: the
// tensor layer has checked shapes and promoted dtypes. Every struct lists its views once, for the device check and the
// order checker.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/activation.h"
#include "lockstep/kernels/view.h"

namespace lockstep {

class PackedWeights;

// How many values an enumeration of operations has; it ends with `count`, which is none of them.
template <class Op>
inline constexpr std::size_t kCountOf = static_cast<std::size_t>(Op::count);

// ---- elementwise. Shapes of all views are equal (broadcast operands have stride 0).

enum class UnaryOp : std::uint8_t {
  neg,
  abs,
  sign,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  sin,
  cos,
  tanh,
  sigmoid,
  relu,
  softplus,
  gelu_exact,
  gelu_tanh,
  silu,
  hardswish,  // x * min(max(x + 3, 0), 6) / 6
  normal_cdf,
  logical_not,
  log1p,
  expm1,
  erf,
  floor,
  ceil,
  round,
  trunc,       // round: halves to the even neighbour
  add_scalar,  // x + a
  mul_scalar,  // x * a
  pow_scalar,  // x ^ a
  clamp,       // min(max(x, a), b)
  count,
};
struct UnaryArgs {
  UnaryOp op;
  In in;
  Out out;  // dtype of `in`, except bool for logical_not
  double a = 0, b = 0;
  static constexpr const char* kName = "unary";
  void views(auto&& f) const { f(in), f(out); }
};

enum class BinaryOp : std::uint8_t {
  add,  // x + alpha * y
  sub,
  mul,
  div,
  pow,
  maximum,
  minimum,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  logical_and,
  logical_or,
  logical_xor,  // out is bool
  // Derivatives, fused: x is the incoming gradient, y what the op saved.
  relu_grad,     // y <= 0 ? 0 : x          (y: input or output)
  tanh_grad,     // x * (1 - y * y)         (y: output)
  sigmoid_grad,  // x * y * (1 - y)         (y: output)
  softplus_grad,
  silu_grad,
  gelu_grad,
  gelu_tanh_grad,
  hardswish_grad,  // x times the derivative at y (y: input)
  floor_div,
  remainder,  // remainder has the sign of y; of integers, x / 0 is 0 and the remainder x
  smooth_l1,  // with d = |x - y|: d < alpha ? d * d / (2 alpha) : d - alpha / 2
  count,
};
struct BinaryArgs {
  BinaryOp op;
  In x, y;  // same dtype
  Out out;  // that dtype, except bool for comparisons and logic. May be the very view x (in place).
  double alpha = 1;
  static constexpr const char* kName = "binary";
  void views(auto&& f) const { f(x), f(y), f(out); }
};

struct WhereArgs {
  In condition;  // bool
  In x, y;
  Out out;  // condition ? x : y
  static constexpr const char* kName = "where";
  void views(auto&& f) const { f(condition), f(x), f(y), f(out); }
};

struct CastArgs {  // copies elements, converting the dtype; layouts are free
  In in;
  Out out;
  static constexpr const char* kName = "cast";
  void views(auto&& f) const { f(in), f(out); }
};

struct FillArgs {
  Out out;
  double value;
  std::int64_t integer = 0;  // used instead for i64 (a double does not hold them all)
  static constexpr const char* kName = "fill";
  void views(auto&& f) const { f(out); }
};

struct ArangeArgs {  // out[i] = start + i * step, out is one-dimensional
  Out out;
  double start, step;
  static constexpr const char* kName = "arange";
  void views(auto&& f) const { f(out); }
};

// ---- reductions. `out` has the rank of `in`, with size 1 along every reduced dimension.

enum class ReduceOp : std::uint8_t {
  sum,
  mean,
  max,
  min,
  prod,
  any,
  all,
  norm,  // the root of the sum of the squares
  count,
};
struct ReduceArgs {
  ReduceOp op;
  In in;
  Out out;  // dtype of `in`; bool for any/all (of bool)
  static constexpr const char* kName = "reduce";
  void views(auto&& f) const { f(in), f(out); }
};

enum class ArgReduceOp : std::uint8_t { max, min, count };
struct ArgReduceArgs {
  ArgReduceOp op;
  int dim;
  In in;
  Out out;  // i64, size 1 along `dim`; the first of equals; NaN counts as the extreme
  static constexpr const char* kName = "arg_reduce";
  void views(auto&& f) const { f(in), f(out); }
};

// ---- linear algebra

// out = activation(alpha * a @ b + beta * out (+ bias)). a: [B, M, K], b: [B, K, N], out: [B, M, N] (all rank 3; B may
// be broadcast with stride 0; any strides, so transposes are free). bias: [N] or absent. Floating dtypes.
struct MatmulArgs {
  In a, b;
  In bias;
  InOut out;
  double alpha = 1, beta = 0;
  Activation activation = Activation::none;
  std::shared_ptr<PackedWeights> packed = {};  // forms of b that kernels may keep; null: b may change
  static constexpr const char* kName = "matmul";
  void views(auto&& f) const { f(a), f(b), f(bias), f(out); }
};

// ---- convolution and pooling. Shapes are NCHW; weights [O, C / groups, KH, KW]. All images of a call are contiguous;
// where the table says so, and but for f64, all may be channels_last instead, and weights too. None of them has gaps.

struct Window2d {
  std::array<int, 2> kernel{1, 1}, stride{1, 1}, padding{0, 0}, dilation{1, 1};
};
struct Conv2dArgs {  // y = conv(x, w) + bias, or its relu
  In x, w, bias;     // bias: [O] or absent
  Out y;
  Window2d window;
  int groups = 1;
  bool relu = false;
  std::shared_ptr<PackedWeights> packed = {};  // forms of w that kernels may keep; null: w may change
  static constexpr const char* kName = "conv2d";
  void views(auto&& f) const { f(x), f(w), f(bias), f(y); }
};
struct Conv2dGradInputArgs {  // dx from dy and w
  In dy, w;
  Out dx;
  Window2d window;
  int groups = 1;
  static constexpr const char* kName = "conv2d_grad_input";
  void views(auto&& f) const { f(dy), f(w), f(dx); }
};
struct Conv2dGradWeightArgs {  // dw from dy and x
  In dy, x;
  Out dw;
  Window2d window;
  int groups = 1;
  static constexpr const char* kName = "conv2d_grad_weight";
  void views(auto&& f) const { f(dy), f(x), f(dw); }
};
struct MaxPool2dArgs {
  In x;
  Out y;
  Out indices;  // i64, shape of y: position in the H * W plane of x, first of equals, never padding; may be absent
  Window2d window;
  static constexpr const char* kName = "max_pool2d";
  void views(auto&& f) const { f(x), f(y), f(indices); }
};
// The last two dimensions flattened: out[n, c, indices[n, c, i]] += in[n, c, i], out starts from zero.
struct MaxUnpool2dArgs {
  In in, indices;
  Out out;
  static constexpr const char* kName = "max_unpool2d";
  void views(auto&& f) const { f(in), f(indices), f(out); }
};
// What the sum over a window of average pooling is divided by (functors.h, window_elements).
struct PoolMean {
  bool padding = true;  // counts as zeros in the mean
  int divisor = 0;      // unless 0: this number, whatever the window
};
struct AvgPool2dArgs {
  In x;
  Out y;
  Window2d window;
  PoolMean mean = {};
  static constexpr const char* kName = "avg_pool2d";
  void views(auto&& f) const { f(x), f(y); }
};
struct AvgPool2dGradArgs {
  In dy;
  Out dx;
  Window2d window;
  PoolMean mean = {};
  static constexpr const char* kName = "avg_pool2d_grad";
  void views(auto&& f) const { f(dy), f(dx); }
};

// ---- normalisation, softmax

// x, y: [N, C, L] contiguous; weight, bias, running statistics: [C] in the dtype of x (weight and bias may be absent).
struct BatchNormArgs {
  In x, weight, bias;
  // Absent: batch statistics alone. Var is unbiased, as PyTorch keeps it. Only training writes them.
  InOut running_mean, running_var;
  Out y;
  Out mean, inv_std;  // [C]: what was used, f64 for f64, else f32; absent in evaluation
  bool training;
  double momentum, eps;
  bool relu = false;  // of the result, before it is rounded to 16 bits
  static constexpr const char* kName = "batch_norm";
  void views(auto&& f) const {
    f(x), f(weight), f(bias), f(y), f(mean), f(inv_std);
    if (training)
      f(running_mean), f(running_var);
    else
      f(static_cast<const In&>(running_mean)), f(static_cast<const In&>(running_var));
  }
};
struct BatchNormGradArgs {  // of the training form
  In dy, x, weight, mean, inv_std;
  Out dx, dweight, dbias;  // dweight, dbias may be absent
  bool relu = false;       // dy is of the relu of the result, which was computed with `bias`
  In bias = {};            // may be absent
  static constexpr const char* kName = "batch_norm_grad";
  void views(auto&& f) const { f(dy), f(x), f(weight), f(mean), f(inv_std), f(dx), f(dweight), f(dbias), f(bias); }
};

// x, y: [outer, size, inner] (rank 3), along the middle dimension; contiguous.
struct SoftmaxArgs {
  In x;
  Out y;
  bool log;
  static constexpr const char* kName = "softmax";
  void views(auto&& f) const { f(x), f(y); }
};
struct SoftmaxGradArgs {  // dx from dy and the saved output y
  In dy, y;
  Out dx;
  bool log;
  static constexpr const char* kName = "softmax_grad";
  void views(auto&& f) const { f(dy), f(y), f(dx); }
};

// ---- indexing. An index out of range throws InvalidArgument (host; at the call or at the next wait).

struct GatherArgs {  // out[i][j][k] = in[i][index[i][j][k]][k] along `dim`; index and out have one shape
  In in, index;      // i64
  Out out;
  int dim;
  static constexpr const char* kName = "gather";
  void views(auto&& f) const { f(in), f(index), f(out); }
};
struct ScatterAddArgs {  // out[i][index[i][j][k]][k] += in[i][j][k] along `dim`, in index order
  In in, index;
  InOut out;
  int dim;
  static constexpr const char* kName = "scatter_add";
  void views(auto&& f) const { f(in), f(index), f(out); }
};
struct IndexSelectArgs {  // out = in at the positions index ([n], i64) along `dim`
  In in, index;
  Out out;
  int dim;
  static constexpr const char* kName = "index_select";
  void views(auto&& f) const { f(in), f(index), f(out); }
};
struct IndexAddArgs {  // out at the positions index along `dim` += in, in index order
  In in, index;
  InOut out;
  int dim;
  static constexpr const char* kName = "index_add";
  void views(auto&& f) const { f(in), f(index), f(out); }
};

// ---- random numbers: Philox 4x32-10 (Salmon et al., 2011). Element i of a contiguous `out` depends on key, stream and
// i alone.

enum class RandomKind : std::uint8_t {
  uniform,    // [a, b)
  normal,     // mean a, standard deviation b
  bernoulli,  // 1 with probability a, else 0
  integer,    // {a, …, b - 1}
  count,
};
struct RandomArgs {
  RandomKind kind;
  Out out;
  std::uint64_t key, stream;
  double a, b;
  const std::uint64_t* replayed = nullptr;  // device memory: key and stream, in the place of those above
  static constexpr const char* kName = "random";
  void views(auto&& f) const { f(out); }
};

}  // namespace lockstep
