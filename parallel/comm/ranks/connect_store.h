// The store in which the ranks of a job find each other.
#pragma once

#include <memory>

#include "lockstep/parallel/comm/ranks/rank_info.h"
#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/runtime/api.h"

namespace lockstep {

struct ConnectOptions {
  Milliseconds connect_timeout{300'000};  // until the store can be reached
  Milliseconds timeout{60'000};           // for the answer to a call
};

// The store of the job. Rank 0 serves it, for as long as it keeps what this returns, unless the launcher does; one
// rank without a store's address gets a store of its own. The token is store_token(). Throws InvalidArgument when no
// address is known, and what TcpStoreServer and make_tcp_store throw.
LOCKSTEP_API std::shared_ptr<Store> connect_store(const RankInfo& ranks, const ConnectOptions& options = {});

}  // namespace lockstep
