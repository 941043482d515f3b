// Starting the threads that the library keeps for itself. Private to the library.
#pragma once

#include <csignal>
#include <string>

#include "lockstep/runtime/unique_function.h"

namespace lockstep::detail {

// While it lives this thread, and threads that it starts, block signals: those belong to the program's own threads. But
// for those that a thread's own fault raises: a program that reports its crashes hears of ours too.
class BlockedSignals {
 public:
  BlockedSignals() noexcept;
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals();

 private:
  sigset_t before_;
};

// Runs `body`, which must not throw, in a detached thread with signals blocked, as above. Names longer than 15
// characters are cut. Throws std::system_error when there is no thread to be had.
void start_service_thread(const std::string& name, UniqueFunction body);

}  // namespace lockstep::detail
