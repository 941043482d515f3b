// Layers without parameters: activations, pooling, resampling, flattening, dropout.
#pragma once

#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep {

class ReLU : public Module<ReLU> {
 public:
  Tensor forward(const Tensor& x) const { return relu(x); }
};
class Tanh : public Module<Tanh> {
 public:
  Tensor forward(const Tensor& x) const { return tanh(x); }
};
class Sigmoid : public Module<Sigmoid> {
 public:
  Tensor forward(const Tensor& x) const { return sigmoid(x); }
};
class SiLU : public Module<SiLU> {
 public:
  Tensor forward(const Tensor& x) const { return silu(x); }
};
class Hardswish : public Module<Hardswish> {
 public:
  Tensor forward(const Tensor& x) const { return hardswish(x); }
};
class GELU : public Module<GELU> {
 public:
  explicit GELU(GeluForm form = GeluForm::exact) : form_(form) {}
  Tensor forward(const Tensor& x) const { return gelu(x, form_); }

 private:
  GeluForm form_;
};
class Softmax : public Module<Softmax> {
 public:
  explicit Softmax(std::int64_t dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return softmax(x, dim_); }

 private:
  std::int64_t dim_;
};
class Identity : public Module<Identity> {
 public:
  Tensor forward(const Tensor& x) const { return x; }
};

class MaxPool2d : public Module<MaxPool2d> {
 public:
  explicit MaxPool2d(Size2 kernel, PoolGeometry geometry = {}) : kernel_(kernel), geometry_(geometry) {}
  Tensor forward(const Tensor& x) const { return max_pool2d(x, kernel_, geometry_); }

 private:
  Size2 kernel_;
  PoolGeometry geometry_;
};
class AvgPool2d : public Module<AvgPool2d> {
 public:
  explicit AvgPool2d(Size2 kernel, PoolGeometry geometry = {}) : kernel_(kernel), geometry_(geometry) {}
  Tensor forward(const Tensor& x) const { return avg_pool2d(x, kernel_, geometry_); }

 private:
  Size2 kernel_;
  PoolGeometry geometry_;
};

class AdaptiveAvgPool2d : public Module<AdaptiveAvgPool2d> {
 public:
  explicit AdaptiveAvgPool2d(Size2 output) : output_(output) {}
  Tensor forward(const Tensor& x) const { return adaptive_avg_pool2d(x, output_); }

 private:
  Size2 output_;
};
// To a size or by a factor, see interpolate.
class Upsample : public Module<Upsample> {
 public:
  explicit Upsample(InterpolateOptions options) : options_(options) {}
  Tensor forward(const Tensor& x) const { return interpolate(x, options_); }

 private:
  InterpolateOptions options_;
};

// Merges the dimensions from `start_dim` to `end_dim`; by default all but the batch.
class Flatten : public Module<Flatten> {
 public:
  explicit Flatten(std::int64_t start_dim = 1, std::int64_t end_dim = -1) : start_dim_(start_dim), end_dim_(end_dim) {}
  Tensor forward(const Tensor& x) const { return x.flatten(start_dim_, end_dim_); }

 private:
  std::int64_t start_dim_, end_dim_;
};

// In training zeroes elements with probability p and scales the others up; the mask comes from the thread's random
// numbers. In evaluation x itself.
class Dropout : public Module<Dropout> {
 public:
  explicit Dropout(double p = 0.5) : p_(p) {
    LOCKSTEP_CHECK(p >= 0 && p <= 1, "[Dropout] expected a probability, got ", p);
  }
  Tensor forward(const Tensor& x) const { return dropout(x, p_, is_training()); }

 private:
  double p_;
};

}  // namespace lockstep
