// Ranks that are the processes of an MPI job, on any number of machines, with tensors in host memory.
#pragma once

#include <memory>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

struct MpiOptions {
  Milliseconds timeout = kDefaultTimeout;
};

// Whether this build has MPI, and this process is a rank of a job of it: an MPI launcher has started it (its variables
// are in the environment), or the application has initialised MPI.
LOCKSTEP_API bool mpi_available();

// A communicator of all ranks of MPI_COMM_WORLD, which is rank and size; every rank calls it, as often as the others.
// `device` is a host device of this process. Only bytes travel through MPI: reductions are done here, in the order of
// the ranks, and give the bits that shared-memory ranks get. A collective occupies the thread of its stream until this
// rank's part of it is done (in host mode inline: the caller).
//
// All MPI calls come from one thread of the library's own, which also initialises MPI, unless the application has, and
// then finalises it at exit. The application's MPI must allow MPI_THREAD_SERIALIZED at least, and with no more than
// that, it makes no MPI calls while a communicator is in use.
//
// After a failure the surviving ranks can use the communicators that are not broken, to save what they have; but an
// MPI job cannot be mended: most launchers end all ranks when one dies, and at exit a rank that has seen a failure
// waits for the others only briefly, after which the launcher ends them. Start the job again.
//
// Throws NotSupported in a build without MPI, CommError when MPI cannot be initialised or not all ranks have come
// before the deadline.
LOCKSTEP_API std::unique_ptr<Communicator> make_mpi_communicator(Device device, const MpiOptions& options = {});

}  // namespace lockstep
