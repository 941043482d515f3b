// The members of Tensor that write into it. In a graph the written tensor gets a new origin, whose input is the old
// one. That is right only while nobody else sees the elements: a view would keep the old origin with the new values.
#include <cmath>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/absent_elements.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

class AddInPlaceNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "add_"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (needs(0)) grad_inputs[0] = grad_outputs[0];
    if (needs(1)) grad_inputs[1] = sum_to(alpha == 1 ? grad_outputs[0] : grad_outputs[0] * alpha, shape);
  }
  double alpha = 1;
  Shape shape;  // of the other operand
};

class MulInPlaceNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "mul_"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (needs(0)) grad_inputs[0] = grad_outputs[0] * factor.get(*this);
    if (needs(1)) grad_inputs[1] = sum_to(grad_outputs[0] * before.get(*this), shape);
  }
  Saved factor{*this}, before{*this};
  Shape shape;
};

class DivInPlaceNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "div_"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor by = divisor.get(*this);
    const Tensor of_self = grad_outputs[0] / by;
    if (needs(0)) grad_inputs[0] = of_self;
    if (needs(1)) grad_inputs[1] = sum_to(-(of_self * before.get(*this) / by), shape);
  }
  Saved divisor{*this}, before{*this};
  Shape shape;
};

class ScaleInPlaceNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "mul_"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = factor == 1 ? grad_outputs[0] : grad_outputs[0] * factor;
  }
  double factor = 1;
};

// What was there before plays no part any more.
class CopyInPlaceNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "copy_"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (needs(1)) grad_inputs[1] = sum_to(grad_outputs[0], shape).to(dtype);
  }
  Shape shape;
  DType dtype = DType::f32;
};

void check_writable(const char* op, const Tensor& self, const Tensor& other = {}) {
  detail::check_defined(op, self);
  if (!self.contiguous_layout()) {
    for (int i = 0; i < self.rank(); ++i)
      LOCKSTEP_CHECK(self.strides()[i] != 0 || self.shape()[i] == 1, "[", op,
                     "] expected a tensor whose elements are distinct, got an expanded one, ", self,
                     "; clone() it first");
  }
  if (!GradMode::enabled() || !(self.requires_grad() || other.requires_grad())) return;
  LOCKSTEP_CHECK(!self.leaf(), "[", op,
                 "] expected a tensor that is not a leaf of the graph, got a leaf that requires a "
                 "gradient, ",
                 self, "; write into it under NoGrad");
  const bool is_view = self.identity()->is_view;
  LOCKSTEP_CHECK(
      !is_view && self.storage()->use_count() == 1, "[", op,
      "] expected a tensor that shares its elements with no other while it is part of a graph, got ", self,
      is_view ? ", which is a view" : ", whose elements another tensor has too or the graph keeps for backward",
      "; use the operation that is not in place, or clone() first");
}

// `other` read as a part of `self` would change while it is read.
Tensor apart(const Tensor& self, const Tensor& other) {
  if (self.storage().get() != other.storage().get()) return other;
  const bool same = self.storage_offset() == other.storage_offset() && self.shape() == other.shape() &&
                    self.strides() == other.strides();
  return same ? other : other.clone();
}

void check_operand(const char* op, const Tensor& self, const Tensor& other) {
  detail::check_same_device(op, self, other);
  const auto integer = [](const Tensor& x) { return !is_floating(x.dtype()) && x.dtype() != DType::boolean; };
  LOCKSTEP_CHECK((is_floating(self.dtype()) && is_floating(other.dtype())) || (integer(self) && integer(other)) ||
                     promote_types(self.dtype(), other.dtype()) == self.dtype(),
                 "[", op, "] expected a tensor that fits into ", self.dtype(), ", got ", self, " and ", other);
  LOCKSTEP_CHECK(detail::broadcast(op, self, other) == self.shape(), "[", op,
                 "] expected a tensor that broadcasts to the shape of the one written, got ", self, " and ", other);
}

// The other operand in the dtype of `self`.
Tensor operand(const Tensor& self, const Tensor& other) { return apart(self, other).to(self.dtype()); }

// f16 and f32 with dimensions: the result is rounded, and not the operand, which f16 may not have.
bool meets_wider(const Tensor& self, const Tensor& other) {
  return is_floating(self.dtype()) && result_type(self, other) != self.dtype();
}

// `self` becomes function(self in the dtype in which the two meet), with its graph.
template <class F>
void write_rounded(Tensor& self, const Tensor& other, F function) {
  const Tensor result = function(self.to(result_type(self, other))).to(self.dtype());
  detail::copy_elements(self, result);
  self.mark_changed();
  if (result.requires_grad()) self.set_edge(result.edge());
}

void write(BinaryOp op, const Tensor& self, const Tensor& other, double alpha) {
  detail::launch(self.device(), BinaryArgs{op, self.in(), In{detail::view_as(other, self.shape())}, self.out(), alpha});
  self.mark_changed();
}

double checked_number(const char* op, const Tensor& self, double value) {
  check_writable(op, self);
  LOCKSTEP_CHECK(detail::dtype_with(self, value) == self.dtype(), "[", op, "] expected a number that fits into ",
                 self.dtype(), ", got ", value, " for ", self);
  return detail::wrapped(value, self.dtype());
}

void scale_in_place(const char* op, const Tensor& self, double value) {
  const double factor = checked_number(op, self, value);
  detail::launch(self.device(), UnaryArgs{UnaryOp::mul_scalar, self.in(), self.out(), factor});
  self.mark_changed();
  if (auto* node = record<ScaleInPlaceNode>(self, self)) node->factor = factor;
}

}  // namespace

