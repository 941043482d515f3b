// Stochastic gradient descent.
#pragma once

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum and no dampening
  bool maximize = false;  // climbs instead
};

// With the gradient g (negated to maximize; plus weight_decay * p): v = momentum * v + (1 - dampening) * g, where the
// first v is g itself; p -= lr * v, or p -= lr * (g + momentum * v) with nesterov. One kernel call per device and
// dtype.
class LOCKSTEP_API SGD : public Optimizer {
 public:
  // Throws InvalidArgument for an empty list and for options that make no sense.
  explicit SGD(std::vector<Parameter> parameters, const SgdOptions& options = {});

  void step() override;
  const SgdOptions& options() const { return options_; }  // lr as at construction; see lr()
  std::vector<NamedTensor> state_dict() const override;
  void load_state_dict(const std::vector<NamedTensor>& state) override;

 private:
  SgdOptions options_;
  std::vector<Tensor> momentum_;  // one per parameter; undefined before its first step, and without momentum
};

}  // namespace lockstep
