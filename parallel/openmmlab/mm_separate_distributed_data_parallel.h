// MMSeparateDistributedDataParallel: a model whose children are averaged over the ranks each by itself, because each
// has an optimizer and steps of its own (a GAN's generator and discriminator). After mmengine's class.
//
//   struct Gan : Module<Gan> {
//     Generator generator;
//     Discriminator discriminator;
//     LogVars train_step(const Tensor& images, OptimWrapperDict& optims) const;   // one after the other
//     void members(Members& m) override { m("generator", generator), m("discriminator", discriminator); }
//   };
//   MMSeparateDistributedDataParallel model(Gan{}, communicator);
//   model.train_step(images, optims);
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/ddp/distributed_data_parallel.h"

namespace lockstep {

namespace detail {

// What does not depend on the module's type.
class LOCKSTEP_API SeparateCore {
 public:
  SeparateCore(ModuleBase& root, Communicator& communicator, const DistributedDataParallelOptions& options);
  SeparateCore(const SeparateCore&) = delete;
  SeparateCore& operator=(const SeparateCore&) = delete;
  ~SeparateCore();

  Communicator& communicator() const { return communicator_; }
  const DistributedDataParallelOptions& options() const { return options_; }
  std::vector<std::string> names() const;  // of the children that are averaged
  std::vector<NoSync> no_sync() const;
  DdpLoggingData logging_data(const std::string& name) const;

 private:
  struct Child {
    std::string name;
    ModuleBase* module;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<DdpCore> core;
    std::uint64_t before = 0, after = 0;  // hooks
    bool reduces = false;                 // the call in progress
  };
  void attach(const std::shared_ptr<Child>& child, const ModuleBase& root);

  Communicator& communicator_;
  const DistributedDataParallelOptions options_;
  std::vector<std::shared_ptr<Child>> children_;
};

}  // namespace detail

// A rank's wrapper, as a DistributedDataParallel is. A child's gradients are averaged by the backwards that go through
// a call of the child as a module (`generator(z)`, not `generator.forward(z)`, nor one of its parts), in grad mode, and
// outside no_sync() and optim_contexts of losses that only accumulate; calls without a backward do not matter. A
// backward through several children averages the gradients of each.
template <IsModule M>
class MMSeparateDistributedDataParallel : public Module<MMSeparateDistributedDataParallel<M>> {
 public:
  // Moves the module to the communicator's device; its direct children with trainable parameters take over those of
  // rank 0. Members of lists and maps are children by themselves. Throws, on every rank, InvalidArgument for trainable
  // parameters of the module itself and for those of two children, naming them, for a module without any, for children
  // that differ between ranks, and what DistributedDataParallel throws for a child. Blocks until all ranks have come.
  explicit MMSeparateDistributedDataParallel(
      M module, Communicator& communicator,
      const DistributedDataParallelOptions& options = {.broadcast_buffers = false})
      : module_(std::make_unique<M>(std::move(module))),
        core_(std::make_unique<detail::SeparateCore>(*module_, communicator, options)) {}

  const M& module() const { return *module_; }
  M& module() { return *module_; }
  const ModuleBase* wrapped_module() const override { return module_.get(); }
  Communicator& communicator() const { return core_->communicator(); }
  const DistributedDataParallelOptions& options() const { return core_->options(); }
  std::vector<std::string> names() const { return core_->names(); }  // of the children that are averaged

  // The module's own; `optims` is what it takes, usually an OptimWrapperDict.
  template <class Data, class Optims>
  auto train_step(const Data& data, Optims& optims) const {
    return module_->train_step(data, optims);
  }
  template <class Data>
  auto val_step(const Data& data) const {
    return module_->val_step(data);
  }
  template <class Data>
  auto test_step(const Data& data) const {
    return module_->test_step(data);
  }
  template <class... Args>
  auto forward(Args&&... args) const {
    return std::as_const(*module_)(std::forward<Args>(args)...);
  }

  // Of all children; see NoSync.
  [[nodiscard]] std::vector<NoSync> no_sync() const { return core_->no_sync(); }
  // Of a child. Throws InvalidArgument for a name that is not one of names().
  DdpLoggingData logging_data(const std::string& name) const { return core_->logging_data(name); }

  void members(Members& m) override { m("module", *module_); }

 private:
  std::unique_ptr<M> module_;
  std::unique_ptr<detail::SeparateCore> core_;
};

}  // namespace lockstep
