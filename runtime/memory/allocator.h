// The caching allocator: one per device, shared by all threads. After warm-up no raw memory is allocated or freed.
// LOCKSTEP_CACHE=off makes every block a raw allocation of its own, for tools that watch those.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {
namespace detail {
struct Segment;
struct StreamState;
struct BlockUses;
}  // namespace detail

// A piece of device memory, at least 256-byte aligned. Made by allocate(), given back by release().
struct MemoryBlock {
  void* data = nullptr;
  std::size_t bytes = 0;  // usable, at least what was asked for
  Device device;
  detail::StreamBody* stream = nullptr;  // the stream whose order governs reuse
  // The rest belongs to the allocator.
  std::size_t extent = 0;  // of the segment: the size class, and what was too small to be cut off
  detail::Segment* segment = nullptr;
  detail::StreamState* home = nullptr;
  MemoryBlock* next = nullptr;
  detail::BlockUses* uses = nullptr;
  std::uint8_t bin = 0;
};

// Memory for work on `stream` (and its device). From the cache when a block of the size class is free there; else from
// the device. Where that has no more, or the limit is reached, classes share as memory_sharing.h says: a larger free
// block is cut, and neighbours that are free are joined. Then the cache is flushed and the device asked again; else
// OutOfMemory. `bytes` may be 0.
LOCKSTEP_API MemoryBlock* allocate(const Stream& stream, std::size_t bytes);
// Gives the block back. Work enqueued on its stream so far may still use it; work on the streams named by record_use
// too: the block is reused only after that work.
LOCKSTEP_API void release(MemoryBlock* block) noexcept;
// Says that work enqueued on `stream` uses the block. Does nothing for its own stream and for synchronous devices.
LOCKSTEP_API void record_use(MemoryBlock* block, const Stream& stream);

struct MemoryStats {
  std::size_t in_use_bytes = 0;  // in blocks handed out
  std::size_t cached_bytes = 0;  // kept for reuse
  std::size_t peak_in_use_bytes = 0;
  std::uint64_t raw_allocations = 0;  // calls to the backend since the start
  std::uint64_t raw_frees = 0;
};
LOCKSTEP_API MemoryStats memory_stats(Device device);
LOCKSTEP_API void reset_peak(Device device);
// Raw memory the device may hold, cache included; 0 lifts the limit.
LOCKSTEP_API void set_memory_limit(Device device, std::size_t bytes);
// Gives cached memory back to the device. Waits for work that still uses it.
LOCKSTEP_API void empty_cache(Device device);

}  // namespace lockstep
