// The version of MPI that is there. Private to the library.
#pragma once

#include <string>

namespace lockstep::detail {

// "Open MPI v4.1.4"; empty without one that can be used. Opens the plug-in.
std::string mpi_version();

}  // namespace lockstep::detail
