#include "lockstep/runtime/stream/declare.h"

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep {

void declare(const Stream& stream, const char* operation, std::span<const MemoryUse> uses, Place place) {
  if (!stream.checked()) return;
  for (const MemoryUse& use : uses) {
    LOCKSTEP_CHECK(use.device == stream.device(), "[", operation, "] expected memory of ", stream.device(), ", got ",
                   use.device);
  }
  detail::OrderChecker::active()->use(stream.handle(), operation, uses, place);
}

}  // namespace lockstep
