// What a pool keeps of one of its replicas, all of it under the pool's mutex. Private to the library.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "lockstep/parallel/serving/serving_pool.h"

namespace lockstep::detail {

struct ServingPool::Replica {
  Replica(int number, Device on) : index(number) { stats.device = on; }

  const int index;
  ReplicaStats stats;
  // What it computes, null where it has given up: changed by its own thread alone, which reads it without the mutex.
  Requests running;
  // Its thread's; kept for their memory.
  Requests done;
  std::vector<End> ends;
  Clock::time_point began{};
  std::deque<std::function<void()>> chores;
  bool started = false, ended = false;
  std::string refused;  // why its thread could not start as the options want it
};

}  // namespace lockstep::detail
