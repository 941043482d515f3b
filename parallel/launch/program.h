// Whether a machine can run the job's program.
#pragma once

#include <optional>
#include <string>

#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

// As shells have it, and all that starts programs for others (env, nice, timeout).
inline constexpr int kCannotRun = 126, kNotFound = 127;

// The end of a job whose program cannot be run because of this error of execvpe.
End cannot_run(const std::string& program, int error);

// Why it cannot, as far as that can be told without running it: execvpe would find no such file, or none that this user
// may run.
std::optional<End> why_not_run(const std::string& program);

}  // namespace lockstep::launch