Tensor& Tensor::add_(const Tensor& other, double alpha) {
  check_writable("add_", *this, other);
  check_operand("add_", *this, other);
  const bool whole = alpha == std::trunc(alpha) && std::isfinite(alpha);
  LOCKSTEP_CHECK(is_floating(dtype()) || (dtype() == DType::boolean ? alpha == 1 : whole),
                 "[add_] expected an alpha that fits into ", dtype(), ", got ", alpha, " for ", *this, " and ", other);
  if (meets_wider(*this, other)) [[unlikely]] {
    write_rounded(*this, other, [&](const Tensor& self) { return add(self, other, alpha); });
    return *this;
  }
  const Tensor addend = operand(*this, other);
  if (dtype() == DType::boolean) return write(BinaryOp::logical_or, *this, addend, 1), *this;
  write(BinaryOp::add, *this, addend, detail::wrapped(alpha, dtype()));
  if (auto* node = record<AddInPlaceNode>(*this, *this, addend)) node->alpha = alpha, node->shape = addend.shape();
  return *this;
}

Tensor& Tensor::mul_(const Tensor& other) {
  check_writable("mul_", *this, other);
  check_operand("mul_", *this, other);
  if (meets_wider(*this, other)) [[unlikely]] {
    write_rounded(*this, other, [&](const Tensor& self) { return mul(self, other); });
    return *this;
  }
  const Tensor factor = operand(*this, other);
  if (dtype() == DType::boolean) return write(BinaryOp::logical_and, *this, factor, 1), *this;
  const bool keeps = GradMode::enabled() && factor.requires_grad();
  const Tensor before = keeps ? detach().clone() : Tensor();
  const Edge old = edge();
  if (keeps) before.set_edge(old);  // for second derivatives
  write(BinaryOp::mul, *this, factor, 1);
  if (auto* node = record<MulInPlaceNode>(*this, *this, factor)) {
    const bool itself = factor.storage() == storage();
    if (node->needs(0)) node->factor.save(itself ? before : factor);
    if (node->needs(1)) node->before.save(before);
    node->shape = factor.shape();
  }
  return *this;
}

Tensor& Tensor::add_(double value) {
  const double number = checked_number("add_", *this, value);
  detail::launch(device(), UnaryArgs{UnaryOp::add_scalar, in(), out(), number});
  mark_changed();
  record<ScaleInPlaceNode>(*this, *this);
  return *this;
}

Tensor& Tensor::mul_(double value) {
  scale_in_place("mul_", *this, value);
  return *this;
}

Tensor& Tensor::div_(const Tensor& other) {
  check_writable("div_", *this, other);
  detail::check_floating("div_", *this);
  check_operand("div_", *this, other);
  if (meets_wider(*this, other)) [[unlikely]] {
    write_rounded(*this, other, [&](const Tensor& self) { return div(self, other); });
    return *this;
  }
  const Tensor divisor = operand(*this, other);
  const bool keeps = GradMode::enabled() && divisor.requires_grad();
  const Tensor before = keeps ? detach().clone() : Tensor();
  if (keeps) before.set_edge(edge());  // for second derivatives
  write(BinaryOp::div, *this, divisor, 1);
  if (auto* node = record<DivInPlaceNode>(*this, *this, divisor)) {
    node->divisor.save(divisor.storage() == storage() ? before : divisor);
    if (node->needs(1)) node->before.save(before);
    node->shape = divisor.shape();
  }
  return *this;
}

Tensor& Tensor::div_(double value) {
  detail::check_floating("div_", *this);
  // As div: in f32, for which the number need not be one of the 16-bit dtype.
  if (size_of(dtype()) == 2) return scale_in_place("div_", *this, 1 / value), *this;
  return div_(detail::fresh_scalar(value, dtype(), device()));
}

Tensor& Tensor::copy_(const Tensor& source) {
  check_writable("copy_", *this, source);
  detail::check_defined("copy_", source);
  LOCKSTEP_CHECK(detail::broadcast("copy_", *this, source) == shape(),
                 "[copy_] expected a tensor that broadcasts to the shape of the one written, got ", *this, " and ",
                 source);
  const auto both = [&](MemoryFormat format) { return contiguous_layout(format) && source.contiguous_layout(format); };
  if (source.device() != device() && source.shape() == shape() &&
      (both(MemoryFormat::contiguous) || both(MemoryFormat::channels_last)) && source.dtype() == dtype() &&
      !(GradMode::enabled() && source.requires_grad())) {
    // Straight into place.
    detail::check_present(*identity());
    detail::check_present(*source.identity());
    const Stream from = current_stream(source.device()), to = current_stream(device());
    LOCKSTEP_EDGE(source.storage()->record_use(from));
    LOCKSTEP_EDGE(storage()->record_use(to));
    LOCKSTEP_EDGE(storage()->before_write());
    copy_bytes({.destination = raw_data(),
                .destination_device = device(),
                .source = source.raw_data(),
                .source_device = source.device(),
                .bytes = bytes()},
               from, to);
    mark_changed();
    if (auto* node = record<CopyInPlaceNode>(*this, *this, source)) node->shape = source.shape();
    return *this;
  }
  const Tensor moved = apart(*this, source.to(device()));
  detail::copy_elements(*this, moved);
  mark_changed();
  const Tensor origin = is_floating(dtype()) ? moved : moved.detach();
  if (auto* node = record<CopyInPlaceNode>(*this, *this, origin))
    node->shape = moved.shape(), node->dtype = moved.dtype();
  return *this;
}

Tensor& Tensor::fill_(double value) {
  check_writable("fill_", *this);
  detail::fill(*this, value);
  mark_changed();
  if (GradMode::enabled()) set_edge({});  // a constant from here on
  return *this;
}

}  // namespace lockstep
