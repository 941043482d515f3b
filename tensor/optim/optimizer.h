// What optimizers have in common: parameters, a learning rate, state that can be saved.
#pragma once

#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

class LOCKSTEP_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;

  // Moves every parameter that has a gradient by it; the others stay. Computes on the current streams of the
  // parameters' devices, without blocking the host and outside any graph.
  virtual void step() = 0;
  // Leaves every grad undefined.
  void zero_grad();

  const std::vector<Parameter>& parameters() const { return parameters_; }
  double lr() const { return lr_; }
  // Throws InvalidArgument unless finite and at least 0.
  void set_lr(double lr);

  // What step() remembers about the parameters, by their index: "momentum.3". The learning rate and the other options
  // are the program's. Tensors are copies.
  virtual std::vector<NamedTensor> state_dict() const = 0;
  // Throws InvalidArgument, before anything is changed, for names and shapes that do not fit the parameters.
  virtual void load_state_dict(const std::vector<NamedTensor>& state) = 0;

 protected:
  // Throws InvalidArgument for an empty list, an absent parameter, or one that is listed twice.
  Optimizer(const char* name, std::vector<Parameter> parameters, double lr);

  // Puts the entries "<kind>.<index>" into `slots` (one per parameter), others undefined.
  std::vector<Tensor> load_slots(const std::vector<NamedTensor>& state, std::string_view kind) const;

  const char* name_;
  std::vector<Parameter> parameters_;
  double lr_;
};

}  // namespace lockstep
