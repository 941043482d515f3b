// The program's operator new, of which the k-th call fails: in whatever thread it comes.
#pragma once

#include <cstdint>

namespace memory_drill {

// From now on the k-th call throws std::bad_alloc; with `lasting` all after it too, until it is disarmed.
void arm(std::int64_t k, bool lasting);
// Whether a call has failed.
bool disarm();

// What has been asked for since the program began, by all threads.
struct Asked {
  std::int64_t calls, bytes;
};
Asked asked();

}  // namespace memory_drill
