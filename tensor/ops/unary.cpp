// Functions of the elements: one rule each.
#include <cmath>

#include "lockstep/tensor/absent_elements.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

using detail::apply;
using detail::Save;
using detail::UnaryRule;

constexpr double kInverseSqrtTwoPi = 0.39894228040143267794, kTwoOverSqrtPi = 1.12837916709551257390;

// gradient * [saved > 0], linear in the gradient; fused, and differentiable by being its own derivative.
class MaskNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "relu_backward"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override;
  Saved saved{*this};
};

void MaskNode::backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) {
  grad_inputs[0] = detail::relu_backward(grad_outputs[0], saved.get(*this));
}

Tensor fused(const char* name, BinaryOp op, const detail::UnaryOperands& of) {
  return detail::elementwise(name, op, of.g, of.saved);
}

// The density of the standard normal distribution.
Tensor normal_density(const Tensor& x) { return exp(square(x) * -0.5) * kInverseSqrtTwoPi; }

// The gradient times slope(operand), of differentiable operations; 16-bit dtypes are rounded once, as by a kernel.
template <class Slope>
Tensor composed(const detail::UnaryOperands& of, Slope slope) {
  const DType dtype = of.g.dtype();
  if (dtype != DType::f16 && dtype != DType::bf16) return of.g * slope(of.saved);
  return (of.g.to(DType::f32) * slope(of.saved.to(DType::f32))).to(dtype);
}

// A rule ends with its derivative: of.g is the incoming gradient, of.saved what Save names.
using Of = const detail::UnaryOperands&;

constexpr UnaryRule kNeg{"neg", UnaryOp::neg, Save::nothing, [](Of of) { return -of.g; }, false};
constexpr UnaryRule kAbs{"abs", UnaryOp::abs, Save::input, [](Of of) { return of.g * sign(of.saved); }, false};
constexpr UnaryRule kSign{"sign", UnaryOp::sign, Save::nothing, nullptr, false};
constexpr UnaryRule kExp{"exp", UnaryOp::exp, Save::output, [](Of of) { return of.g * of.saved; }};
constexpr UnaryRule kLog{"log", UnaryOp::log, Save::input, [](Of of) { return of.g / of.saved; }};
constexpr UnaryRule kSqrt{"sqrt", UnaryOp::sqrt, Save::output, [](Of of) { return of.g / (of.saved * 2); }};
constexpr UnaryRule kRsqrt{"rsqrt", UnaryOp::rsqrt, Save::output, [](Of of) { return of.g * pow(of.saved, 3) * -0.5; }};
constexpr UnaryRule kReciprocal{"reciprocal", UnaryOp::reciprocal, Save::output,
                                [](Of of) { return -(of.g * square(of.saved)); }};
constexpr UnaryRule kSquare{"square", UnaryOp::square, Save::input, [](Of of) { return of.g * of.saved * 2; }, false};
constexpr UnaryRule kLog1p{"log1p", UnaryOp::log1p, Save::input, [](Of of) { return of.g / (of.saved + 1); }};
constexpr UnaryRule kExpm1{"expm1", UnaryOp::expm1, Save::output, [](Of of) { return of.g * (of.saved + 1); }};
constexpr UnaryRule kErf{"erf", UnaryOp::erf, Save::input,
                         [](Of of) { return of.g * (exp(-square(of.saved)) * kTwoOverSqrtPi); }};
constexpr UnaryRule kSin{"sin", UnaryOp::sin, Save::input, [](Of of) { return of.g * cos(of.saved); }};
constexpr UnaryRule kCos{"cos", UnaryOp::cos, Save::input, [](Of of) { return -(of.g * sin(of.saved)); }};
constexpr UnaryRule kTanh{"tanh", UnaryOp::tanh, Save::output, [](Of of) {
                            if (!GradMode::enabled()) return fused("tanh", BinaryOp::tanh_grad, of);
                            return of.g * (1 - square(of.saved));
                          }};
constexpr UnaryRule kSigmoid{"sigmoid", UnaryOp::sigmoid, Save::output, [](Of of) {
                               if (!GradMode::enabled()) return fused("sigmoid", BinaryOp::sigmoid_grad, of);
                               return of.g * of.saved * (1 - of.saved);
                             }};
constexpr UnaryRule kRelu{"relu", UnaryOp::relu, Save::output,
                          [](Of of) { return detail::relu_backward(of.g, of.saved); }, false};
constexpr UnaryRule kSoftplus{"softplus", UnaryOp::softplus, Save::input, [](Of of) {
                                if (!GradMode::enabled()) return fused("softplus", BinaryOp::softplus_grad, of);
                                return composed(of, [](const Tensor& x) { return sigmoid(x); });
                              }};
constexpr UnaryRule kNormalCdf{"normal_cdf", UnaryOp::normal_cdf, Save::input,
                               [](Of of) { return of.g * normal_density(of.saved); }};
