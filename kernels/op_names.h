// What the operations that share an entry of the kernel table are called in traces.
#pragma once

#include <cstddef>

#include "lockstep/kernels/table.h"

namespace lockstep {
namespace detail {
template <std::size_t N, class Op>
constexpr const char* name_at(const char* const (&names)[N], Op op) {
  return static_cast<std::size_t>(op) < N ? names[static_cast<std::size_t>(op)] : "?";
}
template <std::size_t N, class Op>
constexpr bool ends_with(const char* const (&)[N], Op last) {
  return static_cast<std::size_t>(last) + 1 == N;
}
}  // namespace detail

constexpr const char* op_name(UnaryOp op) {
  constexpr const char* kNames[] = {"neg",        "abs",         "sign",     "exp",  "log",       "sqrt",
                                    "rsqrt",      "reciprocal",  "square",   "sin",  "cos",       "tanh",
                                    "sigmoid",    "relu",        "softplus", "gelu", "gelu_tanh", "silu",
                                    "normal_cdf", "logical_not", "add",      "mul",  "pow",       "clamp"};
  static_assert(detail::ends_with(kNames, UnaryOp::clamp));
  return detail::name_at(kNames, op);
}

constexpr const char* op_name(BinaryOp op) {
  constexpr const char* kNames[] = {
      "add",       "sub",       "mul",          "div",          "pow",       "maximum",     "minimum",    "eq",
      "ne",        "lt",        "le",           "gt",           "ge",        "logical_and", "logical_or", "logical_xor",
      "relu_grad", "tanh_grad", "sigmoid_grad", "floor_divide", "remainder", "smooth_l1"};
  static_assert(detail::ends_with(kNames, BinaryOp::smooth_l1));
  return detail::name_at(kNames, op);
}

constexpr const char* op_name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "mean", "max", "min", "prod", "any", "all", "norm"};
  static_assert(detail::ends_with(kNames, ReduceOp::norm));
  return detail::name_at(kNames, op);
}

constexpr const char* op_name(ArgReduceOp op) { return op == ArgReduceOp::max ? "argmax" : "argmin"; }

constexpr const char* op_name(RandomKind kind) {
  constexpr const char* kNames[] = {"uniform", "normal", "bernoulli", "randint"};
  static_assert(detail::ends_with(kNames, RandomKind::integer));
  return detail::name_at(kNames, kind);
}

}  // namespace lockstep
