// What communicates in a training, and how ranks that have run out of inputs take its part in that (join.h).
#pragma once

#include <string>
#include <string_view>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

namespace detail {
class JoinScope;
}

// Who takes part in a step. Outside of a join: all ranks, and rank 0 where one rank speaks for all.
struct JoinTurn {
  int active;   // ranks that still have inputs
  int divisor;  // of an average: `active`, or the size of the group (JoinOptions::divide_by_initial_world_size)
  int root;     // the largest of the active ranks
  bool by_active = false;  // `divisor` is `active`, which may become fewer
};

// Announces what it is about to communicate, step by step; inside join() the ranks that have run out of inputs shadow
// just that. A rank's joinable belongs to the rank's thread. DistributedDataParallel is one. Another one:
//
//   class Averager : public Joinable {  // of models that train apart
//    public:
//     void average() {
//       const NoGrad no_grad;
//       const JoinTurn turn = announce("average");
//       for (const Parameter& p : net_.parameters()) {
//         Tensor mine = p.tensor();
//         communicator_.all_reduce(mine);
//         mine.mul_(1.0 / turn.active);
//       }
//     }
//     Communicator& communicator() const override { return communicator_; }
//     void shadow(std::string_view, const JoinTurn&) override {
//       for (const Parameter& p : net_.parameters()) communicator_.all_reduce(zeros_like(p.tensor()));
//     }
//     …
class LOCKSTEP_API Joinable {
 public:
  Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  virtual ~Joinable() = default;

  virtual Communicator& communicator() const = 0;
  // On a rank that has run out: makes the collectives that the active ranks make after announce(step), with what
  // changes nothing for them, such as zeros in a sum.
  virtual void shadow(std::string_view step, const JoinTurn& turn) = 0;
  // On every rank, at the end of a join: rank `root` was the last one with inputs (the largest of those). What it has
  // is to be everyone's.
  virtual void take_over([[maybe_unused]] int root) {}

 protected:
  // To be called by all active ranks, with the same words, before the collectives of a step. Outside of a join it does
  // nothing. Inside, the hosts of all ranks exchange a short message, which blocks the thread. Throws InputsExhausted
  // where the join is to end with the first rank that runs out, Error, after breaking the communicator, when the active
  // ranks do not announce the same, and the communicator's CommError.
  JoinTurn announce(std::string_view step);
  bool joined() const { return scope_ != nullptr; }  // inside a join
  bool ends_early() const;  // inside one that ends on all ranks when one has run out: nothing is shadowed

 private:
  friend class detail::JoinScope;
  detail::JoinScope* scope_ = nullptr;
  std::size_t index_ = 0;  // there
};

}  // namespace lockstep
