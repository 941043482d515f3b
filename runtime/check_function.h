// Functions that callers pass. Private to the library.
#pragma once

#include <type_traits>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

// Throws InvalidArgument for one that is none: an empty std::function, a null pointer.
template <class F>
void check_function(const char* op, const F& function) {
  if constexpr (!std::is_function_v<F> && requires { function == nullptr; })
    LOCKSTEP_CHECK(!(function == nullptr), "[", op, "] expected a function, got an empty one");
}

}  // namespace lockstep::detail
