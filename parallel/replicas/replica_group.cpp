#include "lockstep/parallel/replicas/replica_group.h"

#include <algorithm>

#include "lockstep/parallel/replicas/with_streams.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/record/waiting.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/context.h"

namespace lockstep::detail {
namespace {
thread_local const ReplicaGroup::Membership* membership = nullptr;
}  // namespace

const ReplicaGroup::Membership* ReplicaGroup::current() { return membership; }

ReplicaGroup::Scope::Scope(ReplicaGroup& group, int replica)
    : mine_{&group, replica}, before_(std::exchange(membership, &mine_)) {}
ReplicaGroup::Scope::~Scope() { membership = before_; }

std::string ReplicaGroup::describe(std::size_t replica) const {
  return cat("replica ", replica, " on ", devices_[replica]);
}

// Where some are missing. Complete before others can find it.
std::shared_ptr<ReplicaGroup::Table> ReplicaGroup::table_at(const Place& place) {
  const auto found = tables_.find(&place);
  if (found != tables_.end()) return found->second;
  auto table = std::make_shared<Table>(devices_.size());
  forget_hand_overs(table.get());
  tables_.emplace(&place, table);
  return table;
}

// As if each had done its part: on their streams, in the mode that they have.
void ReplicaGroup::combine_all(Table& table, const Combine& combine) {
  take_over(&table);
  const InferenceMode inference(InferenceMode::enabled() && !table.records);
  const GradMode grad_mode(table.records);
  with_streams(table.streams, [&] { table.tensors = combine(table.tensors); });
  hand_over(&table);
}

Tensor ReplicaGroup::meet(const Place& place, int replica, const Tensor& mine, const Combine& combine) {
  if (lockstep::detail::current_capture) [[unlikely]]  // before others know that it has come
    lockstep::detail::current_capture->refuse(place.op, "replicas that wait for each other");
  const auto index = static_cast<std::size_t>(replica);
  const Stream stream = current_stream(mine.device());
  std::unique_lock lock(mutex_);
  if (failed_) throw_failure();
  Member& me = members_[index];
  const std::shared_ptr<Table> table = table_at(place);
  table->tensors[index] = mine;
  table->streams[index] = &stream.body();
  table->records |= GradMode::enabled();
  std::uint64_t& sequence = thread_context().sequence;
  table->sequence = std::max(table->sequence, sequence);
  me.waits_at = &place;
  hand_over(table.get());
  std::exception_ptr error;
  if (--table->missing == 0) {
    tables_.erase(&place);
    sequence = table->sequence;
    lock.unlock();
    try {
      combine_all(*table, combine);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    for (Member& member : members_) member.waits_at = nullptr;
    table->sequence = sequence;
    table->over = true;
    table->done = !error;
    if (error) fail_once([&] { return lockstep::detail::describe(error); });
    changed_.notify_all();
  } else {
    if (is_stuck()) fail_once([&] { return why_stuck(); });
    // Who combines has this replica's stream: not before it is through with that.
    wait_until(changed_, lock, Deadline::after(Milliseconds::max()),
               [&] { return table->over || (failed_ && table->missing > 0); });
    me.waits_at = nullptr;
  }
  Tensor result = std::exchange(table->tensors[index], Tensor());
  if (error) std::rethrow_exception(error);
  if (!table->done) throw_failure();
  sequence = table->sequence;
  take_over(table.get());
  return result;
}

void ReplicaGroup::leave(int replica, const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  Member& member = members_[static_cast<std::size_t>(replica)];
  member.left = true;
  try {
    member.how = error ? cat("threw: ", lockstep::detail::describe(error)) : "has returned";
  } catch (...) {
    member.how = "threw";  // no memory for more
  }
  if (is_stuck()) fail_once([&] { return why_stuck(); });
}

std::vector<bool> ReplicaGroup::fail(const char* reason) {
  const std::lock_guard lock(mutex_);
  std::vector<bool> waited;
  for (const Member& member : members_) waited.push_back(member.waits_at != nullptr);
  fail_once([&] { return std::string(reason); });
  return waited;
}

template <class Reason>
void ReplicaGroup::fail_once(Reason&& reason) noexcept {
  if (!failed_) {
    failed_ = true;
    try {
      failure_ = reason();
    } catch (...) {  // no memory
    }
  }
  changed_.notify_all();
}

void ReplicaGroup::throw_failure() const {
  throw Failure(failure_.empty() ? "[parallel_apply] expected memory to go on, got none" : failure_);
}

// Who waits needs everybody: one that has left will not come, and if all wait, at several places, none will.
bool ReplicaGroup::is_stuck() const {
  const auto waits = [](const Member& member) { return member.waits_at != nullptr; };
  const auto left = [](const Member& member) { return member.left; };
  return std::any_of(members_.begin(), members_.end(), waits) &&
         (std::any_of(members_.begin(), members_.end(), left) || std::all_of(members_.begin(), members_.end(), waits));
}

std::string ReplicaGroup::why_stuck() const {
  const Place* wanted = nullptr;
  for (const Member& member : members_)
    if (!wanted) wanted = member.waits_at;
  std::string places;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (member.left)
      return cat('[', wanted->op, "] expected every replica of the call to come to '", wanted->name,
                 "', where they share what they have, but ", describe(i), ' ', member.how);
    if (member.waits_at) places += cat(places.empty() ? "" : ", ", describe(i), " is at '", member.waits_at->name, "'");
  }
  return cat('[', wanted->op,
             "] expected all replicas of the call to come in the same order to where they share what they have, but ",
             places);
}

}  // namespace lockstep::detail
