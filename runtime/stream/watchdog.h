// Collectives that are on devices and can fail there: whoever waits on the host for a device looks at them too, and a
// thread of the library does when nobody waits. Private to the library.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

class InFlight {
 public:
  virtual ~InFlight() = default;
  // Looks at what is on the way. What has failed is broken off, then `failed()` says so. Any thread; returns at once
  // while another one looks.
  virtual void poll() noexcept = 0;
  // Another rank of the process has failed, of the communicator `of`: what is on the way here is broken off too, since
  // ending the one may wait for the other.
  virtual void break_off(const CommError& why, const std::string& of) noexcept = 0;
  // Throws what has failed to who waits for its device, once.
  virtual void tell(Device waiting) = 0;
};

// From now on it is polled, by a thread of the library too.
void add_in_flight(const std::shared_ptr<InFlight>& watched);
void remove_in_flight(const InFlight* watched) noexcept;

inline constinit std::atomic<int> watched_count{0};
inline bool anything_watched() { return watched_count.load(std::memory_order_acquire) > 0; }

void poll_in_flight() noexcept;
void break_off_all(const CommError& why, const std::string& of, const InFlight* but) noexcept;
void tell_in_flight(Device waiting);

}  // namespace lockstep::detail
