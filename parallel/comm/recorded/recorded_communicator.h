// Communicators of host devices that record (runtime/record/record.h): their collectives are entries of the recording.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep::detail {

// Whether ranks on the device are recorded.
bool is_recorded(Device device);

// One rank whose fellows are not there: they are taken to be as this one is, and what they would bring (messages,
// hashes of parameters) is what it brings. There are `local_size` ranks on each host. It waits for nobody. split() and
// shrink() throw NotSupported.
std::unique_ptr<Communicator> make_recorded_rank(int rank, int size, int local_size, Device device,
                                                 Milliseconds timeout);

// Ranks that are threads of this process and recorded together: messages between the hosts arrive.
std::vector<std::unique_ptr<Communicator>> make_recorded_group(std::span<const Device> devices, Milliseconds timeout);

}  // namespace lockstep::detail
