// What writing and reading a Runner's checkpoints have in common. Private to the library.
#pragma once

#include <exception>
#include <string>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

constexpr const char* kRunnerFormat = "lockstep.runner";    // a key of the metadata
constexpr const char* kLastCheckpoint = "last_checkpoint";  // file with the name of the newest

// What the system says of the last call that failed.
std::string reason_of(int error);
[[noreturn]] void fail_to_write(const std::string& path, int error);
// The whole text, or what was there before.
void replace_file(const std::string& path, const std::string& text);

// Rank 0 does it; all ranks throw what it throws.
template <class F>
void on_rank_0(Communicator* communicator, F&& work) {
  if (!communicator || communicator->size() == 1) return work();
  std::string failure;
  std::exception_ptr error;
  if (communicator->rank() == 0) try {
      work();
    } catch (const std::exception& caught) {
      error = std::current_exception();
      failure = caught.what();
    }
  failure = communicator->broadcast_bytes(failure, 0);
  if (error) std::rethrow_exception(error);
  if (!failure.empty()) fail<Error>("[Runner] rank 0 failed: ", failure);
}

}  // namespace lockstep::detail
