// Averages of whole models, for ranks that train by themselves for some steps (local SGD).
//
//   PeriodicModelAverager averager(communicator, {.period = 4, .warmup_steps = 100});
//   ...
//   optimizer.step();
//   averager.average(net);   // after every step
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

struct ModelAveragerOptions {
  std::int64_t period = 1;        // steps from one average to the next
  std::int64_t warmup_steps = 0;  // before the first one; gradients are averaged then (see PostLocalSgd)
  bool buffers = false;           // average the floating buffers too, such as running statistics
};

// Counts steps, and averages at steps warmup_steps, warmup_steps + period, … (the first one has number 0). Every rank
// has one, with the same options, and calls it as often.
class LOCKSTEP_API ModelAverager {
 public:
  virtual ~ModelAverager() = default;
  ModelAverager(const ModelAverager&) = delete;
  ModelAverager& operator=(const ModelAverager&) = delete;

  // After the optimizer's step. In place, on the current stream: the same bits on all ranks that take part. True when
  // this step averaged. Throws InvalidArgument when parameters are not on the communicator's device.
  bool average(ModuleBase& module) { return average_but(module, {}); }
  // But for what the wrapper ignores (DistributedDataParallelOptions::ignore). A module around the wrapper does not
  // know of that.
  template <IsModule M>
  bool average(DistributedDataParallel<M>& net) {
    return average_but(net.module(), net.options().ignore);
  }

  std::int64_t step() const { return step_; }  // calls so far
  const ModelAveragerOptions& options() const { return options_; }
  // "step": to go on with after a restart.
  std::vector<NamedTensor> state_dict() const;
  // Throws InvalidArgument, before anything is changed, for anything but a step of at least 0.
  void load_state_dict(const std::vector<NamedTensor>& state);

 protected:
  explicit ModelAverager(const ModelAveragerOptions& options);
  // Over whom a step that is due `steps` after the warm-up averages; null: it does not.
  virtual Communicator* due(std::int64_t steps) = 0;

 private:
  bool average_but(ModuleBase& module, std::span<const std::string> ignore);
  const ModelAveragerOptions options_;
  std::int64_t step_ = 0;
};

// Over all ranks, every `period` steps.
class LOCKSTEP_API PeriodicModelAverager : public ModelAverager {
 public:
  // Throws InvalidArgument for a period below 1 or a warm-up below 0. The communicator outlives it.
  PeriodicModelAverager(Communicator& communicator, const ModelAveragerOptions& options);

 private:
  Communicator* due(std::int64_t steps) override;
  Communicator& communicator_;
};

// Over groups of neighbours: of those periods that divide the number of steps the largest one says how large the groups
// are. {{2, 4}, {8, 16}} with 16 ranks: every 2 steps among 4, but every 8 steps among all.
class LOCKSTEP_API HierarchicalModelAverager : public ModelAverager {
 public:
  // `group_sizes`: size by period, both growing, each a divisor of the next, the last size that of the communicator.
  // `options.period` is not used. Every rank calls it; it blocks until all have. Throws InvalidArgument for what does
  // not fit.
  HierarchicalModelAverager(Communicator& communicator, const std::map<std::int64_t, int>& group_sizes,
                            const ModelAveragerOptions& options);

 private:
  Communicator* due(std::int64_t steps) override;
  struct Level {
    std::int64_t period;
    Communicator* group;
  };
  std::vector<Level> levels_;
  std::vector<std::unique_ptr<Communicator>> groups_;
};

}  // namespace lockstep
