// The mean of the ranks' losses, also while some of them have run out of inputs.
#pragma once

#include <string_view>

#include "lockstep/lockstep.h"

namespace example {

class MeanLoss : public lockstep::Joinable {
 public:
  explicit MeanLoss(lockstep::Communicator& communicator) : communicator_(communicator) {}

  // Of the ranks that still have inputs, which all call it. Blocks.
  double of(const lockstep::Tensor& loss) {
    const lockstep::JoinTurn turn = announce("mean loss");
    const lockstep::Tensor sum = loss.detach().clone();
    communicator_.all_reduce(sum);
    return sum.item<double>() / turn.active;
  }

  lockstep::Communicator& communicator() const override { return communicator_; }
  void shadow(std::string_view, const lockstep::JoinTurn&) override {
    communicator_.all_reduce(lockstep::zeros({}, {.device = communicator_.device()}));
  }

 private:
  lockstep::Communicator& communicator_;
};

}  // namespace example
