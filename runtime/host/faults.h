// Faults that the virtual host devices inject on request. All of them are off until asked for; asking and clearing may
// happen at any time from any thread. Counts begin with 1, the next one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "lockstep/runtime/device.h"

namespace lockstep::detail {

class HostFaults {
 public:
  // The count-th raw allocation of a host device from now on, and those right after it, find no memory. As many of them
  // as the allocator tries before it gives up, unless told otherwise.
  void fail_allocation(int count, int length = 8);
  // The count-th task (kernel, copy, fill, host task) from now on throws, sleeps, or hangs until release().
  void throw_in_task(int count) { throw_.store(count, std::memory_order_relaxed); }
  void delay_task(int count, std::chrono::microseconds by);
  void hang_task(int count) { hang_.store(count, std::memory_order_relaxed); }
  void release();

  // Device `from` cannot reach the memory of device `to`.
  void deny_peer(int from, int to) { links_[from][to].store(kDenied, std::memory_order_relaxed); }
  // Copies from one device straight to the other claim success and write nothing.
  void lose_writes(int source, int destination) {
    links_[source][destination].store(kLossy, std::memory_order_relaxed);
  }

  // "allocation=3,throw=10,delay=5,hang=9,deny=0-1,lose=2-3": any of these; or "seed=7", which draws one of them for
  // `devices` devices. Throws InvalidArgument for other text.
  void inject(std::string_view text, int devices);
  void inject(std::uint64_t seed, int devices);
  // Ends all faults and lets what hangs go on.
  void clear();

  // Whether an allocation, a task or a link of the device (its first one) was struck since the last clear().
  bool struck(int device) const { return struck_[device].load(std::memory_order_relaxed); }

  // Asked by the backends.
  bool allocation_fails(int device);
  void before_task(Device device);  // may throw, sleep or hang
  bool peer_denied(int from, int to) { return link_is(from, to, kDenied); }
  bool writes_lost(int source, int destination) { return link_is(source, destination, kLossy); }

 private:
  static constexpr std::uint8_t kDenied = 1, kLossy = 2;

  bool link_is(int from, int to, std::uint8_t state) {
    if (links_[from][to].load(std::memory_order_relaxed) != state) [[likely]]
      return false;
    strike(from);
    return true;
  }
  void strike(int device) { struck_[device].store(true, std::memory_order_relaxed); }
  // Relaxed, and no mutex unless a fault happens: the streams must not be ordered by being asked, or ThreadSanitizer
  // would see no race between them.
  static bool hits(std::atomic<int>& countdown) {
    return countdown.load(std::memory_order_relaxed) > 0 && countdown.fetch_sub(1, std::memory_order_relaxed) == 1;
  }

  std::atomic<int> allocation_{0}, allocations_to_fail_{0}, throw_{0}, delay_{0}, hang_{0};
  std::atomic<std::int64_t> delay_microseconds_{0};
  std::atomic<std::uint8_t> links_[kMaxDevices][kMaxDevices] = {};
  std::atomic<bool> struck_[kMaxDevices] = {};

  std::mutex mutex_;
  std::condition_variable released_;
  std::uint64_t releases_ = 0;
};

HostFaults& host_faults();

}  // namespace lockstep::detail
