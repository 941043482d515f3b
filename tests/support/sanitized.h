// Sanitizers look at who touches what, and when, which does not depend on dtypes and sizes: where a test goes through many
// of them, it does fewer there.
#pragma once

namespace support {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace support
