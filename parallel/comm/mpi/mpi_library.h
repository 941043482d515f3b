// The plug-in that talks to MPI, opened when it is first needed.
#pragma once

#include <string>

#include "lockstep/parallel/comm/mpi/mpi_abi.h"

namespace lockstep::mpi {

// LOCKSTEP_MPI_LIBRARY, else liblockstep_mpi.so beside the library or the program, in ../lib of that, or where the
// dynamic linker looks. Throws NotSupported.
const Table& library();
const std::string& library_error();  // "": there is one

// Whether MPI is in use in this process, by whomever. Does not open anything.
bool in_use();

}  // namespace lockstep::mpi
