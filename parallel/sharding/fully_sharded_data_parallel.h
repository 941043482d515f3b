// FullyShardedDataParallel: DistributedDataParallel for models that do not fit one device. Each rank keeps a part of
// every parameter, with its gradient and what the optimizer remembers of it. The whole of a unit's parameters is there
// while the unit computes.
//
//   run_ranks(4, [](Communicator& communicator) {
//     FullyShardedDataParallel net(Net{}, communicator, {.wrap = wrap_modules<Block>()});
//     AdamW optimizer(net.parameters(), {.lr = 1e-3});       // of the parts
//     for (const Batch& batch : batches_of(communicator.rank())) {
//       optimizer.zero_grad();
//       cross_entropy(net(batch.images), batch.labels).backward();
//       net.clip_grad_norm(1);
//       optimizer.step();
//     }
//   });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/checkpoint/checkpoint.h"
#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/sharding/options.h"
#include "lockstep/parallel/sharding/sharded_core.h"
#include "lockstep/parallel/sums_gradients.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

// While it lives the parameters of a FullyShardedDataParallel are whole, in their own dtype, on every rank. At its end
// each rank keeps its part of what it has then; with `write_back` false, what there was before.
class WholeParameters {
 public:
  WholeParameters(std::shared_ptr<detail::ShardedCore> core, bool write_back)
      : core_(std::move(core)), write_back_(write_back) {
    core_->begin_summon();
  }
  WholeParameters(const WholeParameters&) = delete;
  WholeParameters& operator=(const WholeParameters&) = delete;
  ~WholeParameters() { core_->end_summon(write_back_); }

 private:
  std::shared_ptr<detail::ShardedCore> core_;
  bool write_back_;
};

// A rank's wrapper belongs to the rank's thread and outlives neither communicator nor the work of its backwards. Every
// rank makes it, and its calls of the same units, in the same order, also for evaluation: forwards communicate.
// Gradients are divided by the number of ranks and summed in the order of the ranks, as DistributedDataParallel does
// it: over communicators that add in the order of the ranks (all but NCCL's) a training has the same bits with either.
// Errors on one rank become CommErrors on the others.
//
// The parameters of the module, under their names, are this rank's parts from now on: of one dimension, cut anywhere,
// maybe empty. Optimizers that go element by element work on them as on wholes. A parameter of a unit that got no
// gradient in a backward in which others of the unit got one counts as one with a gradient of zeros.
//
// Each backward adds its average to the gradients of the parts. Those of forwards inside no_sync() stay on the rank,
// whole, until the next backward through a forward outside reduces their sum; zero_grad() does not clear them before.
//
// A unit is a module that the policy chooses, with the parameters that are in no unit below it; what is left is the
// outermost unit's. A shared parameter must be in one unit. While the wrapper lives the parameters keep their memory,
// and are trained or frozen as they were.
template <IsModule M>
class FullyShardedDataParallel : public Module<FullyShardedDataParallel<M>> {
  static_assert(!detail::kSumsGradients<M>, "FullyShardedDataParallel takes a module, not one that is wrapped already");

 public:
  // Moves the module's buffers to the communicator's device, and its parts there unit by unit: the whole model is never
  // on it. Gradients of before are dropped. Throws, on every rank, InvalidArgument for a module without trainable
  // parameters or with parameters that have sparse gradients, for a parameter that two units share, names that are not
  // the module's, uninitialised parameters without options.initialise, and for options or modules that differ between
  // ranks. Blocks until all ranks have come here.
  FullyShardedDataParallel(M module, Communicator& communicator, FullyShardedOptions options = {})
      : module_(std::make_unique<M>(std::move(module))),
        core_(detail::ShardedCore::make(*module_, communicator, std::move(options))) {}

  const M& module() const { return *module_; }
  M& module() { return *module_; }
  Communicator& communicator() const { return core_->communicator(); }
  const FullyShardedOptions& options() const { return core_->options(); }
  // Paths of the units' modules, in the order of the modules; the outermost one, "", first.
  std::vector<std::string> unit_names() const { return core_->unit_names(); }

  // Arguments are moved to the communicator's device and handed on; with mixed_precision floating ones get its
  // param_dtype.
  template <class... Args>
  auto forward(Args&&... args) const {
    return call(std::decay_t<Args>(std::forward<Args>(args))...);
  }

  [[nodiscard]] NoSync no_sync() const { return core_->no_sync(); }

