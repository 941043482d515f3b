// The devices that tests name, in the programs that run them on CUDA devices: the tests know of eight, of which number
// 6 has half the memory of the others and number 7 half the multiprocessors; a machine may have fewer, and equal ones.
// A case that names a device which is not there ends with a sentence instead of a verdict. To be called by the thread
// that runs the case.
#pragma once

#include <string>

#include "lockstep/runtime/backend.h"
#include "support/catch.h"

namespace support {

inline constexpr int kDevicesOfTests = 8;

[[noreturn]] inline void skip(const std::string& why) {
#ifdef SKIP
  SKIP(why);
#else  // an older Catch2 has no word for it; a case that ends so has failed nothing
  WARN("skipped: " << why);
  throw Catch::TestFailureException();
#endif
}

inline int cuda_device_count() {
  static const int count = [] {
    int found = 0;
    for (const lockstep::Device device : lockstep::all_devices()) found += device.type() == lockstep::DeviceType::cuda;
    return found;
  }();
  return count;
}

inline lockstep::Device cuda_device(int index) {
  const int count = cuda_device_count();
  if (index >= count && index < kDevicesOfTests) {  // what is beyond these is not meant to exist
    skip("more than " + std::to_string(index) + " devices expected, " + std::to_string(count) + " found");
  }
  return lockstep::Device::cuda(index);
}

}  // namespace support
