// A value that a TCP store's key gets when a process has gone. Private to the library and its launcher.
#pragma once

#include <string>

#include "lockstep/parallel/comm/fd.h"
#include "lockstep/parallel/comm/store/tcp_store.h"

namespace lockstep::detail {

// A connection of its own to the store. Once it has closed, because this descriptor is or because the process has ended
// in whatever way, the store sets `key` to `value`, unless the key has a value by then. A machine that cannot be
// reached any more closes nothing. Blocks until the store knows it. Throws what make_tcp_store throws, and
// InvalidArgument for a key or a value of more than Store::kMaxKeyBytes.
LOCKSTEP_API Fd leave_will(const TcpStoreOptions& options, const std::string& key, const std::string& value);

}  // namespace lockstep::detail
