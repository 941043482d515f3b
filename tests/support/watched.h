// Sanitizers, the order checker and the fake CUDA runtime look at who touches what, and when, which does not depend on
// dtypes and sizes, and take their time for it: where a test goes through many of them, it does fewer there.
#pragma once

#include <cstdlib>
#include <string_view>

namespace support {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(LOCKSTEP_TESTS_ON_CUDA)
inline constexpr bool kWatched = true;
#else
inline constexpr bool kWatched = false;
#endif

inline bool watched() {
  const char* mode = std::getenv("LOCKSTEP_HOST_MODE");
  return kWatched || (mode && std::string_view(mode) == "strict");
}

}  // namespace support
