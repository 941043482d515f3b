#include "lockstep/parallel/comm/mpi/mpi_version.h"

#include "lockstep/parallel/comm/mpi/mpi_library.h"

namespace lockstep::detail {

std::string mpi_version() {
  if (!mpi::library_error().empty()) return "";
  const std::string all = mpi::library().library;  // "Open MPI v4.1.4, package: ..., ident: ..."
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace lockstep::detail
