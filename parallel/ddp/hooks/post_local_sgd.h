// Post-local SGD: gradients are averaged at first, later each rank, or each group of ranks, steps by itself, and the
// models are averaged now and then (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020).
//
//   PeriodicModelAverager averager(communicator, {.period = 4, .warmup_steps = 100});
//   PostLocalSgd local(averager, {.start_iteration = 100});
//   net.register_comm_hook(local.hook());
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/parallel/ddp/comm_hook.h"
#include "lockstep/parallel/ddp/hooks/model_averager.h"
#include "lockstep/parallel/ddp/hooks/one_module.h"

namespace lockstep {

struct PostLocalSgdOptions {
  std::int64_t start_iteration = 100;  // until then gradients are averaged over all ranks
  // Over whom they are averaged from then on (communicator.split(…), used for nothing else meanwhile); null: they stay
  // on the rank.
  Communicator* subgroup = nullptr;
};

class LOCKSTEP_API PostLocalSgd {
 public:
  // Throws InvalidArgument unless start_iteration is at least 0 and the averager's warmup_steps: else models would
  // drift apart that nobody averages, or be averaged where they are the same.
  PostLocalSgd(const ModelAverager& averager, const PostLocalSgdOptions& options);
  PostLocalSgd(const PostLocalSgd&) = delete;
  PostLocalSgd& operator=(const PostLocalSgd&) = delete;

  // For one module, whose trained parameters stay the same: an Error of the backward that brings another parameter.
  // This object, and the subgroup, outlive its backwards. Another one may go on with its state.
  CommHook hook();
  std::int64_t iteration() const { return iteration_; }  // iterations that are over
  // "iteration". To be called between iterations.
  std::vector<NamedTensor> state_dict() const;
  void load_state_dict(const std::vector<NamedTensor>& state);

 private:
  const PostLocalSgdOptions options_;
  std::int64_t iteration_ = 0;
  detail::OneModule module_;
};

}  // namespace lockstep
