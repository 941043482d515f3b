// What the threads of a pool do: one for each replica, which takes batches and computes them, and one that watches the
// time.

#include <algorithm>
#include <utility>

#include "lockstep/parallel/serving/replica.h"
#include "lockstep/parallel/serving/serving_error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/service_thread.h"
#include "lockstep/tensor/nn/interrupt.h"

namespace lockstep::detail {
namespace {

bool of_device(const std::exception_ptr& error, Device device) {
  try {
    std::rethrow_exception(error);
  } catch (const DeviceError& e) {
    return e.device == device;
  } catch (...) {
    return false;
  }
}

}  // namespace

void ServingPool::work(Replica& replica) noexcept {
  this_is_a_service_thread();
  enter();
  std::string refused;
  try {
    begin(replica);
  } catch (const std::exception& error) {
    refused = error.what();
  } catch (...) {
    refused = "[ReplicaPool] expected a thread to start, got something thrown by `started`";
  }
  Lock lock(mutex_);
  replica.refused = std::move(refused);
  replica.started = true;
  idle_.notify_all();
  for (bool more = replica.refused.empty(); more;) {
    try {
      more = serve(lock, replica);
    } catch (...) {  // no memory for what a batch needs here
      if (lock) lock.unlock();
      fail_from(replica, 0, replica.running.size(), std::current_exception());
      std::this_thread::sleep_for(Milliseconds(1));
      lock.lock();
      replica.running.clear();
    }
  }
  replica.ended = true;
  ended_.notify_all();
}

bool ServingPool::serve(Lock& lock, Replica& replica) {
  if (!replica.chores.empty()) {
    const std::function<void()> chore = std::move(replica.chores.front());
    replica.chores.pop_front();
    lock.unlock();
    chore();
    lock.lock();
    return true;
  }
  if (replica.stats.state == ReplicaState::lost) return false;
  if (stopping_ && queue_.empty()) return false;  // without a look at a clock that may be gone
  const Clock::time_point began = clock_.now();
  Requests& batch = replica.running;
  queue_.take(began, accepting_, batch);
  if (batch.empty()) {
    if (stopping_) return false;
    wait_until(lock, work_, queue_.next_ready());
    return true;
  }
  if (!queue_.empty()) work_.notify_one();
  if (stats_.waiting > 0) room_.notify_all();
  for (const auto& request : batch) {
    ++request->computing;
    if (!request->moved) stats_.queue_seconds.add(std::chrono::duration<double>(began - request->submitted).count());
  }
  replica.began = began;
  look_by(began + options_.hang_timeout);
  lock.unlock();
  run_batch(replica);
  lock.lock();
  if (replica.stats.state == ReplicaState::hung) {
    replica.stats.state = ReplicaState::serving;
    work_.notify_one();
  }
  // Out of the watch's sight, and then, without the lock, away with what may be the submitters'.
  Requests& done = replica.done;
  for (auto& request : batch)
    if (request && --request->computing == 0 && request->counted) done.push_back(std::move(request));
  batch.clear();
  lock.unlock();
  for (const auto& request : done) request->drop_inputs();
  done.clear();
  lock.lock();
  return true;
}

std::exception_ptr ServingPool::compute(Replica& replica, Batch batch) {
  for (const auto& request : batch) take_over(request.get());
  const Clock::time_point began = clock_.now();
  const auto count = [&](bool failed) {
    std::int64_t samples = 0;
    for (const auto& request : batch) samples += request->samples;
    const double seconds = std::chrono::duration<double>(clock_.now() - began).count();
    const Lock lock(mutex_);
    replica.stats.failures += failed;
    replica.stats.busy_seconds += seconds;
    ++replica.stats.batches;
    replica.stats.samples += static_cast<std::uint64_t>(samples);
    stats_.batch_seconds.add(seconds);
    stats_.batch_samples.add(static_cast<double>(samples));
  };
  std::unique_ptr<ServingResult> result;
  std::vector<End>& ends = replica.ends;
  ends.clear();
  try {
    const std::function<void()> check_wanted = [&] {
      if (std::all_of(batch.begin(), batch.end(), [](const auto& request) { return request->settled(); }))
        throw Cancelled("[ReplicaPool] nobody waits for this batch any more");
    };
    const InterruptScope interrupt(check_wanted);  // not around callbacks, which may call modules of their own
    check_wanted();
    ends.reserve(batch.size());  // from the first claim on nothing may throw
    result = model_->compute(replica.index, batch);
  } catch (...) {
    count(true);
    return std::current_exception();
  }
  count(false);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    ServingRequest& request = *batch[i];
    if (!request.claim()) continue;
    auto outcome = Outcome::answered;
    try {
      result->give(i, request);
    } catch (...) {
      outcome = Outcome::failed;
      request.fail(std::current_exception());
    }
    ends.push_back({&request, outcome});
  }
  publish(ends);
  return nullptr;
}

std::shared_ptr<ServingRequest> ServingPool::give_up(Replica& replica, std::size_t i) {
  std::shared_ptr<ServingRequest> request = std::move(replica.running[i]);
  replica.running[i] = nullptr;
  // Who has it beside this replica, which is where it was moved to, decides about it.
  if (--request->computing > 0 || request->queued) return nullptr;
  if (!request->counted) return request->settled() ? nullptr : request;
  replica.done.push_back(std::move(request));  // has ended: its inputs go with the batch
  return nullptr;
}

