// Private to the library.
#pragma once

namespace lockstep::trace::detail {

// With LOCKSTEP_TRACE set: records from now on and writes the file when the process ends. Once, when devices are made.
void start_from_environment();

}  // namespace lockstep::trace::detail
