// One checkpoint, from its snapshot to its name. Private to the library.
#pragma once

#include <cstdint>
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

struct Save {
  std::int64_t step;
  std::string replicated;  // replicated_hash
  std::map<std::string, std::string> values;
  std::string problem;  // why this rank has no snapshot
};

// Every rank calls it. Throws Error, the same on every rank, when it has not become a whole checkpoint, and when older
// ones could not be removed. Blocks.
void write_step(const StepWriter& writer, const Save& save, Snapshot& snapshot, Milliseconds timeout);

}  // namespace lockstep::detail
