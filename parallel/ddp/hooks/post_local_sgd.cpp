#include "lockstep/parallel/ddp/hooks/post_local_sgd.h"

#include "lockstep/parallel/ddp/hooks/basic_hooks.h"
#include "lockstep/parallel/ddp/hooks/state.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

PostLocalSgd::PostLocalSgd(const ModelAverager& averager, const PostLocalSgdOptions& options) : options_(options) {
  LOCKSTEP_CHECK(options.start_iteration >= 0, "[PostLocalSgd] expected a start_iteration of at least 0, got ",
                 options.start_iteration);
  LOCKSTEP_CHECK(options.start_iteration == averager.options().warmup_steps,
                 "[PostLocalSgd] expected the averager's warmup_steps, ", averager.options().warmup_steps,
                 ", as start_iteration, got ", options.start_iteration);
}

CommHook PostLocalSgd::hook() {
  return {cat("post_local_sgd(from iteration ", options_.start_iteration, options_.subgroup ? ", in groups" : "", ')'),
          [this](GradBucket& bucket) {
            module_.check("PostLocalSgd", bucket);
            if (iteration_ < options_.start_iteration) {
              detail::average(bucket);
            } else if (options_.subgroup) {
              GradBucket part = bucket.among(*options_.subgroup);
              detail::average(part);
              bucket.set_rows(part.rows());
            }
            if (bucket.is_last()) ++iteration_;
            return Work();
          }};
}

std::vector<NamedTensor> PostLocalSgd::state_dict() const {
  return {{"iteration", tensor(iteration_, {.dtype = DType::i64})}};
}

void PostLocalSgd::load_state_dict(const std::vector<NamedTensor>& state) {
  iteration_ = detail::read_only_count("PostLocalSgd::load_state_dict", "iteration", state);
  module_ = {};
}

}  // namespace lockstep
