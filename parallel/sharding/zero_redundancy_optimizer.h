// ZeroRedundancyOptimizer: any optimizer, whose state is divided among the ranks of a DistributedDataParallel.
//
//   DistributedDataParallel net(Net{}, communicator);
//   ZeroRedundancyOptimizer optimizer(AdamW(net.parameters(), {.lr = 1e-3}), communicator);
//   …
//   loss.backward();
//   optimizer.step();  // each rank moves the parameters that it owns, then all have them
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/join/joinable.h"
#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {
namespace detail {

// An optimizer whose state_dict() is this rank's part.
class LOCKSTEP_API DividedState {
 public:
  virtual ~DividedState() = default;
};

// Who steps which parameter of an optimizer.
class LOCKSTEP_API ParameterOwners {
 public:
  explicit ParameterOwners(Communicator& communicator);

  Communicator& communicator() const { return communicator_; }
  // Brings it up to date with the optimizer's groups: each group's parameters, the largest first, go to the rank that
  // has the least so far. What is there stays where it is.
  void follow(const Optimizer& optimizer);
  bool owns(std::size_t parameter) const { return owners_[parameter] == communicator_.rank(); }
  const std::vector<int>& owners() const { return owners_; }

  // While it lives, parameters of other ranks have no gradients.
  class LOCKSTEP_API OwnOnly {
   public:
    OwnOnly(const ParameterOwners& owners, const Optimizer& optimizer);
    OwnOnly(const OwnOnly&) = delete;
    OwnOnly& operator=(const OwnOnly&) = delete;
    ~OwnOnly();

   private:
    struct Hidden {
      Parameter parameter;
      Tensor gradient;
      SparseGradient rows;
    };
    std::vector<Hidden> hidden_;
  };

  // Every parameter as its owner has it.
  void broadcast(const Optimizer& optimizer) const;
  // Rank `root`'s gradients, learning rates and momentums for all ranks: of those that have run out of inputs.
  void share_gradients(Optimizer& optimizer, int root) const;
  // The entries of a state, without those of other ranks' parameters but their groups. `keys`: names of the parameters.
  std::vector<NamedTensor> own_part(const std::vector<NamedTensor>& state, const std::vector<std::string>& keys) const;
  // Of all ranks' own parts, on cpu; on rank `to`, or with -1 on all: others get an empty list. Every rank calls it.
  std::vector<NamedTensor> gather(const std::vector<NamedTensor>& mine, const std::vector<std::string>& keys,
                                  int to) const;

 private:
  Communicator& communicator_;
  std::vector<int> owners_;           // by parameter
  std::vector<std::int64_t> totals_;  // elements, by rank
  std::size_t groups_ = 0;
};

LOCKSTEP_API std::vector<std::string> parameter_keys(const Optimizer& optimizer, const ModuleBase* module);

}  // namespace detail

// It is an optimizer like the one that it was made from: groups, schedules and loss scaling work as with that. Every
// rank makes it, adds groups, and steps, in the same order. Gradients are the same on all ranks, as
// DistributedDataParallel leaves them, with communication hooks or without; parameters are the same before a step, and
// after it bit for bit what the optimizer alone would have made of them. A parameter has one owner, whole: one that is
// larger than all others together makes its owner's state as large.
//
// In a join() it stands after the wrapper: join({net, optimizer}, …). Ranks that have run out of inputs step the
// parameters that they own with the gradients, learning rates and momentums of a rank that has some.
template <class O>
class ZeroRedundancyOptimizer : public O, public Joinable, public detail::DividedState {
 public:
  // `optimizer` has made no step yet: what it remembers of other ranks' parameters would stay. The communicator
  // outlives this.
  ZeroRedundancyOptimizer(O optimizer, Communicator& communicator) : O(std::move(optimizer)), owners_(communicator) {
    owners_.follow(*this);
  }

  void step() override {
    owners_.follow(*this);
    const JoinTurn turn = announce("optimizer step");
    if (turn.active < owners_.communicator().size()) owners_.share_gradients(*this, turn.root);
    step_own();
  }

  // The rank that steps each of parameters().
  const std::vector<int>& owners() {
    owners_.follow(*this);
    return owners_.owners();
  }

  // ---- state. This rank's part: all groups and options, and what is remembered of the parameters that it owns.
  std::vector<NamedTensor> state_dict() const { return owners_.own_part(O::state_dict(), keys(nullptr)); }
  std::vector<NamedTensor> state_dict(const ModuleBase& module) const {
    return owners_.own_part(O::state_dict(module), keys(&module));
  }
  // The state of the optimizer alone, which loads it; see ParameterOwners::gather for `to`. Every rank calls it.
  std::vector<NamedTensor> whole_state_dict(int to = -1) const {
    return owners_.gather(state_dict(), keys(nullptr), to);
  }
  std::vector<NamedTensor> whole_state_dict(const ModuleBase& module, int to = -1) const {
    return owners_.gather(state_dict(module), keys(&module), to);
  }
  // Takes its part of a whole state, from any number of ranks or from the optimizer alone. The caller's stays as it is.
  void load_state_dict(const std::vector<NamedTensor>& state) {
    owners_.follow(*this);
    O::load_state_dict(owners_.own_part(state, keys(nullptr)));
  }
  void load_state_dict(const std::vector<NamedTensor>& state, const ModuleBase& module) {
    owners_.follow(*this);
    O::load_state_dict(owners_.own_part(state, keys(&module)), module);
  }

  Communicator& communicator() const override { return owners_.communicator(); }
  void shadow(std::string_view, const JoinTurn& turn) override {
    owners_.follow(*this);
    owners_.share_gradients(*this, turn.root);
    step_own();
  }

 private:
  void step_own() {
    {
      const detail::ParameterOwners::OwnOnly only(owners_, *this);
      O::step();
    }
    owners_.broadcast(*this);
  }
  std::vector<std::string> keys(const ModuleBase* module) const { return detail::parameter_keys(*this, module); }

  detail::ParameterOwners owners_;
};

}  // namespace lockstep
