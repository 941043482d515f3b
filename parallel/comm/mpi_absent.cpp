// Builds without MPI.
#include "lockstep/parallel/comm/mpi_communicator.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

bool mpi_available() { return false; }

std::unique_ptr<Communicator> make_mpi_communicator(Device, const MpiOptions&) {
  throw NotSupported("[make_mpi_communicator] this build of Lockstep has no MPI (LOCKSTEP_MPI)");
}

}  // namespace lockstep
