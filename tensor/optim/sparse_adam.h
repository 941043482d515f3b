// Adam for sparse gradients.
#pragma once

#include <optional>
#include <utility>

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

// Defaults and names are PyTorch's.
struct LOCKSTEP_API SparseAdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};  // how much of the moments a step keeps; in [0, 1)
  double eps = 1e-8;                               // added to the root of the second moment; above 0
  bool maximize = false;                           // climbs instead

  void check(const char* optimizer) const;  // throws InvalidArgument for what makes no sense
  static void fields(auto& options, auto&& f) {
    f("lr", options.lr), f("beta1", options.betas.first), f("beta2", options.betas.second), f("eps", options.eps);
    f("maximize", options.maximize);
  }
};

// Parameters with options of their own: SparseAdam({{.parameters = a}, {.parameters = b, .lr = 1e-4}}).
struct LOCKSTEP_API SparseAdamGroup {
  std::vector<Parameter> parameters;
  std::optional<double> lr = {};
  std::pair<std::optional<double>, std::optional<double>> betas = {};
  std::optional<double> eps = {};
  std::optional<bool> maximize = {};

  SparseAdamOptions over(const SparseAdamOptions& defaults) const;
};

// Adam that moves the rows of a sparse gradient and their moments, and leaves all others as they are: the moments of a
// row that does not appear do not decay (PyTorch's SparseAdam; "lazy" elsewhere). For rows that appear, with their
// summed gradient g (negated to maximize) and the step t, counted from 1 for each parameter:
//   m += (1 - beta1) * (g - m),  v += (1 - beta2) * (g^2 - v),  both from 0
//   p -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)
// Its state: step, exp_avg (m) and exp_avg_sq (v): two matrices like the parameter, and in its dtype.
class LOCKSTEP_API SparseAdam : public GroupedOptimizer<SparseAdamOptions, SparseAdamGroup> {
 public:
  // Throws InvalidArgument for an empty list, a parameter that comes twice, and options that make no sense.
  explicit SparseAdam(std::vector<Parameter> parameters, const SparseAdamOptions& options = {});
  explicit SparseAdam(const std::vector<SparseAdamGroup>& groups, const SparseAdamOptions& defaults = {});

  // Throws InvalidArgument, before anything is changed, that names a parameter with a dense gradient. Several launches
  // per parameter.
  void step() override;
};

}  // namespace lockstep
