// Arithmetic, comparisons and selection of two tensors.
#include <cmath>

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

using detail::apply;
using detail::BinaryRule;
using detail::uses_a;
using detail::uses_b;
using detail::uses_nothing;
using detail::uses_y;

// 0 where a loses, 1/2 where neither wins, else 1: so also where one is NaN. Carries no gradient.
Tensor share(BinaryOp loses, const Tensor& a, const Tensor& b) {
  NoGrad no_grad;
  const Tensor wins = logical_not(detail::elementwise("share", loses, a, b)).to(a.dtype());
  return add(wins, eq(a, b).to(a.dtype()), -0.5);
}

using OfTwo = const detail::BinaryOperands&;

constexpr BinaryRule kAdd{"add",
                          BinaryOp::add,
                          {uses_nothing, [](OfTwo of) { return of.g; }},
                          {uses_nothing, [](OfTwo of) { return of.alpha == 1 ? of.g : of.g * of.alpha; }}};
constexpr BinaryRule kSub{"sub",
                          BinaryOp::sub,
                          {uses_nothing, [](OfTwo of) { return of.g; }},
                          {uses_nothing, [](OfTwo of) { return -of.g; }}};
constexpr BinaryRule kMul{"mul", BinaryOp::mul, {uses_b, [](OfTwo of) { return of.g * of.b; }}, {uses_a, [](OfTwo of) {
                                                                                                   return of.g * of.a;
                                                                                                 }}};
constexpr BinaryRule kDiv{"div",
                          BinaryOp::div,
                          {uses_b, [](OfTwo of) { return of.g / of.b; }},
                          {uses_b | uses_y, [](OfTwo of) { return -(of.g * of.y / of.b); }}};
constexpr BinaryRule kMaximum{"maximum",
                              BinaryOp::maximum,
                              {uses_a | uses_b, [](OfTwo of) { return of.g * share(BinaryOp::lt, of.a, of.b); }},
                              {uses_a | uses_b, [](OfTwo of) { return of.g * share(BinaryOp::lt, of.b, of.a); }}};
constexpr BinaryRule kMinimum{"minimum",
                              BinaryOp::minimum,
                              {uses_a | uses_b, [](OfTwo of) { return of.g * share(BinaryOp::gt, of.a, of.b); }},
                              {uses_a | uses_b, [](OfTwo of) { return of.g * share(BinaryOp::gt, of.b, of.a); }}};

Tensor pow_by_base(OfTwo of) {
  // 0 * x^-1 would be NaN at 0.
  return of.g * where(eq(of.b, 0.0), 0.0, of.b * pow(of.a, of.b - 1));
}
Tensor pow_by_exponent(OfTwo of) {
  // 0 * log(0) would be NaN: 0^b does not change with b where it is defined.
  const Tensor zero = logical_and(eq(of.a, 0.0), ge(of.b, 0.0));
  return of.g * where(zero, 0.0, of.y * log(where(zero, 1.0, of.a)));
}
constexpr BinaryRule kPow{
    "pow", BinaryOp::pow, {uses_a | uses_b, pow_by_base}, {uses_a | uses_b | uses_y, pow_by_exponent}};

constexpr BinaryRule kFloorDivide{
    "floor_divide", BinaryOp::floor_div, {uses_nothing, nullptr}, {uses_nothing, nullptr}};
constexpr BinaryRule kRemainder{
    "remainder",
    BinaryOp::remainder,
    {uses_nothing, [](OfTwo of) { return of.g; }},
    {uses_a | uses_b, [](OfTwo of) { return -(of.g * floor_divide(of.a.detach(), of.b.detach())); }}};

bool both_bool(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.dtype() == DType::boolean && b.dtype() == DType::boolean;
}

// Comparisons and logic: results are bool.
Tensor predicate(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  detail::check_same_device(name, a, b);
  if (a.dtype() == b.dtype()) return detail::elementwise(name, op, a, b);
  NoGrad no_grad;
  const DType dtype = result_type(a, b);
  return detail::elementwise(name, op, a.to(dtype), b.to(dtype));
}
Tensor predicate(const char* name, BinaryOp op, const Tensor& a, double b) {
  detail::check_defined(name, a);
  const DType shared = detail::dtype_with(a, b);
  if (detail::wrapped(b, shared) != b && std::isfinite(b)) [[unlikely]] {
    // A number that the integers of `a` are all on one side of.
    const bool fits = detail::wrapped(b, DType::i64) == b;
    const double beyond = b < 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    return fits ? predicate(name, op, a.to(DType::i64), b) : predicate(name, op, a, beyond);
  }
  return predicate(name, op, a, detail::fresh_scalar(b, detail::dtype_with(a, b), a.device()));
}

// f(x, number), where the number is not rounded to a 16-bit dtype first.
template <class F>
Tensor with_number(const char* name, const Tensor& x, double number, F f) {
  detail::check_defined(name, x);
  const DType meet = detail::dtype_with(x, number), dtype = detail::dtype_for(number, meet);
  const Tensor scalar = detail::fresh_scalar(number, dtype, x.device());
  return dtype == meet ? f(x, scalar) : f(x.to(dtype), scalar).to(meet);
}

class WhereNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "where"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor chosen = condition.get(*this);
    if (needs(0)) grad_inputs[0] = sum_to(where(chosen, grad_outputs[0], 0.0), shape_a);
    if (needs(1)) grad_inputs[1] = sum_to(where(chosen, 0.0, grad_outputs[0]), shape_b);
  }
  Saved condition{*this};
  Shape shape_a, shape_b;
};

}  // namespace

Tensor add(const Tensor& a, const Tensor& b, double alpha) {
  // As a sum of bools is: true when one of them is.
  if (both_bool(a, b) && alpha == 1) return logical_or(a, b);
  return apply(kAdd, a, b, alpha);
}
Tensor sub(const Tensor& a, const Tensor& b) { return apply(kSub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return both_bool(a, b) ? logical_and(a, b) : apply(kMul, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return apply(kMaximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return apply(kMinimum, a, b); }
Tensor pow(const Tensor& base, const Tensor& exponent) { return apply(kPow, base, exponent); }

Tensor div(const Tensor& a, const Tensor& b) {
  detail::check_same_device("div", a, b);
  const DType dtype = result_type(a, b);
  if (is_floating(dtype)) [[likely]]
    return apply(kDiv, a, b);
  return apply(kDiv, a.to(DefaultDType::get()), b.to(DefaultDType::get()));
}

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  NoGrad no_grad;
  return apply(kFloorDivide, a, b);
}
Tensor floor_divide(const Tensor& a, double b) {
  return with_number("floor_divide", a, b,
                     [](const Tensor& x, const Tensor& number) { return floor_divide(x, number); });
}
Tensor remainder(const Tensor& a, const Tensor& b) { return apply(kRemainder, a, b); }
Tensor remainder(const Tensor& a, double b) {
  return with_number("remainder", a, b, [](const Tensor& x, const Tensor& number) { return remainder(x, number); });
}

Tensor pow(double base, const Tensor& exponent) {
  return with_number("pow", exponent, base, [](const Tensor& x, const Tensor& number) { return pow(number, x); });
}

Tensor eq(const Tensor& a, const Tensor& b) { return predicate("eq", BinaryOp::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return predicate("ne", BinaryOp::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return predicate("lt", BinaryOp::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return predicate("le", BinaryOp::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return predicate("gt", BinaryOp::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return predicate("ge", BinaryOp::ge, a, b); }
Tensor eq(const Tensor& a, double b) { return predicate("eq", BinaryOp::eq, a, b); }
Tensor ne(const Tensor& a, double b) { return predicate("ne", BinaryOp::ne, a, b); }
Tensor lt(const Tensor& a, double b) { return predicate("lt", BinaryOp::lt, a, b); }
Tensor le(const Tensor& a, double b) { return predicate("le", BinaryOp::le, a, b); }
Tensor gt(const Tensor& a, double b) { return predicate("gt", BinaryOp::gt, a, b); }
Tensor ge(const Tensor& a, double b) { return predicate("ge", BinaryOp::ge, a, b); }
Tensor logical_and(const Tensor& a, const Tensor& b) { return predicate("logical_and", BinaryOp::logical_and, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return predicate("logical_or", BinaryOp::logical_or, a, b); }
Tensor logical_xor(const Tensor& a, const Tensor& b) { return predicate("logical_xor", BinaryOp::logical_xor, a, b); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  detail::check_same_device("where", condition, a);
  detail::check_same_device("where", a, b);
  LOCKSTEP_CHECK(condition.dtype() == DType::boolean, "[where] expected a bool condition, got ", condition);
  if (a.dtype() != b.dtype()) {
    const DType dtype = result_type(a, b);
    return where(condition, a.to(dtype), b.to(dtype));
  }
  Shape shape = detail::broadcast("where", a, b);
  if (condition.shape() != shape) shape = broadcast_shapes("where", condition.shape(), shape);
  Tensor y = detail::fresh(shape, a.dtype(), a.device(), detail::common_format(shape, {&condition, &a, &b}));
  detail::launch(a.device(), WhereArgs{In{detail::view_as(condition, shape)}, In{detail::view_as(a, shape)},
                                       In{detail::view_as(b, shape)}, y.out()});
  if (auto* node = record<WhereNode>(y, a, b)) {
    node->condition.save(condition);
    node->shape_a = a.shape();
    node->shape_b = b.shape();
  }
  return y;
}

Tensor where(const Tensor& condition, const Tensor& a, double b) {
  detail::check_defined("where", a);
  return where(condition, a, detail::fresh_scalar(b, detail::dtype_with(a, b), a.device()));
}
Tensor where(const Tensor& condition, double a, const Tensor& b) {
  detail::check_defined("where", b);
  return where(condition, detail::fresh_scalar(a, detail::dtype_with(b, a), b.device()), b);
}

}  // namespace lockstep
