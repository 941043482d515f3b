// What stands behind a Stream besides the backend's handle: how the allocator and flushes find it. Private to the
// library.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "lockstep/runtime/size_classes.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

struct MemoryBlock;

namespace detail {

class DeviceAllocator;

// Of a copy between devices, as one of the two sees it.
enum class CopyDirection : std::uint8_t { in, out };
inline constexpr int kCopyDirections = 2;

struct StreamState : StreamBody {
  DeviceAllocator* allocator = nullptr;
  std::atomic<int> holders{0};                            // handles that keep it out of the pool
  std::atomic<StreamBody*> copies[kCopyDirections] = {};  // copies_of, by direction
  // Where memory for it comes from while it is captured, and nobody may mark its work then; else null. Written under
  // the allocator's mutex and `marking`, which are taken in this order.
  std::atomic<StreamState*> pool{nullptr};
  std::mutex marking;

  // The rest is guarded by the allocator's mutex.
  MemoryBlock* bins[kSizeClasses] = {};  // free blocks by size class
  StreamState* next = nullptr;
  bool foreign = false;
  bool suspended = false;  // a foreign stream that no handle holds: its owner may have destroyed it
  // No stream, but the memory of a graph: what is free inside it while it is captured is in the bins.
  enum class Graph : std::uint8_t { none, captured, kept, retired } graph = Graph::none;
  StreamState* captured = nullptr;  // what it is the memory for
  int handed_out = 0;               // of its blocks
  MemoryBlock* held = nullptr;      // free blocks that only the graph's end makes anybody's
};
inline StreamState& state_of(StreamBody& body) { return static_cast<StreamState&>(body); }
inline StreamState& state_of(const Stream& stream) { return state_of(stream.body()); }

// How many streams there are with this one: it, and those for its copies.
inline int count_with_copies(StreamBody* stream) {
  if (!stream) return 0;
  int count = 1;
  for (const auto& copies : state_of(*stream).copies)
    count += count_with_copies(copies.load(std::memory_order_acquire));
  return count;
}

// The stream for copies between devices that `stream` is to wait for: the device's stream for copies into it or out of
// it for the default stream, else one that belongs to `stream` for ever, of its priority. On a stream that others share
// a copy would wait for their work too, and with it for ranks of theirs, which may wait for ours. A link carries both
// directions at once, so each has a stream.
Stream copies_of(const Stream& stream, CopyDirection direction = CopyDirection::in);
// The stream for copies into the device of `stream` on one of several lanes (runtime/topology.h), which arrive side by
// side: of lane 0 that of copies_of, of each further one the stream for copies of the one before.
Stream lane_copies_of(const Stream& stream, std::size_t lane);

// Events are pooled by device: making one is expensive on some backends.
EventHandle take_event(Device device);
void give_event(Device device, EventHandle event) noexcept;
// Marks the work on the stream so far.
EventHandle mark(const StreamState& stream);

// So many errors in a row and no other answer: who asks in the place of an edge gives up. What is asked may have gone,
// or the process may be at its end, and then the answer never changes.
inline constexpr int kMostErrorsInARow = 8;

// After an error: the host waits until a stream has run what it has, in the place of an edge that cannot be made any
// more. Not beyond the default time-out, nor for a device that is lost or that answers with errors alone; host devices
// in mode inline have nothing to wait for.
void settle(Backend& backend, Device device, StreamHandle stream) noexcept;

// The wait behind wait(Event, Deadline).
void wait_for_handle(Device device, EventHandle event, Deadline deadline);

// For ever: streams that nobody has at the moment are kept for the next.
StreamState* register_stream(const StreamBody& body);
// Of a foreign stream: no handle holds it any more, or one does again. Nothing is asked of a suspended stream; what is
// free in its order is anybody's once its work so far is done.
void suspend_stream(StreamState& stream) noexcept;
void resume_stream(StreamState& stream) noexcept;
void synchronize_streams(Device device, Deadline deadline);

}  // namespace detail
}  // namespace lockstep
