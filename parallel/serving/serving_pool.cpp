#include "lockstep/parallel/serving/serving_pool.h"

#include <algorithm>
#include <utility>

#include "lockstep/parallel/serving/replica.h"
#include "lockstep/parallel/serving/serving_error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/order/order.h"

namespace lockstep::detail {
namespace {

thread_local const ServingPool* pool_of_this_thread = nullptr;

// Times that are meant as "never" are so long that clocks can add them.
ReplicaPoolOptions within_clock(ReplicaPoolOptions options) {
  constexpr std::chrono::hours kLongest{24 * 365 * 10};
  options.hang_timeout = std::min<Milliseconds>(options.hang_timeout, kLongest);
  options.max_delay = std::min<std::chrono::microseconds>(options.max_delay, kLongest);
  return options;
}

}  // namespace

ServingResult::~ServingResult() = default;
ServingModel::~ServingModel() = default;

ServingPool::ServingPool(const ReplicaPoolOptions& options, std::shared_ptr<ServingModel> model)
    : options_(within_clock(options)),
      model_(std::move(model)),
      clock_(*options_.clock),
      generation_(fork_generation()),
      queue_(options_.max_batch_samples, options_.max_delay) {
  for (const Device device : options_.devices)
    replicas_.push_back(std::make_unique<Replica>(static_cast<int>(replicas_.size()), device));
}
ServingPool::~ServingPool() = default;

bool ServingPool::inside() const { return pool_of_this_thread == this; }
void ServingPool::enter() { pool_of_this_thread = this; }

// What waits for the pool's threads is not one of them, nor in another process.
void ServingPool::check_may_wait() const {
  check_generation("ReplicaPool", generation_);
  if (inside()) fail<Error>("[ReplicaPool] expected another thread than the pool's to wait for it, got one of them");
}

void ServingPool::wait_until(Lock& lock, std::condition_variable& condition, std::optional<Clock::time_point> time) {
  if (!time || !clock_.runs() || *time == Clock::time_point::max())
    condition.wait(lock);
  else
    condition.wait_until(lock, *time);
}

void ServingPool::wake_all() {
  for (std::condition_variable* condition : {&work_, &room_, &watch_, &idle_}) condition->notify_all();
}

bool ServingPool::any_replica(ReplicaState worst) const {
  return std::any_of(replicas_.begin(), replicas_.end(),
                     [&](const auto& replica) { return replica->stats.state <= worst; });
}

bool ServingPool::closed() const {
  const Lock lock(mutex_);
  return !accepting_;
}

void ServingPool::check_accepting() const {
  if (accepting_) return;
  for (const auto& replica : replicas_)
    if (replica->stats.state == ReplicaState::lost && !any_replica(ReplicaState::hung))
      fail<Refused>("[ReplicaPool] expected a replica that serves, got none: ", replica->stats.error);
  fail<Refused>("[ReplicaPool] expected a pool that takes requests, got one that is closed or drains");
}

std::shared_ptr<ServingRequest> ServingPool::make_room(Lock& lock, ServingRequest& request, std::exception_ptr& why) {
  const auto is_full = [&] { return queue_.size() >= options_.max_queued; };
  if (!is_full()) return nullptr;
  if (options_.when_full == WhenFull::drop_oldest) {
    std::shared_ptr<ServingRequest> oldest = queue_.oldest(request.priority);
    if (oldest) {
      why = std::make_exception_ptr(  // before it is taken out: that may throw
          Refused(cat("[ReplicaPool] dropped for a later request: ", options_.max_queued, " waited")));
      queue_.remove(*oldest);
      return oldest;
    }
  } else if (options_.when_full == WhenFull::wait && !inside()) {  // a replica that waits for room would make none
    ++stats_.waiting;
    const auto late = [&] { return clock_.now() >= request.deadline; };
    while (is_full() && accepting_ && !late()) wait_until(lock, room_, request.deadline);
    --stats_.waiting;
    stats_.refused += !accepting_;
    check_accepting();
    if (!is_full()) return nullptr;
    ++stats_.refused;
    fail<TimeoutError>("[ReplicaPool] expected room for a request within ", request.timeout.count(), " ms, got ",
                       queue_.size(), " that wait");
  }
  ++stats_.refused;
  fail<Refused>("[ReplicaPool] expected fewer than ", options_.max_queued, " requests that wait, got ", queue_.size());
}

void ServingPool::submit(const std::shared_ptr<ServingRequest>& request) {
  check_generation("ReplicaPool", generation_);
  request->pool = weak_from_this();
  request->submitted = clock_.now();
  const Clock::duration longest = Clock::time_point::max() - request->submitted;
  request->deadline = request->timeout >= std::chrono::duration_cast<Milliseconds>(longest)
                          ? Clock::time_point::max()
                          : request->submitted + request->timeout;
  hand_over(request.get());
  std::shared_ptr<ServingRequest> dropped;
  std::exception_ptr why;
  {
    Lock lock(mutex_);
    stats_.refused += !accepting_;
    check_accepting();
    dropped = make_room(lock, *request, why);
    request->number = next_number_++;
    try {
      queue_.push(request);
    } catch (...) {
      if (dropped) queue_.push(std::move(dropped));  // into the place that it had
      throw;
    }
    ++stats_.submitted;
    ++open_;
    look_by(request->deadline);
    work_.notify_one();
  }
  if (dropped) finish(*dropped, Outcome::dropped, std::move(why));
}

bool ServingPool::cancel(ServingRequest& request) {
  check_generation("ReplicaPool", generation_);
  static const auto error =
      std::make_exception_ptr(Cancelled("[ReplicaPool] the request was cancelled by its submitter"));
  return finish(request, Outcome::cancelled, error);
}

bool ServingPool::finish(ServingRequest& request, Outcome outcome, std::exception_ptr error) noexcept {
  if (!request.claim()) return false;
  if (error) request.fail(std::move(error));
  End end{&request, outcome};
  publish({&end, 1});
  return true;
}

// What is counted is so before anybody hears of it: who has an answer does not find it among those that run.
void ServingPool::publish(std::span<End> ends) noexcept {
  if (ends.empty()) return;
  {
    const Lock lock(mutex_);
    const Clock::time_point now = clock_.now();
    for (End& end : ends) {
      ServingRequest& request = *end.request;
      if (request.queued) queue_.remove(request);
      switch (end.outcome) {
        case Outcome::answered:
          ++stats_.answered;
          stats_.latency_seconds.add(std::chrono::duration<double>(now - request.submitted).count());
          break;
        case Outcome::failed:
          ++stats_.failed;
          break;
        case Outcome::cancelled:
          ++stats_.cancelled;
          break;
        case Outcome::late:
          ++stats_.late;
          break;
        case Outcome::dropped:
          ++stats_.dropped;
          break;
      }
      request.counted = true;
      end.idle = request.computing == 0;  // else the last replica that computes it drops its inputs
    }
    open_ -= ends.size();
    if (open_ == 0) idle_.notify_all();
    if (stats_.waiting > 0) room_.notify_all();
  }
  for (const End& end : ends) {
    if (end.idle) end.request->drop_inputs();
    end.request->publish();
  }
}

void ServingPool::finish_all(const Requests& requests, Outcome outcome, std::exception_ptr error) noexcept {
  for (const auto& request : requests)
    finish(*request, outcome, &request == &requests.back() ? std::exchange(error, nullptr) : error);
}

Requests ServingPool::empty_queue() {
  Requests all;
  all.reserve(queue_.size());
  queue_.for_each([&](const auto& request) { all.push_back(request); });
  for (const auto& request : all) queue_.remove(*request);
  return all;
}

bool ServingPool::drain(Deadline deadline) {
  check_may_wait();
  Lock lock(mutex_);
  accepting_ = false;
  wake_all();
  while (open_ > 0)
    if (deadline.never())
      idle_.wait(lock);
    else if (idle_.wait_until(lock, deadline.time()) == std::cv_status::timeout)
      break;
  return open_ == 0;
}

void ServingPool::close() {
  check_generation("ReplicaPool", generation_);
  auto error = std::make_exception_ptr(Cancelled("[ReplicaPool] the pool was closed before a replica had the request"));
  Requests queued;
  {
    const Lock lock(mutex_);
    accepting_ = false;
    queued = empty_queue();
    wake_all();
  }
  finish_all(queued, Outcome::cancelled, std::move(error));
}

void ServingPool::check_returning() const {
  check_generation("ReplicaPool", generation_);
  const Lock lock(mutex_);
  for (const auto& replica : replicas_)
    if (replica->stats.state == ReplicaState::hung)
      throw Error(cat("[update] expected replicas that return, got replica ", replica->index, " on ",
                      replica->stats.device, ", which hangs and still reads the weights"));
}

void ServingPool::count_update() {
  const Lock lock(mutex_);
  ++stats_.updates;
}

ReplicaPoolStats ServingPool::stats() const {
  const Lock lock(mutex_);
  ReplicaPoolStats all = stats_;
  all.queued = queue_.size();
  all.running = open_ - queue_.size();
  for (const auto& replica : replicas_) all.replicas.push_back(replica->stats);
  return all;
}

}  // namespace lockstep::detail