constexpr UnaryRule kSilu{"silu", UnaryOp::silu, Save::input, [](Of of) {
                            if (!GradMode::enabled()) return fused("silu", BinaryOp::silu_grad, of);
                            return composed(of, [](const Tensor& x) {
                              const Tensor s = sigmoid(x);
                              return s * (1 + x * (1 - s));
                            });
                          }};
constexpr UnaryRule kGelu{"gelu", UnaryOp::gelu_exact, Save::input, [](Of of) {
                            if (!GradMode::enabled()) return fused("gelu", BinaryOp::gelu_grad, of);
                            return composed(of, [](const Tensor& x) { return normal_cdf(x) + x * normal_density(x); });
                          }};
constexpr UnaryRule kGeluTanh{"gelu", UnaryOp::gelu_tanh, Save::input, [](Of of) {
                                if (!GradMode::enabled()) return fused("gelu", BinaryOp::gelu_tanh_grad, of);
                                return composed(of, [](const Tensor& x) {
                                  // x * s(u) with s the sigmoid and u = 2 sqrt(2 / pi) (x + 0.044715 x^3).
                                  constexpr double kScale = 1.59576912160573071176, kCubic = 0.044715;
                                  const Tensor x2 = square(x), s = sigmoid(x * kScale * (1 + x2 * kCubic));
                                  return s + s * (1 - s) * x * (kScale * (1 + x2 * (3 * kCubic)));
                                });
                              }};
constexpr UnaryRule kHardswish{"hardswish", UnaryOp::hardswish, Save::input, [](Of of) {
                                 if (!GradMode::enabled()) return fused("hardswish", BinaryOp::hardswish_grad, of);
                                 const auto slope = [](const Tensor& x) { return where(x < 3.0, x / 3 + 0.5, 1.0); };
                                 return where(of.saved <= -3.0, 0.0, composed(of, slope));
                               }};
constexpr UnaryRule kFloor{"floor", UnaryOp::floor, Save::nothing, nullptr, false};
constexpr UnaryRule kCeil{"ceil", UnaryOp::ceil, Save::nothing, nullptr, false};
constexpr UnaryRule kRound{"round", UnaryOp::round, Save::nothing, nullptr, false};
constexpr UnaryRule kTrunc{"trunc", UnaryOp::trunc, Save::nothing, nullptr, false};
constexpr UnaryRule kAddScalar{"add", UnaryOp::add_scalar, Save::nothing, [](Of of) { return of.g; }, false};
constexpr UnaryRule kMulScalar{"mul", UnaryOp::mul_scalar, Save::nothing, [](Of of) { return of.g * of.a; }, false};
constexpr UnaryRule kPowScalar{"pow", UnaryOp::pow_scalar, Save::input,
                               [](Of of) {
                                 if (of.a == 0) return Tensor();  // 0 * x^-1 would be NaN at 0
                                 return of.a == 1 ? of.g : of.g * (pow(of.saved, of.a - 1) * of.a);
                               },
                               false};
constexpr UnaryRule kClamp{"clamp", UnaryOp::clamp, Save::input,
                           [](Of of) { return where(logical_and(ge(of.saved, of.a), le(of.saved, of.b)), of.g, 0.0); },
                           false};

}  // namespace

Tensor detail::relu_backward(const Tensor& gradient, const Tensor& saved) {
  Tensor y = elementwise("relu_backward", BinaryOp::relu_grad, gradient, saved);
  if (auto* node = record<MaskNode>(y, gradient)) node->saved.save(saved.detach());
  return y;
}

Tensor detail::activated(const Tensor& x, Activation activation) {
  if (activation == Activation::none) return x;
  if (activation == Activation::relu) return relu(x);
  return gelu(x, activation == Activation::gelu ? GeluForm::exact : GeluForm::tanh);
}

Tensor operator-(const Tensor& x) { return apply(kNeg, x); }
Tensor abs(const Tensor& x) { return apply(kAbs, x); }
Tensor sign(const Tensor& x) { return apply(kSign, x); }
Tensor exp(const Tensor& x) { return apply(kExp, x); }
Tensor log(const Tensor& x) { return apply(kLog, x); }
Tensor sqrt(const Tensor& x) { return apply(kSqrt, x); }
Tensor rsqrt(const Tensor& x) { return apply(kRsqrt, x); }
Tensor reciprocal(const Tensor& x) { return apply(kReciprocal, x); }
Tensor square(const Tensor& x) { return apply(kSquare, x); }
Tensor sin(const Tensor& x) { return apply(kSin, x); }
Tensor cos(const Tensor& x) { return apply(kCos, x); }
Tensor tanh(const Tensor& x) { return apply(kTanh, x); }
Tensor sigmoid(const Tensor& x) { return apply(kSigmoid, x); }
Tensor relu(const Tensor& x) {
  if (const detail::ReluOfPrepared prepared = detail::relu_of_prepared()) [[unlikely]]
    if (Tensor y = prepared(x); y.defined()) return y;
  return apply(kRelu, x);
}
Tensor softplus(const Tensor& x) { return apply(kSoftplus, x); }
Tensor silu(const Tensor& x) { return apply(kSilu, x); }
Tensor hardswish(const Tensor& x) { return apply(kHardswish, x); }
Tensor normal_cdf(const Tensor& x) { return apply(kNormalCdf, x); }
Tensor gelu(const Tensor& x, GeluForm form) { return apply(form == GeluForm::exact ? kGelu : kGeluTanh, x); }

