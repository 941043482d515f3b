// The end of a job for programs: what --json writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/ends.h"

namespace lockstep::launch {

// One JSON object: "code", "message", "first_failure" (a rank, or null), "keep_going", times in milliseconds since
// 1970, and in "ranks" an object for each that is known. Its "part" in the end is "first", "follower" (it failed
// because of another), "failed" (for itself, later), "ended" (by lockstep-run) or "well"; "code" or "signal" is null
// where there is none. What is no UTF-8 is replaced.
std::string job_json(const Options& options, const End& end, std::int64_t began, const std::vector<RankEnd>& ranks);

}  // namespace lockstep::launch
