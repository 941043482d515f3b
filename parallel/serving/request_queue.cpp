#include "lockstep/parallel/serving/request_queue.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace lockstep::detail {
namespace {

bool before(const ServingRequest& a, const ServingRequest& b) {
  if (a.moved != b.moved) return a.moved;
  if (a.priority != b.priority) return a.priority > b.priority;
  return a.number < b.number;
}

}  // namespace

RequestQueue::Bucket* RequestQueue::find(const ServingRequest& request) {
  const std::size_t hash = std::hash<std::string>()(request.key);
  for (Bucket& bucket : buckets_)
    if (!bucket.requests.empty() && bucket.hash == hash && bucket.requests.front()->key == request.key) return &bucket;
  return nullptr;
}

RequestQueue::Bucket& RequestQueue::bucket_of(const ServingRequest& request) {
  if (Bucket* const known = find(request)) return *known;
  const auto idle =
      std::find_if(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return bucket.requests.empty(); });
  Bucket& bucket = idle == buckets_.end() ? buckets_.emplace_back() : *idle;
  bucket.hash = std::hash<std::string>()(request.key);
  bucket.samples = 0;
  return bucket;
}

void RequestQueue::push(std::shared_ptr<ServingRequest> request) {
  ServingRequest& added = *request;
  if (spare_.empty()) spare_.emplace_back();  // what may throw comes first
  Bucket& bucket = bucket_of(added);
  auto at = bucket.requests.end();
  while (at != bucket.requests.begin() && before(added, **std::prev(at))) --at;
  spare_.front() = std::move(request);
  bucket.requests.splice(at, spare_, spare_.begin());
  added.place = std::prev(at);
  added.queued = true;
  bucket.samples += added.samples;
  ++size_;
}

void RequestQueue::erase(Bucket& bucket, ServingRequest::List::iterator at) {
  (*at)->queued = false;
  bucket.samples -= (*at)->samples;
  spare_.splice(spare_.begin(), bucket.requests, at);
  --size_;
}

void RequestQueue::remove(ServingRequest& request) {
  Bucket* const bucket = find(request);
  if (!bucket) return;
  const auto at = request.place;
  erase(*bucket, at);
  at->reset();
}

Clock::time_point RequestQueue::ready_at(const Bucket& bucket) const {
  const ServingRequest& first = *bucket.requests.front();
  return full(bucket) || first.moved ? first.submitted : first.submitted + max_delay_;
}

void RequestQueue::take(Clock::time_point now, bool keep_windows, Requests& batch) {
  Bucket* best = nullptr;
  for (Bucket& bucket : buckets_) {
    if (bucket.requests.empty() || (keep_windows && ready_at(bucket) > now)) continue;
    if (!best || before(*bucket.requests.front(), *best->requests.front())) best = &bucket;
  }
  if (!best) return;
  // Memory first: from here on nothing throws, and no request is lost.
  batch.reserve(std::min(best->requests.size(), static_cast<std::size_t>(max_batch_samples_)));
  std::int64_t samples = 0;
  while (!best->requests.empty()) {
    const auto at = best->requests.begin();
    // An empty request has no sample, and would fit for ever.
    const std::int64_t added = std::max<std::int64_t>((*at)->samples, 1);
    if (samples > 0 && samples + added > max_batch_samples_) break;
    samples += added;
    erase(*best, at);
    batch.push_back(std::move(*at));
  }
}

std::optional<Clock::time_point> RequestQueue::next_ready() const {
  std::optional<Clock::time_point> next;
  for (const Bucket& bucket : buckets_)
    if (!bucket.requests.empty()) next = std::min(ready_at(bucket), next.value_or(Clock::time_point::max()));
  return next;
}

std::shared_ptr<ServingRequest> RequestQueue::oldest(int priority) const {
  std::shared_ptr<ServingRequest> found;
  for_each([&](const std::shared_ptr<ServingRequest>& request) {
    if (request->priority > priority) return;
    if (!found || request->priority < found->priority ||
        (request->priority == found->priority && request->number < found->number))
      found = request;
  });
  return found;
}

}  // namespace lockstep::detail
