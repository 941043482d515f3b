// A replay as a timeline, for ui.perfetto.dev or chrome://tracing.
#pragma once

#include <string>

#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::simulate {

// JSON (Chrome's trace event format): a row for each host thread and each stream, and the rate of each link that was
// used, if the replay kept rates. Microseconds, with nanoseconds behind the point.
std::string trace_json(const Recording& recording, const Result& result);

}  // namespace lockstep::simulate
