// Fewer changes of the current device. Private to the library.
#pragma once

namespace lockstep::detail {

struct KeptDevice {
  int depth = 0, device = 0;
  void (*restore)(int device) noexcept = nullptr;  // null: nothing has been changed
};
inline constinit thread_local KeptDevice kept_device;

// While one lives, calls for other devices than the thread's leave theirs current, where each gives it back otherwise:
// what does many of them by turns changes the device once a turn. At the end of the outermost the thread has its own
// again. No code of users runs inside.
class KeepDevice {
 public:
  KeepDevice() { ++kept_device.depth; }
  KeepDevice(const KeepDevice&) = delete;
  KeepDevice& operator=(const KeepDevice&) = delete;
  ~KeepDevice() {
    if (--kept_device.depth > 0 || !kept_device.restore) return;
    kept_device.restore(kept_device.device);
    kept_device.restore = nullptr;
  }

  // By a backend that has made another device current and would give `device` back now. False: it is to do so.
  static bool later(int device, void (*restore)(int device) noexcept) {
    if (kept_device.depth == 0) return false;
    if (!kept_device.restore) kept_device.device = device, kept_device.restore = restore;
    return true;
  }
};

}  // namespace lockstep::detail
