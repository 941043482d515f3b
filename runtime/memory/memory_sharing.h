// Whether size classes share memory on a device that is full: speed against what fits.
#pragma once

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// Where a device has no more memory, or its limit is reached, the caching allocator cuts free blocks and joins them, so
// that work whose sizes change settles without raw memory. But a segment of which a part is in use cannot go back: of a
// device that is nearly full only parts may be left then, and a request fails that had fit. Without sharing whole
// segments go back and come anew, step by step, which is slow and fits.
//
// So memory is shared while the device holds at least `multiple` times what was in use at the most: 2 at the start.
// With 0 always, as PyTorch does; with infinity only where a request would fail otherwise. InvalidArgument for a
// negative number or NaN. At any time, in any thread.
LOCKSTEP_API void set_memory_sharing(Device device, double multiple);

}  // namespace lockstep
