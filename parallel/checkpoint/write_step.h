// One checkpoint, from its snapshot to its name. Private to the library.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint/file_layer.h"
#include "lockstep/parallel/checkpoint/snapshot.h"
#include "lockstep/parallel/comm/communicator.h"

namespace lockstep::detail {

// Why there can be no checkpoints in a folder, which is made when it is not there; empty: there can.
std::string why_no_checkpoints(const std::string& folder);

// Of the names, shapes and dtypes that are the same on every rank; empty without any.
std::string replicated_hash(const std::vector<CheckpointEntry>& entries);

struct StepWriter {
  std::string folder;
  Communicator& communicator;
  FileLayer& files;
  int keep;
};

struct StepSave {
  std::int64_t step = 0;
  std::string replicated = {};  // replicated_hash
  std::map<std::string, std::string> values = {};
  std::string problem = {};  // why this rank has no snapshot; its caller does not know
  std::string refusal = {};  // why this rank has nothing to save; its caller knows
};

// What the error says, without the prefix that the errors of all ranks get.
std::string reason_of(const std::exception& error);

// Every rank calls it. Whether there is a checkpoint now: not when all ranks refuse. Throws Error, the same on every
// rank, when it has not become a whole one, when some ranks refuse, and when older ones could not be removed. Blocks.
bool write_step(const StepWriter& writer, const StepSave& save, Snapshot& snapshot, Milliseconds timeout);

}  // namespace lockstep::detail
