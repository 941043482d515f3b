// Telling AddressSanitizer which bytes of cached memory nobody may touch. Private to the library.
#pragma once

#include <cstddef>

#include "lockstep/runtime/device.h"

#if defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOCKSTEP_POISONS 1
#endif
#endif

#ifdef LOCKSTEP_POISONS
#include <sanitizer/asan_interface.h>
#endif

namespace lockstep::detail {

#ifdef LOCKSTEP_POISONS
inline constexpr bool kPoisons = true;
inline void poison(Device device, const void* memory, std::size_t bytes) noexcept {
  if (properties(device).host_memory) __asan_poison_memory_region(memory, bytes);
}
inline void unpoison(Device device, const void* memory, std::size_t bytes) noexcept {
  if (properties(device).host_memory) __asan_unpoison_memory_region(memory, bytes);
}
#else
inline constexpr bool kPoisons = false;
inline void poison(Device, const void*, std::size_t) noexcept {}
inline void unpoison(Device, const void*, std::size_t) noexcept {}
#endif

}  // namespace lockstep::detail
