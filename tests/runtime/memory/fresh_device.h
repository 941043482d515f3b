#pragma once

#include "lockstep/runtime/memory/allocator.h"

namespace runtime_test {

// A device as a test wants to find it; what it was given must have come back.
class FreshDevice {
 public:
  explicit FreshDevice(lockstep::Device device) : device_(device) {
    lockstep::empty_cache(device);
    lockstep::reset_peak(device);
    before_ = lockstep::memory_stats(device);
  }
  ~FreshDevice() {
    lockstep::set_memory_limit(device_, 0);
    lockstep::empty_cache(device_);
  }
  std::uint64_t raw_allocations() const {
    return lockstep::memory_stats(device_).raw_allocations - before_.raw_allocations;
  }
  std::uint64_t raw_frees() const { return lockstep::memory_stats(device_).raw_frees - before_.raw_frees; }

 private:
  lockstep::Device device_;
  lockstep::MemoryStats before_;
};

}  // namespace runtime_test
