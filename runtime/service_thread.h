// Starting the threads that the library keeps for itself. Private to the library.
#pragma once

#include <string>

#include "lockstep/runtime/unique_function.h"

namespace lockstep::detail {

// Runs `body`, which must not throw, in a detached thread with all signals blocked: signals belong to the program's own
// threads. Names longer than 15 characters are cut. Throws std::system_error when there is no thread to be had.
void start_service_thread(const std::string& name, UniqueFunction body);

}  // namespace lockstep::detail