  // clip_grad_norm of the gradients of all ranks' parts; ignored parameters, whose gradients are this rank's, count
  // once, as they are on rank 0. Every rank calls it, and gets the same.
  Tensor clip_grad_norm(double max_norm, const ClipNormOptions& options = {}) const {
    return core_->clip_grad_norm(max_norm, options);
  }
  // The same as a function, for whoever clips himself (ClipGrad::clips_norm). Does nothing once the wrapper is gone.
  std::function<Tensor(double, const ClipNormOptions&)> clipping() const {
    return [weak = std::weak_ptr(core_)](double max_norm, const ClipNormOptions& options) {
      const auto core = weak.lock();
      return core ? core->clip_grad_norm(max_norm, options) : Tensor();
    };
  }

  // Whole parameters inside a scope. Every rank makes one. Error while there is one already, and inside a forward or a
  // backward; a forward or backward inside the scope is one. What is written back voids the graphs of forwards before:
  // their backward is an Error.
  [[nodiscard]] WholeParameters summon(bool write_back = true) const { return {core_, write_back}; }

  // ---- state: whole tensors by the names that they have in module(), which plain modules and DistributedDataParallel
  // load, on any number of ranks.
  // Of the module, on cpu; on rank `to`, or with -1 on all: the others get an empty list. Every rank calls it.
  std::vector<NamedTensor> whole_state_dict(int to = -1) const { return core_->whole_state(to); }
  // As Optimizer::state_dict(module), of an optimizer of this wrapper's parameters. Every rank calls it.
  std::vector<NamedTensor> whole_state_dict(const Optimizer& optimizer, int to = -1) const {
    return core_->whole_state(optimizer, to);
  }
  // Takes its part of each tensor, which may be a page of a file that is mapped. Every rank is given the state; nothing
  // is communicated. Throws what load_state_dict of modules and optimizers throws, before anything is changed.
  void load_whole_state_dict(const std::vector<NamedTensor>& state, bool strict = true) const {
    core_->load_whole_state(state, strict);
  }
  void load_whole_state_dict(Optimizer& optimizer, const std::vector<NamedTensor>& state) const {
    core_->load_whole_state(optimizer, state);
  }
  // Writes model-00001-of-0000N.safetensors, …, a file per rank, and model.safetensors.index.json into the folder,
  // which must be there; of an optimizer likewise optimizer-…: no rank holds more than a unit and what it writes. A
  // tensor is in one file, whole; what is not divided is rank 0's. Every rank calls it; blocks until the index is
  // written. What read_checkpoint reads. Error on every rank, with the path and the reason, where one cannot write:
  // there is no index then.
  void save_sharded(const std::string& folder) const { core_->save_sharded(folder, nullptr); }
  void save_sharded(const std::string& folder, const Optimizer& optimizer) const {
    core_->save_sharded(folder, &optimizer);
  }

  // For a CheckpointWriter: this rank's parts, as runs of elements, and what all ranks have alike; nothing is gathered.
  // Of the module under the names of module(), of an optimizer under those of Optimizer::state_dict(module), each
  // behind the prefix. What Checkpoint::load then gives are whole tensors, for whoever loads them.
  std::vector<CheckpointEntry> checkpoint_entries(const std::string& prefix = "model.") const {
    return core_->checkpoint_entries(prefix);
  }
  std::vector<CheckpointEntry> checkpoint_entries(const Optimizer& optimizer,
                                                  const std::string& prefix = "optimizer.") const {
    return core_->checkpoint_entries(optimizer, prefix);
  }
  // Reads this rank's parts, however many ranks wrote the checkpoint and whatever they were. Calls no other rank.
  // Throws what load_state_dict of modules and optimizers throws, and what Checkpoint::load throws, before anything is
  // changed.
  void load_checkpoint(const Checkpoint& checkpoint, const std::string& prefix = "model.") const {
    core_->load_checkpoint(checkpoint, prefix);
  }
  void load_checkpoint(Optimizer& optimizer, const Checkpoint& checkpoint,
                       const std::string& prefix = "optimizer.") const {
    core_->load_checkpoint(optimizer, checkpoint, prefix);
  }

  void members(Members& m) override { m("module", *module_); }
  const ModuleBase* wrapped_module() const override { return module_.get(); }

 private:
  template <class... Args>
  auto call(Args... args) const {
    const trace::Scope span("forward");
    const auto prepare = [&](Tensor& tensor) { tensor = core_->prepare_argument(tensor); };
    (for_each_tensor(args, prepare), ...);
    const detail::ShardedCore::Forward forward(*core_, *this);
    const auto buffers = core_->buffer_scope();
    if constexpr (std::is_void_v<decltype(std::as_const(*module_)(std::move(args)...))>) {
      std::as_const (*module_)(std::move(args)...);
      if (buffers) buffers->keep_buffers();
    } else {
      auto result = std::as_const(*module_)(std::move(args)...);
      if (buffers) buffers->keep_buffers();
      return result;
    }
  }

  std::unique_ptr<M> module_;
  std::shared_ptr<detail::ShardedCore> core_;
};

}  // namespace lockstep
