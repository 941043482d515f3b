// What an operation that Lockstep does not know uses, for the order checker.
#pragma once

#include <span>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

// Says what the operation that is enqueued on `stream` next reads and writes. Does nothing for streams that are not
// checked(). Throws RaceError when it is not ordered after an operation it conflicts with or when it uses memory that
// has been released, InvalidArgument when the memory is another device's or the use goes beyond an allocation; it must
// not be enqueued then. `operation` must live for ever.
LOCKSTEP_API void declare(const Stream& stream, const char* operation, std::span<const MemoryUse> uses,
                          Place place = {__builtin_FILE(), __builtin_LINE()});

}  // namespace lockstep
