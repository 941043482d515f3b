// RMSprop.
#pragma once

#include <optional>

#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

// Defaults and names are PyTorch's.
struct LOCKSTEP_API RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;      // how much of the averages a step keeps; in [0, 1]: 0.99 averages over about 100 steps
  double eps = 1e-8;        // added to the root: it bounds the steps of parameters whose gradients are almost zero
  double weight_decay = 0;  // times the parameter, added to the gradient
  double momentum = 0;      // how much of its last move a step keeps
  bool centered = false;    // divides by the standard deviation of the gradient, not by the root of its mean square
  bool maximize = false;    // climbs instead

  void check(const char* optimizer) const;  // throws InvalidArgument for what makes no sense
  static void fields(auto& options, auto&& f) {
    f("lr", options.lr), f("alpha", options.alpha), f("eps", options.eps), f("weight_decay", options.weight_decay);
    f("momentum", options.momentum), f("centered", options.centered), f("maximize", options.maximize);
  }
};

// Parameters with options of their own: RMSprop({{.parameters = a}, {.parameters = b, .lr = 1e-4}}, {.alpha = 0.9}).
struct LOCKSTEP_API RMSpropGroup {
  std::vector<Parameter> parameters;
  std::optional<double> lr = {}, alpha = {}, eps = {}, weight_decay = {}, momentum = {};
  std::optional<bool> centered = {}, maximize = {};

  RMSpropOptions over(const RMSpropOptions& defaults) const;
};

// RMSprop (Tieleman & Hinton, "Lecture 6.5: rmsprop", Neural Networks for Machine Learning, Coursera 2012). With the
// gradient g (negated to maximize; plus weight_decay * p):
//   v = alpha * v + (1 - alpha) * g^2, from 0
//   p -= lr * g / (sqrt(v) + eps)
// With momentum, b = momentum * b + g / (sqrt(v) + eps), from 0, and p -= lr * b. Centered (Graves, "Generating
// Sequences With Recurrent Neural Networks", 2013), m = alpha * m + (1 - alpha) * g, from 0, and v - m^2 takes the
// place of v in the root. Where rounding makes that negative the parameter becomes NaN, as in PyTorch: gradients that
// hardly vary, and averages in 16 bits, need centered = false.
//
// Its state: step, square_avg (v), grad_avg (m) and momentum_buffer (b), in the dtype of the parameter, as in PyTorch.
// In f16 the squares of gradients below 2e-3 leave no trace in v, and steps become too long: train in f32, f64 or bf16.
class LOCKSTEP_API RMSprop : public GroupedOptimizer<RMSpropOptions, RMSpropGroup> {
 public:
  // Throws InvalidArgument for an empty list, a parameter that comes twice, and options that make no sense.
  explicit RMSprop(std::vector<Parameter> parameters, const RMSpropOptions& options = {});
  explicit RMSprop(const std::vector<RMSpropGroup>& groups, const RMSpropOptions& defaults = {});

  // Several launches per parameter. Needs memory for two tensors like the largest parameter of each group, device and
  // dtype, and for up to seven in f32 where that is f16 or bf16.
  void step() override;
};

}  // namespace lockstep
