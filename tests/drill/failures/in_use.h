// What a process holds: memory, threads and open files.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/runtime/device.h"

namespace failures {

struct InUse {
  std::size_t memory = 0, threads = 0;  // memory: bytes of the host and of the devices
  std::vector<std::string> files;       // without those of the fake, which forgets no group
  std::string text() const;
};
InUse in_use(const std::vector<lockstep::Device>& devices);

}  // namespace failures
