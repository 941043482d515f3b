// Trainings that any kind of ranks must do alike: what each rank ends with, and what one device ends with that trains
// on the whole batches. Bodies run in threads and in processes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/ddp/support.h"

namespace parallel_test {

// Gradients stay on the rank while it lives; nothing to do for a plain module.
template <class M>
NoSync hold(const DistributedDataParallel<M>& net) {
  return net.no_sync();
}
template <class M>
int hold(const M&) {
  return 0;
}

using HookMaker = std::function<CommHook()>;

struct Scenario {
  std::string name;
  double tolerance;  // between a rank and the whole
  // Parameters and buffers at the end; each module with a hook where they are given.
  std::function<Doubles(Communicator&, const HookMaker&)> with_hook;
  std::function<Doubles(Communicator&)> rank;  // without one
  std::function<Doubles(int ranks)> whole;
};

// Plain training in f64 and f32 with every variant of the options; tied, frozen and sparse parameters, branches that
// are not used, gradients that accumulate, several backwards; and the following.
std::vector<Scenario> scenarios();
// Each rank does something of its own; the whole is the mean of their losses.
std::vector<Scenario> rank_scenarios();
// Ranks have different numbers of inputs.
std::vector<Scenario> join_scenarios();

}  // namespace parallel_test
