// A way to stop what a thread computes between the layers of a network: each call of a module asks.
#pragma once

#include <functional>

#include "lockstep/runtime/api.h"

namespace lockstep {

// Throws when nobody waits any more for what the calling thread computes: Cancelled, in a replica of a ReplicaPool all
// of whose requests have ended. Else does nothing. Each call of a module asks; for loops of one's own inside of one.
LOCKSTEP_API void check_interrupt();

namespace detail {

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

}  // namespace detail
}  // namespace lockstep
