#include "lockstep/tensor/pending_reads.h"

#include <algorithm>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep {

void PendingReads::add(const Stream& copies, std::shared_ptr<const Event> done) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const Read& read) { return read.on == &copies.body(); };
  auto found = std::find_if(reads_.begin(), reads_.end(), same);
  if (found == reads_.end()) found = reads_.insert(found, {&copies.body(), nullptr});
  found->done = std::move(done);
  settled_.store(nullptr, std::memory_order_release);
}

void PendingReads::await_all(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  for (const Read& read : reads_) LOCKSTEP_EDGE(stream.wait(*read.done));
  // Another library may end its stream and get the next one under the same handle.
  if (!detail::state_of(stream).foreign) settled_.store(&stream.body(), std::memory_order_release);
}

}  // namespace lockstep
