// Times as lockstep-run says and compares them.
#pragma once

#include <chrono>
#include <cstdint>

#include "lockstep/runtime/deadline.h"

namespace lockstep::launch {

inline double seconds(Milliseconds time) { return std::chrono::duration<double>(time).count(); }

// What this machine's clock on the wall says: milliseconds since 1970, whole or with their parts.
template <class T>
T wall_clock() {
  using Time = std::chrono::duration<T, std::milli>;
  return std::chrono::duration_cast<Time>(std::chrono::system_clock::now().time_since_epoch()).count();
}
inline std::int64_t now_milliseconds() { return wall_clock<std::int64_t>(); }

}  // namespace lockstep::launch
