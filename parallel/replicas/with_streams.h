// Private to the library.
#pragma once

#include <span>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

// Calls `body` where each of the streams is current for its device.
template <class F>
void with_streams(std::span<StreamBody* const> streams, F&& body) {
  if (streams.empty()) return body();
  LOCKSTEP_EDGE_SCOPE(StreamScope, scope, *streams.front());
  with_streams(streams.subspan(1), body);
}

}  // namespace lockstep::detail
