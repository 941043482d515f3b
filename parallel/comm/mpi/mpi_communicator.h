// Ranks that are the processes of an MPI job, on any number of machines, with tensors in host memory.
//
// Nothing here needs MPI to build or start. What talks to MPI is the plug-in liblockstep_mpi.so, compiled against the
// MPI that was there when Lockstep was built and opened when the first communicator is made: LOCKSTEP_MPI_LIBRARY names
// it, else it is looked for beside the library (or the program that holds a static one), in ../lib of that folder, and
// where the dynamic linker looks.
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

struct MpiOptions {
  Milliseconds timeout = kDefaultTimeout;
  // Where this rank is: ranks of one name share the links to others. Empty: the machine's name.
  std::string host = {};
};

// Empty when this process is a rank of an MPI job (an MPI launcher has started it: its variables are in the
// environment; or the application has initialised MPI) and the plug-in can be opened, else why not.
LOCKSTEP_API std::string why_no_mpi();
inline bool mpi_available() { return why_no_mpi().empty(); }

// A communicator of all ranks of MPI_COMM_WORLD, which is rank and size; every rank calls it, as often as the others.
// `device` is a host device of this process. Only bytes travel through MPI: reductions are done here, in the order of
// the ranks, and give the bits that shared-memory ranks get. Where the ranks are on several hosts, as many on each and
// one host after another, large sums (max, min, products) go between hosts once in each direction and not once per rank
// (mpi_hosts.cpp). A collective occupies the thread of its stream until this
// rank's part of it is done (in host mode inline: the caller).
//
// All MPI calls come from one thread of the library's own, which also initialises MPI, unless the application has, and
// then finalises it at exit. The application's MPI must allow MPI_THREAD_SERIALIZED at least, and with no more than
// that, it makes no MPI calls while a communicator is in use.
//
// After a failure the surviving ranks can use the communicators that are not broken, to save what they have. But an MPI
// job cannot be mended: start it again. Most launchers end all ranks when one dies. A rank that has seen a failure
// waits for the others at its exit: two minutes for those that speak, two seconds for those that had been silent. Then
// it leaves MPI to the launcher, which ends them.
//
// Throws NotSupported without the plug-in, CommError when MPI cannot be initialised or not all ranks have come
// before the deadline.
LOCKSTEP_API std::unique_ptr<Communicator> make_mpi_communicator(Device device, const MpiOptions& options = {});

}  // namespace lockstep
