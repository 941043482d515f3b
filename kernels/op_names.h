// What the operations that share a kernel are called in traces.
#pragma once

#include "lockstep/kernels/args.h"

namespace lockstep {

// Switches, so that the compiler says when a name is missing.
// clang-format off
constexpr const char* op_name(UnaryOp op) {
  switch (op) {
    case UnaryOp::neg: return "neg";
    case UnaryOp::abs: return "abs";
    case UnaryOp::sign: return "sign";
    case UnaryOp::exp: return "exp";
    case UnaryOp::log: return "log";
    case UnaryOp::sqrt: return "sqrt";
    case UnaryOp::rsqrt: return "rsqrt";
    case UnaryOp::reciprocal: return "reciprocal";
    case UnaryOp::square: return "square";
    case UnaryOp::sin: return "sin";
    case UnaryOp::cos: return "cos";
    case UnaryOp::tanh: return "tanh";
    case UnaryOp::sigmoid: return "sigmoid";
    case UnaryOp::relu: return "relu";
    case UnaryOp::softplus: return "softplus";
    case UnaryOp::gelu_exact: return "gelu";
    case UnaryOp::gelu_tanh: return "gelu_tanh";
    case UnaryOp::silu: return "silu";
    case UnaryOp::hardswish: return "hardswish";
    case UnaryOp::normal_cdf: return "normal_cdf";
    case UnaryOp::logical_not: return "logical_not";
    case UnaryOp::log1p: return "log1p";
    case UnaryOp::expm1: return "expm1";
    case UnaryOp::erf: return "erf";
    case UnaryOp::floor: return "floor";
    case UnaryOp::ceil: return "ceil";
    case UnaryOp::round: return "round";
    case UnaryOp::trunc: return "trunc";
    case UnaryOp::add_scalar: return "add";
    case UnaryOp::mul_scalar: return "mul";
    case UnaryOp::pow_scalar: return "pow";
    case UnaryOp::clamp: return "clamp";
    case UnaryOp::count: break;
  }
  return nullptr;
}
constexpr const char* op_name(BinaryOp op) {
  switch (op) {
    case BinaryOp::add: return "add";
    case BinaryOp::sub: return "sub";
    case BinaryOp::mul: return "mul";
    case BinaryOp::div: return "div";
    case BinaryOp::pow: return "pow";
    case BinaryOp::maximum: return "maximum";
    case BinaryOp::minimum: return "minimum";
    case BinaryOp::eq: return "eq";
    case BinaryOp::ne: return "ne";
    case BinaryOp::lt: return "lt";
    case BinaryOp::le: return "le";
    case BinaryOp::gt: return "gt";
    case BinaryOp::ge: return "ge";
    case BinaryOp::logical_and: return "logical_and";
    case BinaryOp::logical_or: return "logical_or";
    case BinaryOp::logical_xor: return "logical_xor";
    case BinaryOp::relu_grad: return "relu_grad";
    case BinaryOp::tanh_grad: return "tanh_grad";
    case BinaryOp::sigmoid_grad: return "sigmoid_grad";
    case BinaryOp::softplus_grad: return "softplus_grad";
    case BinaryOp::silu_grad: return "silu_grad";
    case BinaryOp::gelu_grad: return "gelu_grad";
    case BinaryOp::gelu_tanh_grad: return "gelu_tanh_grad";
    case BinaryOp::hardswish_grad: return "hardswish_grad";
    case BinaryOp::floor_div: return "floor_divide";
    case BinaryOp::remainder: return "remainder";
    case BinaryOp::smooth_l1: return "smooth_l1";
    case BinaryOp::count: break;
  }
  return nullptr;
}
constexpr const char* op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::mean: return "mean";
    case ReduceOp::max: return "max";
    case ReduceOp::min: return "min";
    case ReduceOp::prod: return "prod";
    case ReduceOp::any: return "any";
    case ReduceOp::all: return "all";
    case ReduceOp::norm: return "norm";
    case ReduceOp::count: break;
  }
  return nullptr;
}
constexpr const char* op_name(ArgReduceOp op) {
  switch (op) {
    case ArgReduceOp::max: return "argmax";
    case ArgReduceOp::min: return "argmin";
    case ArgReduceOp::count: break;
  }
  return nullptr;
}
constexpr const char* op_name(RandomKind op) {
  switch (op) {
    case RandomKind::uniform: return "uniform";
    case RandomKind::normal: return "normal";
    case RandomKind::bernoulli: return "bernoulli";
    case RandomKind::integer: return "randint";
    case RandomKind::count: break;
  }
  return nullptr;
}
// clang-format on

template <class Op>
consteval bool all_named() {
  for (std::size_t i = 0; i < kCountOf<Op>; ++i)
    if (!op_name(static_cast<Op>(i))) return false;
  return true;
}
static_assert(all_named<UnaryOp>() && all_named<BinaryOp>() && all_named<ReduceOp>() && all_named<ArgReduceOp>() &&
              all_named<RandomKind>());

}  // namespace lockstep
