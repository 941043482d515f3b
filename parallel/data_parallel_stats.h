// What the calls of a DataParallel have cost.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "lockstep/parallel/replicas/replica_graphs.h"
#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/module_slots.h"

namespace lockstep {

// Bytes moved between devices, and time of the calling thread.
struct PhaseStats {
  std::uint64_t bytes = 0;
  std::uint64_t nanoseconds = 0;
};
struct CallStats {
  PhaseStats scatter, replicate, apply, gather;
  // Summing gradients, in the backward passes since the call. Its bytes count those that home reads where they are,
  // too.
  PhaseStats reduce;
};
struct DataParallelStats {
  std::uint64_t calls = 0;
  CallStats last;   // of the call that finished last
  CallStats total;  // of all finished calls
  ReplicaGraphStats graphs;
};

namespace detail {

// Measures one phase after the other of one call; in a trace each is a span of its name.
class LOCKSTEP_API PhaseTimer {
 public:
  explicit PhaseTimer(const char* first);
  // What has happened since the last one belongs to `phase`; the next one begins, unless this was the last.
  void finish(PhaseStats& phase, const char* next = nullptr);

 private:
  std::optional<trace::Scope> span_;
  Clock::time_point time_;
  std::uint64_t bytes_;
};

class LOCKSTEP_API StatsRecorder {
 public:
  void add(const CallStats& call, const ModuleSlots& slots);
  DataParallelStats read(const ModuleSlots& slots, const ReplicaGraphs* graphs) const;
  void reset();

 private:
  mutable std::mutex mutex_;
  DataParallelStats stats_;
  TransferStats reduced_at_first_, reduced_at_last_;  // when the first and the last call finished
};

}  // namespace detail
}  // namespace lockstep
