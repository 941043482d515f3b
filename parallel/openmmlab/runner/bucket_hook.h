// A Runner's checkpoints keep how a DistributedDataParallel divides gradients into buckets. Private to the library.
#pragma once

#include <functional>

#include "lockstep/parallel/ddp/bucket_state.h"
#include "lockstep/parallel/openmmlab/runner/options.h"

namespace lockstep::detail {

struct BucketStateOf {
  std::function<DdpBucketState()> get;
  std::function<void(const DdpBucketState&)> check, load;
};

// Writes "ddp.buckets" into the metadata, and takes it over with resume(). A file without it changes nothing.
LOCKSTEP_API RunnerHook bucket_hook(BucketStateOf wrapper);

// Adds the hook where the model is such a wrapper.
template <class Model>
void add_bucket_hook(Model& model, RunnerOptions& options) {
  if constexpr (requires(const DdpBucketState& state) { model.load_bucket_state(state); })
    options.hooks.push_back(bucket_hook({.get = [&model] { return model.bucket_state(); },
                                         .check = [&model](const auto& state) { model.check_bucket_state(state); },
                                         .load = [&model](const auto& state) { model.load_bucket_state(state); }}));
}

}  // namespace lockstep::detail
