// Whether memory goes straight from one device to another.
#pragma once

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// True when copies from `source` to `destination`, two devices of one kind, need no detour through host memory: the
// backend says that they reach each other, and bytes that were written have arrived. (There are machines that claim
// peer access and lose the writes.) The first question about a pair tries it out, which allocates a little and waits
// for both devices; later ones are free. Thread-safe.
LOCKSTEP_API bool peer_copies(Device source, Device destination);

namespace detail {
inline constexpr Milliseconds kTrialTimeout{60'000};
// Forgets what was found out; trials from now on may take that long. For tests that change the links.
LOCKSTEP_API void forget_peers(Milliseconds trial_timeout = kTrialTimeout);
}  // namespace detail

}  // namespace lockstep
