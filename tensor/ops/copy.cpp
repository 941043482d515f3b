// The members of Tensor that copy: to another device, another dtype, contiguous memory.
#include "lockstep/runtime/copy/copy.h"

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/absent_elements.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

class ToDeviceNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "to"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = grad_outputs[0].to(device);
  }
  Device device;
};

class ToDTypeNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "to"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = grad_outputs[0].to(dtype);
  }
  DType dtype = DType::f32;
};

// Also of contiguous() and to(format).
class CloneNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "clone"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = detail::in_format(grad_outputs[0], format);
  }
  MemoryFormat format = MemoryFormat::contiguous;  // of the operand
};

Tensor copy_in(MemoryFormat format, const Tensor& x) {
  Tensor y = detail::fresh(x.shape(), x.dtype(), x.device(), format);
  detail::copy_elements(y, x);
  if (auto* node = record<CloneNode>(y, x)) node->format = x.memory_format();
  return y;
}

void check_format(const char* op, const Tensor& x, MemoryFormat format) {
  LOCKSTEP_CHECK(format == MemoryFormat::contiguous || x.rank() == 4, "[", op,
                 "] expected four dimensions [N, C, H, W] for channels_last, got ", x);
}

}  // namespace

Tensor Tensor::to(Device device) const {
  const Device from = this->device();
  if (from == device) return *this;
  ordinal(device);  // throws for a device that does not exist, before anything is computed
  const MemoryFormat format = memory_format();
  if (!contiguous_layout(format)) return contiguous(format).to(device);
  detail::check_present(*identity());
  Tensor y = detail::fresh(shape(), dtype(), device, format);
  const Stream source_stream = current_stream(from), destination_stream = current_stream(device);
  LOCKSTEP_EDGE(storage()->record_use(source_stream));
  copy_bytes({.destination = y.raw_data(),
              .destination_device = device,
              .source = raw_data(),
              .source_device = from,
              .bytes = bytes()},
             source_stream, destination_stream);
  if (auto* node = record<ToDeviceNode>(y, *this)) node->device = from;
  return y;
}

Tensor Tensor::to(DType dtype) const {
  const DType from = this->dtype();
  if (from == dtype) return *this;
  Tensor y = detail::fresh_like(*this, dtype);
  detail::copy_elements(y, *this);
  if (!is_floating(dtype)) return y;  // integers carry no gradient
  if (auto* node = record<ToDTypeNode>(y, *this)) node->dtype = from;
  return y;
}

Tensor Tensor::contiguous() const { return contiguous_layout() ? *this : copy_in(MemoryFormat::contiguous, *this); }

Tensor Tensor::contiguous(MemoryFormat format) const {
  check_format("contiguous", *this, format);
  return contiguous_layout(format) ? *this : copy_in(format, *this);
}

Tensor Tensor::to(MemoryFormat format) const {
  check_format("to", *this, format);
  const bool is =
      contiguous_layout(format) && (memory_format() == format || strides() == format_strides(shape(), format));
  return is ? *this : copy_in(format, *this);
}

Tensor Tensor::clone() const { return copy_in(memory_format(), *this); }

}  // namespace lockstep
