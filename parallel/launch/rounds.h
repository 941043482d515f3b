// A job in rounds: when something fails, what is left of it ends and begins again.
#pragma once

#include <string>

#include "lockstep/parallel/launch/json_file.h"
#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

// Runs the ranks of this machine, in one round or, with Options::restarts, as many more as it takes. With one machine a
// round that lost ranks goes on with those that are left, as long as these are at least min_ranks; else with all of
// them, or max_ranks. With several, each round has the machines that are there (Membership). Each round has a token of
// its own. Returns the code to exit with, that of the last round.
int run_rounds(const Options& options, const std::string& token, JsonFile& json);

}  // namespace lockstep::launch
