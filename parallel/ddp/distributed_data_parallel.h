// DistributedDataParallel: every rank computes its share of a batch with a module of its own, and the ranks average
// their gradients while the backward goes on.
//
//   run_ranks(4, [](Communicator& communicator) {          // or processes, started by lockstep-run
//     DistributedDataParallel net(Net{}, communicator);    // takes over rank 0's parameters
//     SGD optimizer(net.parameters(), {.lr = 0.1});
//     for (const Batch& batch : batches_of(communicator.rank())) {
//       optimizer.zero_grad();
//       cross_entropy(net(batch.images), batch.labels).backward();
//       optimizer.step();                                  // the same bits on every rank
//     }
//   });
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/bucket_state.h"
#include "lockstep/parallel/ddp/buffer_hook.h"
#include "lockstep/parallel/ddp/comm_hook.h"
#include "lockstep/parallel/ddp/mixed_precision.h"
#include "lockstep/parallel/ddp/no_sync.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/join/join.h"
#include "lockstep/parallel/sums_gradients.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

namespace detail {

class Reducer;
class WrappedMembers;

// What does not depend on the module's type.
class LOCKSTEP_API DdpCore final : public Joinable {
 public:
  DdpCore(ModuleBase& module, Communicator& communicator, DistributedDataParallelOptions options);
  ~DdpCore() override;

  Communicator& communicator() const override { return communicator_; }
  const DistributedDataParallelOptions& options() const { return options_; }
  // Where and as what the module takes an argument.
  Tensor prepare_argument(const Tensor& argument) const;
  // Before and after a call, in the mode of `module`. Backwards through what it computes reduce gradients when
  // `reduces`.
  bool begin_forward(const ModuleBase& module);
  void end_forward(bool reduces, std::span<const Tensor> outputs);
  void register_comm_hook(CommHook hook);
  void register_buffer_hook(BufferHook hook);
  // Around the module's own call. Null: it computes as it is.
  std::unique_ptr<MixedPrecisionScope> precision_scope() const;

  NoSync no_sync() const { return NoSync(local_depth_); }

  void shadow(std::string_view step, const JoinTurn& turn) override;
  void take_over(int root) override;
  DdpLoggingData logging_data() const;
  DdpBucketState bucket_state() const;
  void check_bucket_state(const DdpBucketState& state) const;
  void load_bucket_state(const DdpBucketState& state);

 private:
  void broadcast_buffers(int root);
  void call_buffer_hook();
  [[noreturn]] void refuse(const std::string& why);
  void announce_norms();

  ModuleBase& module_;
  Communicator& communicator_;
  const DistributedDataParallelOptions options_;
  bool spread_ = false;  // the module, over several devices
  std::unique_ptr<WrappedMembers> members_;
  BufferHook buffer_hook_;
  bool shares_buffers_ = false;  // around the forward in progress
  std::shared_ptr<Reducer> reducer_;
  std::shared_ptr<int> local_depth_ = std::make_shared<int>(0);  // NoSync scopes, which may live longer
};

}  // namespace detail

// A rank's wrapper belongs to the rank's thread and outlives neither communicator nor the work of its backwards. Every
// rank makes it, and its calls, in the same order. Gradients are divided by the number of ranks, summed in the order of
// the ranks and identical on all of them; their grad is only touched between iterations. Errors on one rank become
// CommErrors on the others.
//
// Which gradients a backward reduces is decided by the forwards that its graph goes through: one outside of no_sync()
// makes it reduce what each rank's grad holds then, and so do several, before or after other forwards; a backward
// through none stays on the rank. The result is the average of what the ranks hold, also of gradients that stayed from
// before.
//
// While it lives the module keeps its parameters, by object, dtype and device, and those of them that are trained: the
// next call names what does not. With find_unused_parameters they may be frozen, and unfrozen, on every rank. A buffer
// may be replaced by another of its dtype, shape and device.
template <IsModule M>
class DistributedDataParallel : public Module<DistributedDataParallel<M>> {
  static_assert(!detail::kSumsGradients<M>, "DistributedDataParallel takes a module, not one that is wrapped already");

