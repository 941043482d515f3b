// Raw memory calls, and whatever else makes a device or its driver stop and look around (handles, modules, pools), must
// not happen while a collective that spins on the device waits for other devices: the call would wait for the
// collective and the collective for what comes after the call. So growth waits until no collective is on its way, and a
// collective until nobody grows. Private to the library.
//
// This does not deadlock: who grows waits for collectives that are all on their devices, never the other way round for
// growth that only waits its turn. Ranks that are threads of one process meet before they begin a collective, so none
// of them can be growing while another's half spins. A collective that never ends is broken off at its deadline, by the
// very thread that waits here.
#pragma once

namespace lockstep::detail {

// Held while growing, by one thread at a time, which may hold several: a memory resource of the program's calls the
// backend.
class GrowthLock {
 public:
  GrowthLock();
  GrowthLock(const GrowthLock&) = delete;
  GrowthLock& operator=(const GrowthLock&) = delete;
  ~GrowthLock();
};

// Before a collective is enqueued, and when it is through; any thread may end what another has begun. Throws
// InvalidArgument in a thread that grows: it would wait for itself.
void begin_collective();
void end_collective() noexcept;

}  // namespace lockstep::detail
