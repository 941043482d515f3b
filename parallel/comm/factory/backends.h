// The communicators that make_communicator can make: a table with a row for each. A new one is a row more.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/factory/rank_traits.h"
#include "lockstep/parallel/comm/ranks/rank_info.h"
#include "lockstep/parallel/comm/store/store.h"

namespace lockstep::detail {

// What a rank makes its communicator of.
struct BackendArgs {
  std::shared_ptr<Store> store;  // of these ranks alone; null only for backends that need none
  RankInfo rank;
  Device device;
  Milliseconds timeout;
};

struct CommunicatorBackend {
  const char* name;                   // as it is asked for, and as Communicator::backend() says
  const char* works_on = nullptr;     // the kind of devices, "host" or "cuda"; null: every kind
  const char* default_for = nullptr;  // the kind of devices for which it may be chosen; null: only when asked for
  bool needs_store = true;            // the ranks find each other through a store; false: by themselves
  // Why this process cannot be one of the ranks; "": it can. May open a library, so it is only asked of a backend that
  // may be chosen. Null: every process can.
  std::string (*why_not_here)(const RankInfo& rank) = nullptr;
  // Why ranks that could use it one by one cannot together; "": they can. Depends on what they say of themselves alone.
  // Null: all can.
  std::string (*why_not_together)(const RankTopology& ranks) = nullptr;
  std::unique_ptr<Communicator> (*make)(const BackendArgs& args);
  // The library that it uses, for build_info(), and the version that is there ("": none); null: none is used.
  const char* library = nullptr;
  std::string (*library_version)() = nullptr;
};

// In the order of preference.
std::span<const CommunicatorBackend> communicator_backends();

}  // namespace lockstep::detail
