#include "lockstep/tensor/nn/init.h"

#include <cmath>

#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::init {
namespace {

void overwrite(const char* op, RandomKind kind, const Tensor& tensor, double a, double b) {
  detail::check_floating(op, tensor);
  if (tensor.contiguous_layout()) {
    detail::draw(kind, tensor, a, b);
  } else {
    Tensor values = detail::fresh(tensor.shape(), tensor.dtype(), tensor.device());
    detail::draw(kind, values, a, b);
    detail::copy_elements(tensor, values);
  }
  tensor.mark_changed();
}

double fan(const Tensor& weight, FanMode mode) {
  const Fans both = fans(weight);
  return static_cast<double>(mode == FanMode::fan_in ? both.in : both.out);
}

}  // namespace

Fans fans(const Tensor& weight) {
  LOCKSTEP_CHECK(weight.defined() && weight.rank() >= 2, "[init] expected a weight [out, in, ..], got ", weight);
  std::int64_t field = 1;
  for (int i = 2; i < weight.rank(); ++i) field *= weight.shape()[i];
  return {weight.shape()[1] * field, weight.shape()[0] * field};
}

void uniform(const Tensor& tensor, double low, double high) {
  LOCKSTEP_CHECK(low <= high, "[init.uniform] expected low <= high, got ", low, " and ", high);
  overwrite("init.uniform", RandomKind::uniform, tensor, low, high);
}
void normal(const Tensor& tensor, double mean, double deviation) {
  LOCKSTEP_CHECK(deviation >= 0, "[init.normal] expected a deviation of at least 0, got ", deviation);
  overwrite("init.normal", RandomKind::normal, tensor, mean, deviation);
}
void constant(const Tensor& tensor, double value) {
  detail::check_defined("init.constant", tensor);
  detail::fill(tensor, value);
  tensor.mark_changed();
}

double leaky_relu_gain(double negative_slope) { return std::sqrt(2 / (1 + negative_slope * negative_slope)); }

void kaiming_uniform(const Tensor& weight, double negative_slope, FanMode mode) {
  const double count = fan(weight, mode);
  if (count == 0) return;
  const double bound = leaky_relu_gain(negative_slope) * std::sqrt(3 / count);
  uniform(weight, -bound, bound);
}
void kaiming_normal(const Tensor& weight, double negative_slope, FanMode mode) {
  const double count = fan(weight, mode);
  if (count == 0) return;
  normal(weight, 0, leaky_relu_gain(negative_slope) / std::sqrt(count));
}
void xavier_uniform(const Tensor& weight, double gain) {
  const Fans both = fans(weight);
  if (both.in + both.out == 0) return;
  const double bound = gain * std::sqrt(6 / static_cast<double>(both.in + both.out));
  uniform(weight, -bound, bound);
}
void xavier_normal(const Tensor& weight, double gain) {
  const Fans both = fans(weight);
  if (both.in + both.out == 0) return;
  normal(weight, 0, gain * std::sqrt(2 / static_cast<double>(both.in + both.out)));
}

void default_affine(const Tensor& weight, const Tensor& bias) {
  // A slope of sqrt(5) makes the bound 1 / sqrt(fan_in).
  kaiming_uniform(weight, std::sqrt(5.0));
  if (!bias.defined()) return;
  const auto count = static_cast<double>(fans(weight).in);
  const double bound = count > 0 ? 1 / std::sqrt(count) : 0;
  uniform(bias, -bound, bound);
}

}  // namespace lockstep::init
