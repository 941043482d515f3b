// --health: are the nodes fit for a job?
#pragma once

#include <string>

#include "lockstep/parallel/launch/json_file.h"
#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

// Looks at this node and meets the others in the store; node 0 asks them one after the other, and judges. Every node
// writes the same table to standard output, and the same JSON. Blocks; a node that does not come, or does not go on,
// is named after the options' timeout. Nothing is started, and no file but that of --json is written. Returns the code
// to exit with: 0 when all are fit, else 1. Throws Error where the store cannot be served or reached.
int check_health(const Options& options, const std::string& token, JsonFile& file);

}  // namespace lockstep::launch
