// The ranks of a benchmark: threads of this process, and of the others where a launcher has started several.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/ranks/connect_store.h"
#include "lockstep/parallel/comm/ranks/rank_info.h"

namespace lockstep::bench {

struct BenchRanks {
  lockstep::RankInfo process;             // its rank and size: of the processes
  int threads = 1, per_thread = 1;        // of each process
  std::vector<lockstep::Device> devices;  // of this process's ranks

  // `threads` 0: one for each device when there is one process, else 1. Throws InvalidArgument for an environment that
  // makes no sense, and NotSupported where processes are brought together by MPI, in which each is one rank.
  static BenchRanks discover(const std::string& devices, int threads, int per_thread);

  int here() const { return threads * per_thread; }
  int size() const { return here() * process.size; }
  // Of this process's ranks. Blocks until all processes have called it.
  std::vector<std::unique_ptr<lockstep::Communicator>> connect(lockstep::Milliseconds timeout) const;
};

}  // namespace lockstep::bench
