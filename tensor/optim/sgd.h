// Stochastic gradient descent.
#pragma once

#include <optional>

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

struct LOCKSTEP_API SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum and no dampening
  bool maximize = false;  // climbs instead

  void check(const char* optimizer) const;  // throws InvalidArgument for what makes no sense
  static void fields(auto& options, auto&& f) {
    f("lr", options.lr), f("momentum", options.momentum), f("dampening", options.dampening);
    f("weight_decay", options.weight_decay), f("nesterov", options.nesterov), f("maximize", options.maximize);
  }
};

// Parameters with options of their own: SGD({{.parameters = a}, {.parameters = b, .lr = 1e-4}}, {.momentum = 0.9}).
struct LOCKSTEP_API SgdGroup {
  std::vector<Parameter> parameters;
  std::optional<double> lr = {}, momentum = {}, dampening = {}, weight_decay = {};
  std::optional<bool> nesterov = {}, maximize = {};

  SgdOptions over(const SgdOptions& defaults) const;
};

// With the gradient g (negated to maximize; plus weight_decay * p): v = momentum * v + (1 - dampening) * g, where the
// first v is g itself; p -= lr * v, or p -= lr * (g + momentum * v) with nesterov. One kernel call per group, device
// and dtype. Its state: momentum_buffer, which is v.
//
// A sparse gradient moves the rows it has and reads no others; it needs groups without momentum and weight decay, which
// would move them all.
class LOCKSTEP_API SGD : public GroupedOptimizer<SgdOptions, SgdGroup> {
 public:
  // Throws InvalidArgument for an empty list, a parameter that comes twice, and options that make no sense.
  explicit SGD(std::vector<Parameter> parameters, const SgdOptions& options = {});
  explicit SGD(const std::vector<SgdGroup>& groups, const SgdOptions& defaults = {});

  // Throws InvalidArgument, before anything is changed, that names a parameter with a sparse gradient in a group with
  // momentum or weight decay.
  void step() override;
};

}  // namespace lockstep
