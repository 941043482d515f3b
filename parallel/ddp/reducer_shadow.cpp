// The reducer of a rank that has run out of inputs: it makes the collectives of the others, with zeros.
#include <charconv>
#include <utility>

#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::detail {

void Reducer::shadow(std::string_view step, const JoinTurn& turn) {
  const std::lock_guard lock(mutex_);
  const NoGrad no_grad;
  if (started_)
    fail(cat("[join] expected rank ", communicator_.rank(),
             " to finish the reduction that it began before its inputs end, but ", next_bucket_, " of ",
             buckets_.size(), " buckets were reduced in ", backwards_, " of ", options_.backwards_per_forward,
             " backwards"));
  timeline_.stop();
  shadowing_ = true;
  struct Shadowing {
    bool& shadowing;
    ~Shadowing() { shadowing = false; }
  } const until_return{shadowing_};

  if (step == kStepOrder) {
    rebuild_buckets();
  } else if (step == kStepBegin) {
    divisor_ = turn.divisor;
    divisor_may_fall_ = turn.by_active;
    pending_ = std::vector<Pending>(buckets_.size());
    ++reductions_;
  } else if (step == kStepUsed) {
    sum_used_map(std::vector<std::int32_t>(variables_.size(), 0));
    if (!options_.static_graph && !hooked()) return;
    LOCKSTEP_EDGE(current_stream(communicator_.device()).wait_for(stream_));
    const auto ranks = used_map_.to_vector<std::int32_t>();
    for (std::size_t i = 0; i < variables_.size(); ++i) variables_[i].used_anywhere = ranks[i] > 0;
    tell_lost();
  } else if (step == kStepLate) {
    finish_hook();
  } else {
    std::size_t bucket = buckets_.size();
    if (step.starts_with(kStepBucket)) {
      const std::string_view number = step.substr(kStepBucket.size());
      std::from_chars(number.data(), number.data() + number.size(), bucket);
    }
    if (bucket >= buckets_.size())
      fail(cat("[join] expected one of ", buckets_.size(), " buckets to be reduced, got '", step, "'"));
    shadow_bucket(bucket);
  }
}

// Nothing of its own takes part, nor is anything of it changed.
void Reducer::shadow_bucket(std::size_t bucket) {
  Bucket zeros = [&] {
    LOCKSTEP_EDGE_SCOPE(StreamScope, scope, stream_);
    return buckets_[bucket].zeros();
  }();
  std::swap(buckets_[bucket], zeros);
  struct PutBack {
    Bucket &place, &own;
    ~PutBack() { std::swap(place, own); }
  } const put_back{buckets_[bucket], zeros};
  reduce(bucket);
  // The zeros go as soon as the hook is done with them.
  if (!pending_[bucket].work.late()) pending_[bucket] = {.lost = std::move(pending_[bucket].lost)};
  // What no rank uses in a static graph is known from its first iteration, and not told again.
  if (options_.static_graph) tell_lost();
}

}  // namespace lockstep::detail
