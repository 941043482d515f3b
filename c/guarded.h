// Between C++ and C: exceptions become a status and a sentence. Private to the library.
#pragma once

#include <concepts>
#include <exception>
#include <string>

#include "lockstep/c/lockstep.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

// Keeps what the exception that is being handled says, for lockstep_last_error().
lockstep_status status_of_exception() noexcept;

// The result of `body`, which must be a status where it is not void.
template <class F>
lockstep_status guarded(F&& body) noexcept {
  try {
    if constexpr (std::same_as<decltype(body()), lockstep_status>)
      return body();
    else
      body();
    return LOCKSTEP_OK;
  } catch (...) {
    return status_of_exception();
  }
}

inline void check_given(const void* pointer, const char* name) {
  if (!pointer) fail<InvalidArgument>("[C] expected a pointer for ", name, ", got NULL");
}
template <class T>
T& needed(T* pointer, const char* name) {
  check_given(pointer, name);
  return *pointer;
}

// Writes what `body` makes to `made`, NULL where it throws.
template <class T, class F>
lockstep_status guarded(T** made, F&& body) noexcept {
  return guarded([&] {
    needed(made, "what is made") = nullptr;
    *made = body();
  });
}

// NULL is cpu.
Device device_of(const char* text);

}  // namespace lockstep::detail
