// Writes checkpoints while the training goes on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint/checkpoint.h"

namespace lockstep {

namespace detail {
class FileLayer;
}

struct CheckpointOptions {
  int keep = 2;  // so many whole ones stay, the newest; at least 1
  // While one is being written, save() waits for it, or does nothing and says so, which all ranks do alike.
  enum class Busy { wait, skip } busy = Busy::wait;
  // How long ranks wait for one another, and save(), wait() and close() for what is being written. Default: the
  // communicator's.
  std::optional<Milliseconds> timeout = std::nullopt;
  std::shared_ptr<detail::FileLayer> files = nullptr;  // for tests; null: the system's
};

// All ranks of a communicator have one, and make the same calls in the same order. Each writes its own files, in a
// thread of its own, which talks to those of the other ranks through a communicator that is split off the given one;
// the folder is one that all of them share. Used by one thread at a time.
//
// One checkpoint is written at a time. Rank 0 makes the folder, all write their files and have them on the disk, say so
// to each other, rank 0 writes the marker, renames the folder, and only then removes older ones: more than `keep`, and
// what writers left that were killed. What is wrong on one rank (a full disk, a device that failed) is an Error on
// every rank, "[CheckpointWriter] step 120: rank 3: cannot write '…': …", at the next call; nothing of that checkpoint
// is left then, the older ones are as they were, and the next save() tries again. A rank that has died is a CommError.
class LOCKSTEP_API CheckpointWriter {
 public:
  // Every rank calls it. Makes the folder. Error on every rank when that, or writing there, fails; InvalidArgument for
  // options.
  CheckpointWriter(const std::string& folder, Communicator& communicator, const CheckpointOptions& options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // As close(), but nobody hears of errors.
  ~CheckpointWriter();

  // Takes a snapshot of the tensors and returns, before it is on the disk: false when it did nothing (see Busy). The
  // copies are on the current streams of the devices: what is enqueued there later may write the tensors. They go to
  // pinned memory, of which the writer keeps as much as one snapshot needs. `values` are this rank's own; text is
  // UTF-8. Throws what an earlier one has failed with; InvalidArgument, which names the tensor, for what cannot be
  // saved: the other ranks, unless they refuse too, hear of it as of any other failure; TimeoutError while an earlier
  // one does not get done. A step that is not after the newest whole one in the folder is an Error at the next call.
  bool save(std::int64_t step, const std::vector<CheckpointEntry>& entries,
            const std::map<std::string, std::string>& values = {});
  // Throws what a save has failed with, once; waits for none. Ranks may hear of it at different steps, so the next
  // save() throws it again, on all of them.
  void check();
  // Until nothing is being written. Throws as save().
  void wait();
  // wait(), and no save() after it.
  void close();

  // The step of the last one that is whole; nothing before.
  std::optional<std::int64_t> saved_step() const;

 private:
  class Writing;
  std::shared_ptr<Writing> writing_;  // with its thread, which may outlast this by what the system makes it wait
};

}  // namespace lockstep
