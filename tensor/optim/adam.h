// Adam and AdamW.
#pragma once

#include <optional>
#include <utility>

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

// Defaults and names are PyTorch's.
struct LOCKSTEP_API AdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};  // how much of the moments a step keeps; in [0, 1)
  double eps = 1e-8;                               // added to the root of the second moment
  double weight_decay = 0;
  bool amsgrad = false;   // divides by the largest second moment so far
  bool maximize = false;  // climbs instead

  void check(const char* optimizer) const;  // throws InvalidArgument for what makes no sense
  static void fields(auto& options, auto&& f) {
    f("lr", options.lr), f("beta1", options.betas.first), f("beta2", options.betas.second), f("eps", options.eps);
    f("weight_decay", options.weight_decay), f("amsgrad", options.amsgrad), f("maximize", options.maximize);
  }
};

// The same but for the default of the weight decay.
struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

// Parameters with options of their own: Adam({{.parameters = a}, {.parameters = b, .lr = 1e-4}}, {.eps = 1e-6}).
struct LOCKSTEP_API AdamGroup {
  std::vector<Parameter> parameters;
  std::optional<double> lr = {};
  std::pair<std::optional<double>, std::optional<double>> betas = {};
  std::optional<double> eps = {}, weight_decay = {};
  std::optional<bool> amsgrad = {}, maximize = {};

  AdamOptions over(const AdamOptions& defaults) const;
};

// Adam (Kingma & Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015). With the gradient g (negated to
// maximize; plus weight_decay * p) and the step t, counted from 1 for each parameter:
//   m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2,  both from 0
//   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// With amsgrad (Reddi, Kale & Kumar, "On the Convergence of Adam and Beyond", ICLR 2018) the largest v so far takes the
// place of v. One kernel call per group, device and dtype.
//
// Its state: step, exp_avg (m), exp_avg_sq (v) and max_exp_avg_sq, in the dtype of the parameter, as in PyTorch. In f16
// the squares of gradients below 5e-3 leave no trace in v, and steps become too long: train in f32, f64 or bf16.
class LOCKSTEP_API Adam : public GroupedOptimizer<AdamOptions, AdamGroup> {
 public:
  // Throws InvalidArgument for an empty list, a parameter that comes twice, and options that make no sense.
  explicit Adam(std::vector<Parameter> parameters, const AdamOptions& options = {});
  explicit Adam(const std::vector<AdamGroup>& groups, const AdamOptions& defaults = {});

  void step() override;

 protected:
  Adam(const char* name, bool decoupled, const std::vector<AdamGroup>& groups, const AdamOptions& defaults);

 private:
  const double* replayed_steps(const Batch& batch);
  bool decoupled_;
};

// Adam whose weight decay acts on the parameter itself, p *= 1 - lr * weight_decay before the step, and not by way of
// the gradient (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", ICLR 2019).
class LOCKSTEP_API AdamW : public Adam {
 public:
  explicit AdamW(std::vector<Parameter> parameters, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<AdamGroup>& groups, const AdamWOptions& defaults = {});
};

}  // namespace lockstep
