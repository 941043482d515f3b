// The affine map of GPT-2, whose checkpoints have the weight the other way round.
#pragma once

#include "lockstep/models/language/first_weights.h"
#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

// x [.., inputs] -> activation(x @ weight + bias) [.., outputs]; weight [inputs, outputs], bias [outputs].
class LOCKSTEP_API Conv1D : public Module<Conv1D>, public QuantizableLayer {
 public:
  // Normal numbers with this deviation, and zeros. With ranks (borrowed) each has the part of the weight that `shard`
  // says: of the outputs (dimension 1), of which the result then has its part, or of the inputs (dimension 0), of which
  // x has its part and over which the ranks add up; see parallel_linear.h.
  Conv1D(std::int64_t inputs, std::int64_t outputs, FirstWeights first = FirstWeights::random, double deviation = 0.02,
         Activation activation = Activation::none, Communicator* ranks = nullptr,
         const std::optional<Shard>& shard = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override {
    if (!list_quantized(m)) m("weight", weight), m("bias", bias);
  }
  Parts parts() override { return {weight, bias, true, activation_}; }

  Parameter weight, bias;

 private:
  Activation activation_;
  Communicator* ranks_;
  bool adds_up_;
};

}  // namespace lockstep
