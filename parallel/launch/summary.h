// The end of a job for programs: what --json writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/job.h"

namespace lockstep::launch {

struct Round {
  Options options;
  JobEnd job;
};

// One JSON object: "code", "message", "first_failure" (a rank, or null), "keep_going", times in milliseconds since
// 1970, and in "ranks" an object for each that is known. With restarts, "rounds" has such an object of each round, the
// last of which is the whole's. Its "part" in the end is "first", "follower" (it failed
// because of another), "failed" (for itself, later), "ended" (by lockstep-run) or "well"; "code" or "signal" is null
// where there is none. What is no UTF-8 is replaced.
std::string job_json(const std::vector<Round>& rounds);

}  // namespace lockstep::launch
