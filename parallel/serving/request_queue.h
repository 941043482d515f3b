// The requests that wait for a replica, by what can be computed together. Knows no threads: whoever has it holds the
// pool's mutex. Private to the library.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/serving/request.h"

namespace lockstep::detail {

using Requests = std::vector<std::shared_ptr<ServingRequest>>;

class RequestQueue {
 public:
  RequestQueue(std::int64_t max_batch_samples, Clock::duration max_delay)
      : max_batch_samples_(max_batch_samples), max_delay_(max_delay) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Behind those of its key that have its priority or a higher one. One that was moved from another replica goes before
  // all that wait.
  void push(std::shared_ptr<ServingRequest> request);
  // Of the batches that are ready, the one whose first request has the highest priority, then the one that has waited
  // longest: requests of one key, in order, as many as fit, at least one. A batch is ready when it is full, when its
  // first request has waited for the window, or when windows are not kept. Into `batch`, which is empty; it stays so
  // when none is ready.
  void take(Clock::time_point now, bool keep_windows, Requests& batch);
  // When the next batch is ready, if nothing else comes.
  std::optional<Clock::time_point> next_ready() const;

  void remove(ServingRequest& request);
  // Of those of the lowest priority, at most `priority`, the one that has waited longest; null when all are above.
  std::shared_ptr<ServingRequest> oldest(int priority) const;
  template <class F>
  void for_each(F&& f) const {
    for (const Bucket& bucket : buckets_)
      for (const auto& request : bucket.requests) f(request);
  }

 private:
  struct Bucket {
    std::size_t hash = 0;
    std::int64_t samples = 0;
    ServingRequest::List requests;  // in the order in which they are computed
  };

  Bucket& bucket_of(const ServingRequest& request);
  Bucket* find(const ServingRequest& request);
  bool full(const Bucket& bucket) const { return bucket.samples >= max_batch_samples_; }
  Clock::time_point ready_at(const Bucket& bucket) const;
  void erase(Bucket& bucket, ServingRequest::List::iterator at);

  std::int64_t max_batch_samples_;
  Clock::duration max_delay_;
  std::size_t size_ = 0;
  std::vector<Bucket> buckets_;
  ServingRequest::List spare_;  // places, so that none is allocated while requests come and go
};

}  // namespace lockstep::detail