 public:
  // Moves the module to the communicator's device, unless it is spread over several devices of this rank, and takes
  // over the parameters and buffers of rank 0. Throws, on every rank, InvalidArgument for a module without trainable
  // parameters, with parameters that are not initialised, or on the cpu and elsewhere, for options that differ between
  // ranks and may not, and for modules that do: the first option, parameter or buffer, with both descriptions. Blocks
  // until all ranks have come here.
  DistributedDataParallel(M module, Communicator& communicator, DistributedDataParallelOptions options = {})
      : module_(std::make_unique<M>(std::move(module))),
        core_(std::make_unique<detail::DdpCore>(*module_, communicator, std::move(options))) {}

  const M& module() const { return *module_; }
  M& module() { return *module_; }
  Communicator& communicator() const { return core_->communicator(); }
  const DistributedDataParallelOptions& options() const { return core_->options(); }

  // Arguments are moved to the communicator's device, tensor by tensor, and handed on; those of a module on several
  // devices stay where they are. With mixed_precision floating ones get its param_dtype. Gradients are reduced when
  // grad mode is on and no NoSync scope is open. The call itself communicates only in training mode: evaluation may be
  // left to one rank.
  template <class... Args>
  auto forward(Args&&... args) const {
    return call(std::decay_t<Args>(std::forward<Args>(args))...);
  }

  [[nodiscard]] NoSync no_sync() const { return core_->no_sync(); }

  // From now on the hook does with the gradients what it will; see comm_hook.h. Once, before the first backward that
  // reduces. Every rank calls it, with a hook of the same name; it blocks until all have. InvalidArgument, on every
  // rank, for a hook that differs, a second one, one that comes too late, and an empty function.
  void register_comm_hook(CommHook hook) { core_->register_comm_hook(std::move(hook)); }
  // From now on the hook does with the buffers what it will, in place of the broadcast from rank 0; see buffer_hook.h.
  // Once; every rank calls it; it blocks until all have. InvalidArgument, on every rank, for a hook that differs, a
  // second one, an empty function, and without the option broadcast_buffers.
  void register_buffer_hook(BufferHook hook) { core_->register_buffer_hook(std::move(hook)); }
  // For join(): ranks that have run out of inputs shadow what its forwards and backwards communicate.
  operator Joinable&() const { return *core_; }  // NOLINT(google-explicit-constructor): join({net}, …)
  DdpLoggingData logging_data() const { return core_->logging_data(); }

  // How gradients are divided into buckets from the next forward on; what a checkpoint keeps of this wrapper. Rank 0's
  // is the one to keep: the others take over its order. Communicates nothing.
  DdpBucketState bucket_state() const { return core_->bucket_state(); }
  // From now on they are divided so, whatever the options say. Between iterations; every rank calls it with the same;
  // blocks until all have. InvalidArgument, on every rank and with nothing changed, for states that differ between
  // ranks, limits that are 0, an order of other parameters than the trained ones, and in the middle of an iteration.
  void load_bucket_state(const DdpBucketState& state) { core_->load_bucket_state(state); }
  // Throws what load_bucket_state would for this rank alone. Communicates nothing.
  void check_bucket_state(const DdpBucketState& state) const { core_->check_bucket_state(state); }

  void members(Members& m) override { m("module", *module_); }
  const ModuleBase* wrapped_module() const override { return module_.get(); }

 private:
  template <class... Args>
  auto call(Args... args) const {
    const trace::Scope span("forward");
    const auto prepare = [&](Tensor& tensor) { tensor = core_->prepare_argument(tensor); };
    (for_each_tensor(args, prepare), ...);
    const bool reduces = core_->begin_forward(*this);
    auto precision = core_->precision_scope();
    const auto end = [&](std::span<const Tensor> leaves) {
      if (precision) precision->keep_buffers();
      precision.reset();  // a buffer hook works on the module's own
      core_->end_forward(reduces, leaves);
    };
    if constexpr (std::is_void_v<decltype(std::as_const(*module_)(std::move(args)...))>) {
      std::as_const (*module_)(std::move(args)...);
      end({});
    } else {
      auto result = std::as_const(*module_)(std::move(args)...);
      std::vector<Tensor> leaves;
      for_each_tensor(std::as_const(result), [&](const Tensor& tensor) {
        if (tensor.defined() && tensor.requires_grad() && tensor.is_leaf()) leaves.push_back(tensor);
      });
      end(leaves);
      return result;
    }
  }

  std::unique_ptr<M> module_;
  std::unique_ptr<detail::DdpCore> core_;
};

}  // namespace lockstep
