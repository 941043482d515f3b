// What a program enqueues, written down without being computed: the host mode "record".
//
//   LOCKSTEP_HOST_MODE=record LOCKSTEP_HOST_DEVICES=64 LOCKSTEP_RECORD=step.rec ./train
//
// Host devices have address ranges then, and no memory; kernels and copies do not run, and what is read of a device is
// zeros. Device threads, streams and events are as on devices that work on their own. The text names kernels (shapes,
// dtype, bytes, FLOP), copies, collectives, the edges between streams, each host thread's calls in their order, and
// where threads wait. There are no times in it: equal runs give equal bytes, where the program starts its own threads
// in an order that does not vary. lockstep-bench simulate says how long it takes on a machine; docs/simulate.md has the
// format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/backend.h"

namespace lockstep::record {

// Whether the host devices record. The first use of a device decides it.
LOCKSTEP_API bool active();
// An entry that names a place, without spaces. The simulator takes what lies between the last two marks "step" for a
// step. Nothing where nothing is recorded; may be called from any thread.
LOCKSTEP_API void mark(std::string_view name);
// Forgets what was recorded so far, such as making the model. No other thread may be enqueuing. Nothing where nothing
// is recorded.
LOCKSTEP_API void restart();
// How the recorded devices are linked, for what is chosen by it (runtime/topology.h): from device i to device j at
// i * n + j, of as many devices as there are. `lockstep-bench record --machine` takes it
// from a machine file. No other thread may use the devices. Throws InvalidArgument for another number of links, Error
// where nothing is recorded.
LOCKSTEP_API void set_links(const std::vector<DeviceLink>& links);
// What was recorded so far. No other thread may be enqueuing. Throws Error where nothing is recorded.
LOCKSTEP_API std::string text();
// Writes it. Throws Error when it cannot.
LOCKSTEP_API void write(const std::string& path);

namespace detail {
// With LOCKSTEP_RECORD set: writes the file when the process ends. Once, when devices are made. Throws InvalidArgument
// when the file cannot be written, or nothing is recorded.
void start_from_environment();
}  // namespace detail

}  // namespace lockstep::record
