// Which GPU the calling thread talks to. Private to the library.
#pragma once

#include "lockstep/runtime/device.h"

namespace lockstep::cuda {

// A CUDA ordinal, as the process sees it. Only runtime/cuda and kernels/cuda deal in them; everything else names
// logical devices, of which several may share one GPU.
enum class Ordinal : int {};

Ordinal ordinal_of(Device device);
int compute_capability_major(Device device);  // 9 of 9.0

// Makes the GPU of `device` current until the scope ends, in its primary context, then the caller's GPU again, and a
// context that a library around us has made itself. The caller's is left alone where it has no context: setting it
// would create one (CUDA 12 and later), which costs memory on a GPU that nobody asked for. Meanwhile the thread's mode
// of stream captures is relaxed: a call of ours that might wait for a device, and be it a question to an event, would
// invalidate a capture that the program around us has begun in any thread. Costs a few thread-local reads when the GPU
// is current already. Throws DeviceError for a lost device.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device device);
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

 private:
  void make_current(Device device);

  int restore_ = -1;
  void* foreign_ = nullptr;  // CUcontext
  int capture_mode_;         // the thread's own (cudaStreamCaptureMode)
};

}  // namespace lockstep::cuda
