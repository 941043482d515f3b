// The affine map of GPT-2, whose checkpoints have the weight the other way round.
#pragma once

#include "lockstep/models/language/first_weights.h"

namespace lockstep {

// x [.., inputs] -> activation(x @ weight + bias) [.., outputs]; weight [inputs, outputs], bias [outputs].
class LOCKSTEP_API Conv1D : public Module<Conv1D> {
 public:
  // Normal numbers with this deviation, and zeros.
  Conv1D(std::int64_t inputs, std::int64_t outputs, FirstWeights first = FirstWeights::random, double deviation = 0.02,
         Activation activation = Activation::none);
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("bias", bias); }

  Parameter weight, bias;

 private:
  Activation activation_;
};

}  // namespace lockstep
