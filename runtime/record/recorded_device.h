// Which device the calling thread talks to, where calls are recorded. Private to the library.
#pragma once

#include <new>

#include "lockstep/runtime/keep_device.h"
#include "lockstep/runtime/record/recorder.h"

namespace lockstep::detail {

// A call for a device that is not the thread's changes it and changes it back, as the CUDA backend does.
class RecordedDevice {
 public:
  explicit RecordedDevice(int index) : before_(current) {
    if (index == before_) return;
    set(index);
    away_ = !KeepDevice::later(before_, set);
  }
  RecordedDevice(const RecordedDevice&) = delete;
  RecordedDevice& operator=(const RecordedDevice&) = delete;
  ~RecordedDevice() {
    if (away_) set(before_);
  }

  static void bind(int index) { current = index; }  // the thread works for this device

 private:
  static void set(int index) noexcept {
    current = index;
    try {
      Recorder::active()->call("set_device");
    } catch (const std::bad_alloc&) {  // an entry less
    }
  }
  static inline constinit thread_local int current = 0;

  const int before_;
  bool away_ = false;
};

}  // namespace lockstep::detail