void ServingPool::fail_from(Replica& replica, std::size_t first, std::size_t count, std::exception_ptr error) {
  for (std::size_t i = first; i < first + count; ++i) {
    std::shared_ptr<ServingRequest> alone;
    {
      const Lock lock(mutex_);
      if (replica.running[i]) alone = give_up(replica, i);
    }
    if (alone) finish(*alone, Outcome::failed, i + 1 == first + count ? std::exchange(error, nullptr) : error);
  }
}

void ServingPool::run_batch(Replica& replica) {
  const std::size_t size = replica.running.size();
  const Batch batch = replica.running;
  std::exception_ptr error = compute(replica, batch);
  if (!error) return;
  if (of_device(error, replica.stats.device)) return lose_device(replica, 0, std::move(error));
  if (size == 1) return fail_from(replica, 0, 1, std::move(error));
  // One of them may be to blame: each has its own answer or its own error.
  bool counted = false;
  for (std::size_t i = 0; i < size; ++i) {
    if (batch[i]->settled()) continue;
    {
      const Lock lock(mutex_);
      stats_.split += !std::exchange(counted, true);
      replica.began = clock_.now();
      look_by(replica.began + options_.hang_timeout);
    }
    error = compute(replica, batch.subspan(i, 1));
    if (!error) continue;
    if (of_device(error, replica.stats.device)) return lose_device(replica, i, std::move(error));
    fail_from(replica, i, 1, std::move(error));
  }
}

bool ServingPool::move_on(const std::shared_ptr<ServingRequest>& request) {
  if (request->moved) return false;
  queue_.push(request);
  request->moved = true;
  ++stats_.moved;
  work_.notify_all();
  return true;
}

void ServingPool::move_all_on(const Requests& running) {
  for (const auto& request : running)
    if (request && !request->settled() && !request->queued) move_on(request);
}

// What the replica computes from `first` on goes to others, as does what hangs on other replicas of its device.
void ServingPool::lose_device(Replica& replica, std::size_t first, std::exception_ptr error) {
  const Device device = replica.stats.device;
  const std::string why = describe(error);
  Requests left, queued;
  left.reserve(replica.running.size());
  {
    const Lock lock(mutex_);
    for (const auto& other : replicas_) {
      if (other->stats.device != device) continue;
      other->stats.state = ReplicaState::lost;
      other->stats.error = why;
    }
    const bool others = any_replica(ReplicaState::hung);
    for (std::size_t i = first; i < replica.running.size(); ++i) {
      if (!replica.running[i]) continue;
      auto request = give_up(replica, i);
      if (request && !(others && move_on(request))) left.push_back(std::move(request));
    }
    for (const auto& other : replicas_)
      if (others && other.get() != &replica && other->stats.device == device) move_all_on(other->running);
    if (!others) {
      accepting_ = false;
      queued = empty_queue();
    }
    wake_all();
  }
  finish_all(left, Outcome::failed, queued.empty() ? std::exchange(error, nullptr) : error);
  finish_all(queued, Outcome::dropped, std::move(error));
  try {
    log(LogLevel::warning, cat("[ReplicaPool] the replicas on ", device, " are taken out: ", why));
  } catch (...) {  // nothing is to be done about a message that cannot be written
  }
}

void ServingPool::watch() noexcept {
  this_is_a_service_thread();
  enter();
  name_thread("watch");
  Lock lock(mutex_);
  while (!over_) {
    if (clock_.now() < next_look_) {
      wait_until(lock, watch_, next_look_);
      continue;
    }
    try {
      look(lock);
    } catch (...) {  // no memory: soon again
      if (!lock) lock.lock();
      next_look_ = clock_.now() + Milliseconds(1);
    }
  }
  ended_.notify_all();
}

// Ends requests whose deadline has passed, and takes out replicas that compute for too long.
void ServingPool::look(Lock& lock) {
  const Clock::time_point now = clock_.now();
  Clock::time_point next = Clock::time_point::max();
  Requests late, hung;
  const auto see = [&](const std::shared_ptr<ServingRequest>& request) {
    if (request->settled()) return;
    if (request->deadline <= now)
      late.push_back(request);
    else
      next = std::min(next, request->deadline);
  };
  queue_.for_each(see);
  std::string message;
  for (const auto& replica : replicas_) {
    if (replica->running.empty()) continue;
    for (const auto& request : replica->running)
      if (request) see(request);
    if (replica->stats.state != ReplicaState::serving) continue;
    const Clock::time_point hangs = replica->began + options_.hang_timeout;
    if (now < hangs) {
      next = std::min(next, hangs);
      continue;
    }
    replica->stats.state = ReplicaState::hung;
    replica->stats.error = cat("a batch has not ended in ", options_.hang_timeout.count(), " ms");
    message = cat("[ReplicaPool] replica ", replica->index, " on ", replica->stats.device,
                  " is taken out: ", replica->stats.error);
    // Those that were moved before, and all where no other replica serves, are left to this one.
    if (any_replica(ReplicaState::serving)) move_all_on(replica->running);
  }
  next_look_ = next;
  lock.unlock();
  for (const auto& request : late)
    finish(*request, Outcome::late,
           std::make_exception_ptr(TimeoutError(
               cat("[ReplicaPool] expected an answer within ", request->timeout.count(), " ms, got none"))));
  late.clear();
  try {
    if (!message.empty()) log(LogLevel::warning, message);
  } catch (...) {  // nothing is to be done about a message that cannot be written
  }
  lock.lock();
}

}  // namespace lockstep::detail
