// MMDistributedDataParallel: DistributedDataParallel for models that make their own steps (base_model.h). After
// mmengine's class.
//
//   run_ranks(4, [](Communicator& communicator) {
//     MMDistributedDataParallel model(Classifier{}, communicator);
//     OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
//     for (const auto& batch : batches_of(communicator.rank())) model.train_step(batch, optim);
//   });
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/openmmlab/model/anomalous_params.h"
#include "lockstep/parallel/openmmlab/model/base_model.h"

namespace lockstep {

struct MMDistributedDataParallelOptions {
  // Before each update, every trainable parameter that the loss does not depend on is logged as an error.
  bool detect_anomalous_params = false;
  // Those of DistributedDataParallelOptions, which says what they mean; bucket_cap_mb may be kAutoBucketCap.
  double bucket_cap_mb = 25, first_bucket_mb = 1;
  bool broadcast_buffers = true, find_unused_parameters = false, gradient_as_bucket_view = true, static_graph = false;
  bool init_sync = true;
  std::vector<std::string> ignore = {};
  int backwards_per_forward = 1;
  std::optional<Milliseconds> timeout = std::nullopt;
  DdpMixedPrecision mixed_precision = {};

  DistributedDataParallelOptions distributed() const {
    return {bucket_cap_mb,           first_bucket_mb, broadcast_buffers, find_unused_parameters,
            gradient_as_bucket_view, static_graph,    init_sync,         ignore,
            backwards_per_forward,   timeout,         mixed_precision};
  }
};

// `M` derives from BaseModel, or has its preprocess, parse_losses, val_step and test_step.
template <IsModule M>
class MMDistributedDataParallel : public DistributedDataParallel<M> {
 public:
  // As DistributedDataParallel's.
  MMDistributedDataParallel(M module, Communicator& communicator, MMDistributedDataParallelOptions options = {})
      : DistributedDataParallel<M>(std::move(module), communicator, options.distributed()),
        detect_anomalous_params_(options.detect_anomalous_params) {}

  // The model's step, with its forward through this wrapper: the ranks average the gradients of the losses that end a
  // window of the optimizer, and the update is the same on all of them. What is logged is this rank's.
  template <class Data>
  LogVars train_step(const Data& data, OptimWrapper& optim_wrapper) const {
    return detail::train_step(this->module(), *this, data, optim_wrapper, [&](const Tensor& loss) {
      // Before the backward, which may end with the error that a parameter has no gradient.
      if (detect_anomalous_params_) detect_anomalous_params(loss, this->module());
    });
  }
  // The model's own: nothing is communicated, so that one rank may validate alone.
  template <class Data>
  auto val_step(const Data& data) const {
    return this->module().val_step(data);
  }
  template <class Data>
  auto test_step(const Data& data) const {
    return this->module().test_step(data);
  }

 private:
  bool detect_anomalous_params_;
};

}  // namespace lockstep
