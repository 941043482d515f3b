// Keeps oneDNN in the calling thread.
#pragma once

#include <omp.h>

namespace lockstep::kernels::host {

// oneDNN on Debian spreads over OpenMP threads: here a device is one thread. The caller's setting is restored.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

}  // namespace lockstep::kernels::host
