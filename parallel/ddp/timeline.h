// Host clock readings of an iteration: forward, backward, and each bucket's reduction.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "lockstep/parallel/ddp/options.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

class DdpTimeline {
 public:
  // Whether this synchronised iteration (counted from 1) is measured.
  static bool measures(std::uint64_t iteration) { return iteration <= 10 || iteration % 100 == 0; }

  void begin_forward(std::size_t buckets);  // of an iteration that is measured
  void end_forward();
  void begin_backward();
  void end_backward();
  void begin_reduction(std::size_t bucket, const Stream& stream);
  void end_reduction(std::size_t bucket, const Stream& stream);
  void stop() { current_.reset(); }  // the coming iteration is not measured

  // Adds what the measured iterations gave. Iterations whose reductions still run are left out.
  void report(DdpLoggingData& data);

 private:
  struct Interval {
    std::atomic<std::int64_t> begin{0}, end{0};
  };
  // Shared with the stamps on streams, which may come later than anything else.
  struct Iteration {
    explicit Iteration(std::size_t buckets) : reductions(buckets) {}
    Interval forward, backward;
    std::vector<Interval> reductions;
  };
  struct Times {
    std::int64_t forward = 0, backward = 0, communication = 0, overlap = 0;
  };
  static std::int64_t now();
  static void stamp(const std::shared_ptr<Iteration>& iteration, std::atomic<std::int64_t>& time, const Stream& stream);
  static bool finished(const Iteration& iteration);
  static Times times(const Iteration& iteration);
  void collect();

  std::shared_ptr<Iteration> current_;
  std::vector<std::shared_ptr<Iteration>> open_;  // not known to be finished
  Times last_, sum_;
  std::int64_t count_ = 0;
};

}  // namespace lockstep::detail
