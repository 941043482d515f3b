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

class CloneNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "clone"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = grad_outputs[0];
  }
};

}  // namespace

Tensor Tensor::to(Device device) const {
  const Device from = this->device();
  if (from == device) return *this;
  ordinal(device);  // throws for a device that does not exist, before anything is computed
  if (!contiguous_layout()) return contiguous().to(device);
  detail::check_present(*identity());
  Tensor y = detail::fresh(shape(), dtype(), device);
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
  Tensor y = detail::fresh(shape(), dtype, device());
  detail::copy_elements(y, *this);
  if (!is_floating(dtype)) return y;  // integers carry no gradient
  if (auto* node = record<ToDTypeNode>(y, *this)) node->dtype = from;
  return y;
}

Tensor Tensor::contiguous() const { return contiguous_layout() ? *this : clone(); }

Tensor Tensor::clone() const {
  Tensor y = detail::fresh(shape(), dtype(), device());
  detail::copy_elements(y, *this);
  record<CloneNode>(y, *this);
  return y;
}

}  // namespace lockstep
