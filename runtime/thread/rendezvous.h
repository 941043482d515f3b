// A barrier for threads that can be aborted and has a deadline (std::barrier has neither).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

class LOCKSTEP_API Rendezvous {
 public:
  explicit Rendezvous(int participants);

  // Blocks until all participants have arrived. Throws TimeoutError, naming who is missing, at the deadline, after
  // which the rendezvous is aborted for everybody; throws the abort's reason as Error when it is aborted.
  void arrive_and_wait(int participant, Deadline deadline);
  // Wakes all waiters with an Error; every later arrival throws it too. The first reason stays.
  void abort(std::string reason);
  bool aborted() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int participants_;
  int arrived_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t present_[4] = {};  // one bit per participant of this generation, for the message
  bool aborted_ = false;
  std::string reason_;
};

}  // namespace lockstep
