#include "lockstep/parallel/ddp/timeline.h"

#include <algorithm>
#include <chrono>

namespace lockstep::detail {

std::int64_t DdpTimeline::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void DdpTimeline::stamp(const std::shared_ptr<Iteration>& iteration, std::atomic<std::int64_t>& time,
                        const Stream& stream) {
  if (stream.synchronous()) {
    time = now();
  } else {
    stream.enqueue([iteration, &time] { time = now(); });
  }
}

void DdpTimeline::begin_forward(std::size_t buckets) {
  current_ = std::make_shared<Iteration>(buckets);
  current_->forward.begin = now();
}
void DdpTimeline::end_forward() {
  if (current_) current_->forward.end = now();
}
void DdpTimeline::begin_backward() {
  if (current_ && current_->backward.begin == 0) current_->backward.begin = now();
}
void DdpTimeline::end_backward() {
  if (!current_) return;
  current_->backward.end = now();
  open_.push_back(std::move(current_));
  current_.reset();
  collect();
}
void DdpTimeline::begin_reduction(std::size_t bucket, const Stream& stream) {
  if (current_) stamp(current_, current_->reductions[bucket].begin, stream);
}
void DdpTimeline::end_reduction(std::size_t bucket, const Stream& stream) {
  if (current_) stamp(current_, current_->reductions[bucket].end, stream);
}

bool DdpTimeline::finished(const Iteration& iteration) {
  return std::all_of(iteration.reductions.begin(), iteration.reductions.end(),
                     [](const Interval& reduction) { return reduction.end != 0; });
}

DdpTimeline::Times DdpTimeline::times(const Iteration& iteration) {
  const std::int64_t begin = iteration.backward.begin, end = iteration.backward.end;
  Times times{.forward = iteration.forward.end - iteration.forward.begin, .backward = end - begin};
  for (const Interval& reduction : iteration.reductions) {
    times.communication += reduction.end - reduction.begin;
    times.overlap += std::max<std::int64_t>(
        0, std::min<std::int64_t>(reduction.end, end) - std::max<std::int64_t>(reduction.begin, begin));
  }
  return times;
}

void DdpTimeline::collect() {
  while (!open_.empty() && finished(*open_.front())) {
    last_ = times(*open_.front());
    open_.erase(open_.begin());
    ++count_;
    for (auto field : {&Times::forward, &Times::backward, &Times::communication, &Times::overlap})
      sum_.*field += last_.*field;
  }
}

void DdpTimeline::report(DdpLoggingData& data) {
  collect();
  if (count_ == 0) return;
  data.forward_compute_time = last_.forward;
  data.backward_compute_time = last_.backward;
  data.backward_comm_time = last_.communication;
  data.backward_compute_comm_overlap_time = last_.overlap;
  data.avg_forward_compute_time = sum_.forward / count_;
  data.avg_backward_compute_time = sum_.backward / count_;
  data.avg_backward_comm_time = sum_.communication / count_;
  data.avg_backward_compute_comm_overlap_time = sum_.overlap / count_;
}

}  // namespace lockstep::detail