Tensor log1p(const Tensor& x) { return apply(kLog1p, x); }
Tensor expm1(const Tensor& x) { return apply(kExpm1, x); }
Tensor erf(const Tensor& x) { return apply(kErf, x); }

Tensor floor(const Tensor& x) { return apply(kFloor, x); }
Tensor ceil(const Tensor& x) { return apply(kCeil, x); }
Tensor round(const Tensor& x) { return apply(kRound, x); }
Tensor trunc(const Tensor& x) { return apply(kTrunc, x); }

Tensor isnan(const Tensor& x) { return ne(x, x); }
Tensor isinf(const Tensor& x) {
  detail::check_defined("isinf", x);
  if (!is_floating(x.dtype())) return ne(x, x);
  NoGrad no_grad;
  return eq(abs(x), std::numeric_limits<double>::infinity());
}
Tensor isfinite(const Tensor& x) {
  detail::check_defined("isfinite", x);
  if (!is_floating(x.dtype())) return eq(x, x);
  NoGrad no_grad;
  return lt(abs(x), std::numeric_limits<double>::infinity());
}

Tensor logical_not(const Tensor& x) {
  detail::check_defined("logical_not", x);
  Tensor y = detail::fresh_like(x, DType::boolean);
  detail::launch(x.device(), UnaryArgs{UnaryOp::logical_not, x.in(), y.out()});
  return y;
}

// ---- with a number

namespace {
Tensor apply_with(const UnaryRule& rule, const Tensor& x, double number) {
  detail::check_defined(rule.name, x);
  const DType dtype = detail::dtype_with(x, number);
  // Of a u8, x - 1 is x + 255.
  if (rule.op != UnaryOp::pow_scalar) number = detail::wrapped(number, dtype);
  if (dtype == x.dtype()) [[likely]]
    return apply(rule, x, number);
  return apply(rule, x.to(dtype), number);
}
}  // namespace

Tensor add(const Tensor& a, double b) { return apply_with(kAddScalar, a, b); }
Tensor mul(const Tensor& a, double b) { return apply_with(kMulScalar, a, b); }

Tensor div(const Tensor& a, double b) {
  detail::check_defined("div", a);
  const DType dtype = detail::floating_dtype(a.dtype());
  if (a.dtype() != dtype) return div(a.to(dtype), b);
  // Multiplying by the reciprocal gives the same bits only where the reciprocal is exact. The 16-bit types compute in
  // f32, which hides the difference.
  int exponent;
  const bool power_of_two = std::fabs(std::frexp(b, &exponent)) == 0.5 && std::abs(exponent) < 100;
  if (power_of_two || size_of(dtype) == 2) return mul(a, 1 / b);
  return div(a, detail::fresh_scalar(b, dtype, a.device()));
}

Tensor operator-(double a, const Tensor& b) {
  detail::check_defined("sub", b);
  return add(-b.to(detail::dtype_with(b, a)), a);
}

Tensor operator/(double a, const Tensor& b) {
  detail::check_defined("div", b);
  if (a == 1) return reciprocal(b);
  const DType meet = detail::floating_dtype(b.dtype()), dtype = detail::dtype_for(a, meet);
  const Tensor number = detail::fresh_scalar(a, dtype, b.device());
  return dtype == meet ? div(number, b) : div(number, b.to(dtype)).to(meet);
}

Tensor pow(const Tensor& base, double exponent) {
  detail::check_defined("pow", base);
  // A negative power of an integer is a fraction.
  if (!is_floating(base.dtype()) && exponent < 0) return apply(kPowScalar, base.to(DefaultDType::get()), exponent);
  return apply_with(kPowScalar, base, exponent);
}

Tensor clamp(const Tensor& x, double low, double high) {
  LOCKSTEP_CHECK(low <= high, "[clamp] expected low <= high, got ", low, " and ", high);
  detail::check_defined("clamp", x);
  const auto fraction = [](double bound) { return std::isfinite(bound) && bound != std::floor(bound); };
  if (!is_floating(x.dtype()) && (fraction(low) || fraction(high)))
    return apply(kClamp, x.to(DefaultDType::get()), low, high);
  return apply(kClamp, x, low, high);
}

}  // namespace lockstep
