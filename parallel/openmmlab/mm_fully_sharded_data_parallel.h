// MMFullyShardedDataParallel: FullyShardedDataParallel for models that make their own steps (base_model.h). After
// mmengine's class.
//
//   run_ranks(4, [](Communicator& communicator) {
//     MMFullyShardedDataParallel model(Classifier{}, communicator,
//                                      FullyShardedOptions{.wrap = wrap_modules<Block>()});
//     OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}),
//                        {.clip_grad = ClipGrad{.max_norm = 1, .clips_norm = model.clipping()}});
//     for (const auto& batch : batches_of(communicator.rank())) model.train_step(batch, optim);
//   });
#pragma once

#include <utility>

#include "lockstep/parallel/openmmlab/model/base_model.h"
#include "lockstep/parallel/sharding/fully_sharded_data_parallel.h"

namespace lockstep {

// `M` derives from BaseModel, or has its preprocess and parse_losses.
template <IsModule M>
class MMFullyShardedDataParallel : public FullyShardedDataParallel<M> {
 public:
  using FullyShardedDataParallel<M>::FullyShardedDataParallel;

  // The model's step, with its forward through this wrapper. What is logged is this rank's. Losses within a window of
  // the optimizer keep their gradients on the rank, whole, as in no_sync().
  template <class Data>
  LogVars train_step(const Data& data, OptimWrapper& optim_wrapper) const {
    return detail::train_step(this->module(), *this, data, optim_wrapper, [](const Tensor&) {});
  }
  // BaseModel's val_step with the forward of this wrapper, which gathers: every rank calls it, as often. A val_step of
  // the model's own is not called: its parameters are parts.
  template <class Data>
  auto val_step(const Data& data) const {
    return detail::val_step(this->module(), *this, data);
  }
  template <class Data>
  auto test_step(const Data& data) const {
    return val_step(data);
  }
};

template <class M, class... Rest>
MMFullyShardedDataParallel(M, Communicator&, Rest...) -> MMFullyShardedDataParallel<M>;

}  // namespace lockstep
