// A way to stop what a thread computes between the layers of a network: each call of a module asks.
#pragma once

#include <functional>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// While it lives, each call of a module in this thread calls `check` first, which throws to stop it. Scopes nest; the
// innermost is asked.
class LOCKSTEP_API InterruptScope {
 public:
  explicit InterruptScope(const std::function<void()>& check);
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

 private:
  const std::function<void()>* outer_;
};

// For loops of one's own, such as one over tokens.
LOCKSTEP_API void check_interrupt();

}  // namespace lockstep::detail
