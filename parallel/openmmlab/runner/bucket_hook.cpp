#include "lockstep/parallel/openmmlab/runner/bucket_hook.h"

#include <memory>
#include <optional>
#include <utility>

#include "lockstep/parallel/openmmlab/runner/core.h"

namespace lockstep::detail {

RunnerHook bucket_hook(BucketStateOf wrapper) {
  constexpr const char* kEntry = "ddp.buckets";
  const auto of_file = std::make_shared<std::optional<DdpBucketState>>();  // until the rest of it is taken over
  RunnerHook hook;
  hook.before_save_checkpoint = [get = std::move(wrapper.get)](RunnerCore&, Safetensors& checkpoint) {
    checkpoint.metadata[kEntry] = to_string(get());
  };
  hook.after_load_checkpoint = [of_file, check = std::move(wrapper.check)](RunnerCore& runner,
                                                                           Safetensors& checkpoint) {
    of_file->reset();
    const auto entry = checkpoint.metadata.find(kEntry);
    if (!runner.resuming() || entry == checkpoint.metadata.end()) return;
    const DdpBucketState state = parse_bucket_state(entry->second);
    check(state);
    *of_file = state;
  };
  hook.after_take_over = [of_file, load = std::move(wrapper.load)](RunnerCore& runner) {
    if (runner.resuming() && *of_file) load(**of_file);
    of_file->reset();
  };
  return hook;
}

}  // namespace lockstep::detail
