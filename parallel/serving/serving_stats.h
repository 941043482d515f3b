// What a pool of replicas has done, as numbers and in Prometheus' text format.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// Counts values between bounds; the last count is of those above all bounds.
struct LOCKSTEP_API Histogram {
  std::span<const double> bounds;  // ascending; of static storage
  std::vector<std::uint64_t> counts;
  std::uint64_t count = 0;
  double sum = 0;

  explicit Histogram(std::span<const double> between = {}) : bounds(between), counts(between.size() + 1) {}
  void add(double value);
  // The value below which that share of the values lies, between the bounds on a straight line; 0 without values, the
  // last bound where it lies above.
  double quantile(double share) const;

  static std::span<const double> seconds();  // 50 microseconds to 100 s
  static std::span<const double> samples();  // powers of two to 4,096
};

enum class ReplicaState : std::uint8_t {
  serving,
  hung,  // computes for longer than hang_timeout; serves again when it returns
  lost,  // its device failed; its thread has ended
};
LOCKSTEP_API std::string_view to_string(ReplicaState state);

struct ReplicaStats {
  Device device;
  ReplicaState state = ReplicaState::serving;
  std::uint64_t batches = 0, samples = 0, failures = 0;  // failures: batches that threw
  double busy_seconds = 0;
  std::string error;  // why it was taken out last
};

struct ReplicaPoolStats {
  // Of requests. Each that was submitted is one of the others, queued or running.
  std::uint64_t submitted = 0;
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;     // computing it threw
  std::uint64_t cancelled = 0;  // by its submitter, or by the end of the pool
  std::uint64_t late = 0;       // at its deadline
  std::uint64_t dropped = 0;    // for a later one, or because no replica was left
  std::uint64_t queued = 0, running = 0;
  // Beside those: requests that submit() did not take, submitters that wait for room, requests that changed replicas,
  // and batches that were tried again one by one.
  std::uint64_t refused = 0, waiting = 0, moved = 0, split = 0;
  std::uint64_t updates = 0;
  Histogram queue_seconds{Histogram::seconds()};    // of requests, until a replica took them
  Histogram latency_seconds{Histogram::seconds()};  // of answered requests, from submit() to the answer
  Histogram batch_seconds{Histogram::seconds()};
  Histogram batch_samples{Histogram::samples()};
  std::vector<ReplicaStats> replicas;
};

// All of it as lines of Prometheus' text format 0.0.4, with label pool="name": lockstep_pool_requests_total{outcome=…},
// lockstep_pool_latency_seconds_bucket{le=…} and so on. A name may be any text; what is no UTF-8 in it becomes
// U+FFFD. For several pools, join their statistics under one heading.
LOCKSTEP_API std::string to_prometheus(std::span<const std::pair<std::string, ReplicaPoolStats>> pools);
LOCKSTEP_API std::string to_prometheus(const ReplicaPoolStats& stats, const std::string& pool);

}  // namespace lockstep
