// How rules become operations: the common path of all elementwise operations.
#include <cmath>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {
namespace {

class UnaryNode final : public NodeOf<1> {
 public:
  const char* name() const override { return rule->name; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (!rule->derivative) return;
    const Tensor value = rule->save == Save::nothing ? Tensor() : saved.get(*this);
    grad_inputs[0] = rule->derivative({grad_outputs[0], value, a, b});
  }

  const UnaryRule* rule = nullptr;
  Saved saved{*this};
  double a = 0, b = 0;
};

class BinaryNode final : public NodeOf<2> {
 public:
  const char* name() const override { return rule->name; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const std::uint8_t uses = used();
    const Tensor x = uses & uses_a ? a.get(*this) : Tensor();
    const Tensor z = uses & uses_b ? b.get(*this) : Tensor();
    const Tensor out = uses & uses_y ? y.get(*this) : Tensor();
    const BinaryOperands of{grad_outputs[0], x, z, out, alpha};
    if (needs(0)) grad_inputs[0] = sum_to(rule->for_a.derivative(of), shape_a);
    if (needs(1)) grad_inputs[1] = sum_to(rule->for_b.derivative(of), shape_b);
  }

  std::uint8_t used() const {
    return static_cast<std::uint8_t>((needs(0) ? rule->for_a.uses : 0) | (needs(1) ? rule->for_b.uses : 0));
  }

  const BinaryRule* rule = nullptr;
  Saved a{*this}, b{*this}, y{*this};
  double alpha = 1;
  Shape shape_a, shape_b;
};

bool is_predicate(BinaryOp op) { return op >= BinaryOp::eq && op <= BinaryOp::logical_xor; }

// Of functions that 16 bits would overflow or blur.
bool wide_under_autocast(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
    case UnaryOp::log:
    case UnaryOp::log1p:
    case UnaryOp::expm1:
    case UnaryOp::pow_scalar:
    case UnaryOp::reciprocal:
    case UnaryOp::rsqrt:
    case UnaryOp::softplus:
      return true;
    default:
      return false;
  }
}

}  // namespace

Tensor apply(const UnaryRule& rule, const Tensor& x, double a, double b) {
  check_defined(rule.name, x);
  if (widens(x) && wide_under_autocast(rule.op)) [[unlikely]]
    return apply(rule, widened(x), a, b);
  if (!is_floating(x.dtype())) [[unlikely]] {
    if (rule.floating) return apply(rule, x.to(DefaultDType::get()), a, b);
    LOCKSTEP_CHECK(x.dtype() != DType::boolean, "[", rule.name, "] expected numbers, got ", x);
  }
  Tensor y = fresh_like(x);
  launch(x.device(), UnaryArgs{rule.op, x.in(), y.out(), a, b});
  if (auto* node = record<UnaryNode>(y, x)) {
    node->rule = &rule;
    node->a = a;
    node->b = b;
    if (rule.save == Save::input) node->saved.save(x);
    if (rule.save == Save::output) node->saved.save_output(y);
  }
  return y;
}

Tensor elementwise(const char* name, BinaryOp op, const Tensor& a, const Tensor& b, double alpha) {
  const DType dtype = is_predicate(op) ? DType::boolean : a.dtype();
  if (a.shape() == b.shape()) [[likely]] {
    Tensor y =
        a.rank() == 4 ? fresh(a.shape(), dtype, a.device(), common_format(a.shape(), {&a, &b})) : fresh_like(a, dtype);
    launch(a.device(), BinaryArgs{op, a.in(), b.in(), y.out(), alpha});
    return y;
  }
  const Shape shape = broadcast(name, a, b);
  Tensor y = fresh(shape, dtype, a.device(), common_format(shape, {&a, &b}));
  launch(a.device(), BinaryArgs{op, In{view_as(a, shape)}, In{view_as(b, shape)}, y.out(), alpha});
  return y;
}

Tensor apply(const BinaryRule& rule, const Tensor& a, const Tensor& b, double alpha) {
  check_same_device(rule.name, a, b);
  if (rule.op == BinaryOp::pow && widens(a, b)) [[unlikely]]
    return apply(rule, widened(a), widened(b), alpha);
  if (a.dtype() != b.dtype()) [[unlikely]] {
    const DType dtype = result_type(a, b);
    return apply(rule, a.to(dtype), b.to(dtype), alpha);
  }
  if (alpha != 1 && !is_floating(a.dtype())) [[unlikely]] {
    LOCKSTEP_CHECK(alpha == std::trunc(alpha) && std::isfinite(alpha), "[", rule.name,
                   "] expected a whole alpha for integers, got ", alpha, " for ", a, " and ", b);
    alpha = wrapped(alpha, a.dtype());
  }
  LOCKSTEP_CHECK(a.dtype() != DType::boolean || rule.op == BinaryOp::maximum || rule.op == BinaryOp::minimum, "[",
                 rule.name, "] expected numbers, got ", a, " and ", b);
  Tensor y = elementwise(rule.name, rule.op, a, b, alpha);
  if (auto* node = record<BinaryNode>(y, a, b)) {
    node->rule = &rule;
    node->alpha = alpha;
    node->shape_a = a.shape();
    node->shape_b = b.shape();
    const std::uint8_t uses = node->used();
    if (uses & uses_a) node->a.save(a);
    if (uses & uses_b) node->b.save(b);
    if (uses & uses_y) node->y.save_output(y);
  }
  return y;
}

}  // namespace lockstep::detail
