// The reducer with a communication hook: what it gives to it, waits for and takes from it.
#include <algorithm>
#include <utility>

#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/runtime/edge.h"

namespace lockstep::detail {

std::string Reducer::hook_problem(const CommHook& hook) {
  const std::lock_guard lock(mutex_);
  if (!hook.call) return "expected a hook that can be called, got an empty function";
  if (hooked()) return cat("expected one hook, got '", hook.name, "' where '", hook_.name, "' is registered");
  if (started_ || reductions_ > 0)
    return cat("expected '", hook.name, "' before the first backward, got it after ", reductions_ + (started_ ? 1 : 0));
  return "";
}

void Reducer::set_hook(CommHook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

// What the hook throws becomes this rank's failure, unless it only tells of another's.
template <class F>
void Reducer::guard_hook(std::size_t bucket, F&& call) {
  try {
    const FieldScope<&ThreadContext::autocast, bool> as_written(false);
    call();
  } catch (...) {
    const std::string error = describe(std::current_exception());
    communicator_.check();
    fail(cat("[DistributedDataParallel] hook '", hook_.name, "' failed on rank ", communicator_.rank(), " for bucket ",
             bucket, " of ", buckets_.size(), " (", buckets_[bucket].slots().size(), " parameters from '",
             first_of(bucket).name, "' on): ", error));
  }
}

// The reducer's stream is current.
void Reducer::call_hook(std::size_t bucket) {
  const Bucket& reduced = buckets_[bucket];
  Pending& pending = pending_[bucket];
  GradBucket::Contents contents{.index = bucket,
                                .is_last = bucket + 1 == buckets_.size(),
                                .parameters = labels_[bucket].parameters,
                                .buffer = reduced.flat(),
                                .gradients = reduced.parts(),
                                .rows = std::move(pending.own_rows),
                                .communicator = &communicator_,
                                .divisor = divisor_,
                                .divisor_may_fall = divisor_may_fall_,
                                .unrounded = reduced.unrounded()};
  if (may_skip()) contents.lost = pending.lost = std::make_shared<std::vector<bool>>(reduced.slots().size());
  const auto user_of = [&](const Tensor& used) -> const Stream& {
    return used.device() == stream_.device() ? stream_ : local_stream(reduced);
  };
  for (const Tensor& used : {contents.buffer, contents.unrounded, contents.rows.indices, contents.rows.values})
    if (used.defined()) LOCKSTEP_EDGE(used.storage()->record_use(user_of(used)));
  pending.given.emplace(std::move(contents));
  guard_hook(bucket, [&] { pending.work = hook_.call(*pending.given); });
}

bool Reducer::hook_is_late() const {
  return std::any_of(pending_.begin(), pending_.end(), [](const Pending& pending) { return pending.work.late(); });
}

// Those that are late, in the order of the buckets: what is chained to them may communicate.
void Reducer::finish_hook() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!pending_[b].work.late()) continue;
    on_own_streams(local_stream(buckets_[b]), {}, [&] {
      guard_hook(b, [&] {
        const auto check = [&] { communicator_.check(); };
        std::move(pending_[b].work).wait(communicator_.timeout(), check);  // its edge is inside
      });
      if (shadowing_) {
        pending_[b].given.reset();
      } else {
        buckets_[b].receive();
      }
      timeline_.end_reduction(b, stream_);
    });
  }
}

// Before the hook comes to the next iteration.
void Reducer::tell_lost() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!pending_[b].lost) continue;
    const std::vector<Bucket::Slot>& slots = buckets_[b].slots();
    for (std::size_t s = 0; s < slots.size(); ++s)
      (*pending_[b].lost)[s] = !variables_[static_cast<std::size_t>(slots[s].parameter)].used_anywhere;
  }
}

// The rows that the hook has left.
void Reducer::take_rows(std::size_t bucket) {
  const std::optional<GradBucket> given = std::exchange(pending_[bucket].given, {});
  const Variable& variable = first_of(bucket);
  if (!given || (variable.unused && !variable.used_anywhere)) return;  // what there is stays
  const SparseGradient& rows = given->rows();
  if (!rows.defined()) return;
  // The hook has made them on a stream of the reducer's.
  for (const Tensor& read : {rows.indices, rows.values})
    LOCKSTEP_EDGE(read.storage()->record_use(current_stream(read.device())));
  put_rows(variable, rows);
}

}  // namespace lockstep::detail
