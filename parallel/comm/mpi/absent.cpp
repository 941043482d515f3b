// A build without MPI.
#include "lockstep/parallel/comm/mpi/mpi_communicator.h"
#include "lockstep/parallel/comm/mpi/mpi_version.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

std::string detail::mpi_version() { return ""; }
std::string why_no_mpi() { return "[mpi] expected a build with MPI (LOCKSTEP_MPI), got one without"; }

std::unique_ptr<Communicator> make_mpi_communicator(Device, const MpiOptions&) { throw NotSupported(why_no_mpi()); }

}  // namespace lockstep
