// The part of a pool of replicas that does not depend on types: threads, time, and what happens when something fails.
// Private to the library.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/serving/replica_pool_options.h"
#include "lockstep/parallel/serving/request_queue.h"
#include "lockstep/parallel/serving/serving_stats.h"

namespace lockstep::detail {

// What a batch has come to.
class LOCKSTEP_API ServingResult {
 public:
  virtual ~ServingResult();
  // Moves the answer of the batch's i-th request into it.
  virtual void give(std::size_t i, ServingRequest& request) = 0;
};

// Computes. Called by the threads of replicas, at once.
class LOCKSTEP_API ServingModel {
 public:
  virtual ~ServingModel();
  // Waits for the device: nothing that is read or written is in flight any more when it returns or throws.
  virtual std::unique_ptr<ServingResult> compute(int replica,
                                                 std::span<const std::shared_ptr<ServingRequest>> batch) = 0;
};

class LOCKSTEP_API ServingPool : public std::enable_shared_from_this<ServingPool> {
 public:
  // Throws InvalidArgument for options that make no sense.
  ServingPool(const ReplicaPoolOptions& options, std::shared_ptr<ServingModel> model);
  ServingPool(const ServingPool&) = delete;
  ServingPool& operator=(const ServingPool&) = delete;
  ~ServingPool();

  // Starts the threads. Throws Error when one cannot be had as the options want it.
  void start();

  // Takes the request over, or throws: then nothing is counted but that.
  void submit(const std::shared_ptr<ServingRequest>& request);
  // Whether it was this that ended the request.
  bool cancel(ServingRequest& request);
  // Runs `chore(replica)` in the thread of each replica that serves, between batches, and waits. Throws what the first
  // one threw.
  void run_chores(const std::function<void(int replica)>& chore, Deadline deadline);

  // No further request is taken. Whether all have ended by the deadline.
  bool drain(Deadline deadline);
  // No further request is taken; those that wait end as cancelled.
  void close();
  // close(), and waits for the threads, each as long as a replica may compute. Those that do not return are left to
  // themselves.
  void join() noexcept;

  ReplicaPoolStats stats() const;
  void count_update();
  // Throws Error while a replica hangs.
  void check_returning() const;
  bool closed() const;

 private:
  struct Replica;
  using Lock = std::unique_lock<std::mutex>;
  using Batch = std::span<const std::shared_ptr<ServingRequest>>;

  void name_thread(const std::string& what) const;
  void begin(Replica& replica);
  void work(Replica& replica) noexcept;      // the thread of a replica
  bool serve(Lock& lock, Replica& replica);  // one batch or chore, or a wait; false when there is to be no other
  void run_batch(Replica& replica);
  std::exception_ptr compute(Replica& replica, Batch batch);
  void fail_from(Replica& replica, std::size_t first, std::size_t count, std::exception_ptr error);
  void lose_device(Replica& replica, std::size_t first, std::exception_ptr error);
  void watch() noexcept;  // the thread that watches the time
  void look(Lock& lock);
  void end_what_is_left() noexcept;

  // Ends the request unless it has ended; true when it was this that did.
  bool finish(ServingRequest& request, Outcome outcome, std::exception_ptr error) noexcept;
  void finish_all(const Requests& requests, Outcome outcome, std::exception_ptr error) noexcept;
  struct End {
    ServingRequest* request;
    Outcome outcome;
    bool idle = false;  // no replica computes it
  };
  void publish(std::span<End> ends) noexcept;  // of requests that the caller has claimed
  bool inside() const;                         // in a thread of a replica of this pool
  void enter();
  void check_may_wait() const;

  // Under the mutex.
  void check_accepting() const;
  // The request that goes for it, if one does, and why.
  std::shared_ptr<ServingRequest> make_room(Lock& lock, ServingRequest& request, std::exception_ptr& why);
  Requests empty_queue();
  // The replica computes its i-th request no longer: returns it where it has not ended and nobody else has it.
  std::shared_ptr<ServingRequest> give_up(Replica& replica, std::size_t i);
  // Into the queue, once for each request; false for one that has been moved before.
  bool move_on(const std::shared_ptr<ServingRequest>& request);
  void move_all_on(const Requests& running);
  bool any_replica(ReplicaState worst) const;
  void wait_until(Lock& lock, std::condition_variable& condition, std::optional<Clock::time_point> time);
  void wake_all();
  void look_by(Clock::time_point time) {
    if (time >= next_look_) return;
    next_look_ = time;
    watch_.notify_one();
  }

  const ReplicaPoolOptions options_;
  const std::shared_ptr<ServingModel> model_;
  ServingClock& clock_;
  const std::uint64_t generation_;  // of forks

  mutable std::mutex mutex_;
  std::condition_variable work_, room_, watch_, idle_, ended_;
  RequestQueue queue_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<std::thread> threads_;
  std::thread watcher_;
  Clock::time_point next_look_ = Clock::time_point::max();
  bool accepting_ = true;  // requests
  bool stopping_ = false;  // the threads of replicas
  bool over_ = false;      // they have ended: so does the watch
  std::uint64_t next_number_ = 0;
  std::uint64_t open_ = 0;  // requests that have not ended
  ReplicaPoolStats stats_;
};

}  // namespace lockstep::detail
