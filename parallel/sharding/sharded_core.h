// What of FullyShardedDataParallel does not depend on the module's type. Private to the library.
//
// Hooks on the modules of the units gather before a forward and give back after it, hooks on their results gather
// before a backward. A node in the graph stands for a unit: the wholes of its parameters come from it, so that it runs
// when all of their gradients are known. It reduces them. Nodes run in the reverse order of the forward, so that what
// was made later than a node has run before it: then nobody needs the unit's memory any more.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint/checkpoint.h"
#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/mixed_precision.h"
#include "lockstep/parallel/ddp/no_sync.h"
#include "lockstep/parallel/ddp/wrapped_members.h"
#include "lockstep/parallel/sharding/options.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

class Substitution;

namespace detail {

struct ShardedUnit;
class MemberPlaces;
class ShardedFlat;
class UnitNode;

class LOCKSTEP_API ShardedCore final : public std::enable_shared_from_this<ShardedCore> {
 public:
  static std::shared_ptr<ShardedCore> make(ModuleBase& module, Communicator& communicator, FullyShardedOptions options);
  ShardedCore(const ShardedCore&) = delete;
  ShardedCore& operator=(const ShardedCore&) = delete;
  ~ShardedCore();

  Communicator& communicator() const { return communicator_; }
  const FullyShardedOptions& options() const { return options_; }
  Tensor prepare_argument(const Tensor& argument) const;
  std::unique_ptr<MixedPrecisionScope> buffer_scope() const;
  NoSync no_sync() const { return NoSync(local_depth_); }

  // Around a forward of the module, in the mode of `wrapper`.
  class LOCKSTEP_API Forward {
   public:
    Forward(ShardedCore& core, const ModuleBase& wrapper);
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;
    ~Forward();

   private:
    ShardedCore& core_;
    const Substitution* const substitution_;
  };

  std::vector<std::string> unit_names() const;
  Tensor clip_grad_norm(double max_norm, const ClipNormOptions& options);

  // ---- state, under the names of the module
  std::vector<NamedTensor> whole_state(int to);
  std::vector<NamedTensor> whole_state(const Optimizer& optimizer, int to);
  void load_whole_state(const std::vector<NamedTensor>& state, bool strict);
  void load_whole_state(Optimizer& optimizer, const std::vector<NamedTensor>& state);
  void save_sharded(const std::string& folder, const Optimizer* optimizer);
  std::vector<CheckpointEntry> checkpoint_entries(const std::string& prefix);
  std::vector<CheckpointEntry> checkpoint_entries(const Optimizer& optimizer, const std::string& prefix);
  void load_checkpoint(const Checkpoint& checkpoint, const std::string& prefix);
  void load_checkpoint(Optimizer& optimizer, const Checkpoint& checkpoint, const std::string& prefix);

  void begin_summon();
  void end_summon(bool write_back);

 private:
  friend class UnitNode;
  struct Reduction {
    ShardedFlat* flat;
    Tensor sum;
  };

  ShardedCore(ModuleBase& module, Communicator& communicator, FullyShardedOptions options);
  void add_hooks();
  [[noreturn]] void fail(const std::string& message);
  void check_idle(const char* call) const;

  std::int32_t number_of(const ShardedUnit& unit) const;
  void enter(std::size_t unit);
  void leave(std::size_t unit, std::span<const Tensor> outputs);
  void make_wholes(ShardedUnit& unit);
  void gather(ShardedUnit& unit);
  void use(ShardedUnit& unit);
  void give_back(ShardedUnit& unit);
  void give_back_frozen(const ShardedUnit& besides, std::uint64_t begun_after);
  void prefetch(std::size_t unit, const std::vector<std::size_t>& order, bool forward);
  void keep_to_limit(std::deque<Event>& events);

  void begin_backward();
  void before_backward(std::size_t unit, std::uint64_t sequence);
  void take_gradients(std::size_t unit, std::span<Tensor> gradients, bool reduces);
  void reduce(ShardedUnit& unit, std::span<Tensor> gradients);
  void finish_backward();

  // Hands out wholes on cpu, piece by piece, on ranks that want them; every rank calls it.
  using Wants = std::function<bool(const std::string& name)>;
  using Take = std::function<void(const std::string& name, Tensor whole)>;
  void gather_model(const Wants& wants, const Take& take);
  void gather_optimizer(const std::vector<NamedTensor>& mine, const Wants& wants, const Take& take);
  struct Saved {
    std::string name;
    std::int64_t bytes;  // of the whole
    bool divided;
  };
  void save(const std::string& folder, const std::string& stem, const std::vector<Saved>& tensors,
            const std::function<void(const Wants&, const Take&)>& gather);
  MemberPlaces member_places() const;

  ModuleBase& module_;
  Communicator& communicator_;
  const FullyShardedOptions options_;
  std::unique_ptr<WrappedMembers> members_;  // buffers
  std::vector<Parameter> ignored_;           // trained, but not here
  std::vector<ShardedUnit> units_;           // in the order of the modules; the outermost first
  Stream gather_stream_, reduce_stream_;
  std::shared_ptr<int> local_depth_ = std::make_shared<int>(0);

  bool in_forward_ = false, summoned_ = false;
  bool reduces_ = true;                                     // what the backward of the forward in progress does
  std::uint64_t forward_ = 0;                               // its number
  std::vector<std::size_t> entered_, left_, last_entered_;  // units in this forward, and in the one before
  std::vector<std::pair<std::unique_ptr<Substitution>, const Substitution*>> scopes_;
  std::uint64_t backward_ = 0;   // in progress: its number
  bool reduced_ = false;         // something, in this backward
  std::vector<Reduction> sums_;  // of this backward
  std::deque<Event> given_back_, reductions_;
};

}  // namespace detail
}  // namespace lockstep
