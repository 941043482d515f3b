// Raw memory calls, and whatever else makes a device or its driver stop and look around (handles, modules, pools), must
// not happen while a collective that spins on the device waits for other devices: the call would wait for the collective
// and the collective for what comes after the call. Growth holds the lock alone; a collective holds it shared from its
// enqueuing until it is through. Private to the library.
#pragma once

#include <shared_mutex>

namespace lockstep::detail {

inline std::shared_mutex& growth_mutex() {
  static std::shared_mutex* const mutex = new std::shared_mutex;
  return *mutex;
}

struct GrowthLock : std::unique_lock<std::shared_mutex> {
  GrowthLock() : unique_lock(growth_mutex()) {}
};
struct CollectiveLock : std::shared_lock<std::shared_mutex> {
  CollectiveLock() : shared_lock(growth_mutex()) {}
};

}  // namespace lockstep::detail
