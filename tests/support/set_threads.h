// How many threads share a kernel, for the length of a scope.
#pragma once

#include "lockstep/runtime/host/host_options.h"

namespace support {

class Threads {
 public:
  explicit Threads(int count) { lockstep::set_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { lockstep::set_threads(0); }
};

}  // namespace support
