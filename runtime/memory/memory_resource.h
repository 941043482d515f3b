// A program's own source of raw device memory, for engines that manage the memory of their devices themselves: as
// std::pmr::memory_resource, PyTorch's pluggable allocator or RMM's device_memory_resource.
#pragma once

#include <cstddef>
#include <functional>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// Raw memory of a device. The caching allocator stays above it, with its figures, limit, flush and OutOfMemory. It asks
// for segments: 2 MiB for small blocks, the block alone for larger ones; with LOCKSTEP_CACHE=off for every block.
//
// Both functions are called in the thread that allocates or flushes, without the allocator's lock, one call at a time
// in the process, and while no collective is in flight, so that they may call cudaMalloc and cudaFree. The GPU that is
// current is the caller's: they make another one current if they must, and then the caller's again. They may ask
// memory_stats and call `allocate` and `free` of the Backend, which is where memory comes from without a resource. What
// needs new memory, gives cached memory back or begins a collective is InvalidArgument in them. They must not wait for
// a thread that uses the library.
struct MemoryResource {
  // `bytes` (at least 1) that work on every stream of the device, and copies of the others, can use; at a multiple of
  // 256. Another address goes back at once and is InvalidArgument. Null: there is none left, upon which the cache is
  // flushed and this is called again; then OutOfMemory. An exception passes to who allocates, and changes nothing.
  std::function<void*(Device device, std::size_t bytes)> allocate;
  // Takes back what `allocate` gave, with the bytes that it was asked for. Nothing in flight uses the memory. Must not
  // throw: an exception is dropped.
  std::function<void(Device device, void* memory, std::size_t bytes)> free;
};

// From now on raw memory of the device comes from the resource; from the device itself after an empty one. At any time,
// in any thread: each segment goes back where it came from, and what is cached is used on. The resource is destroyed
// once it has been replaced and all its memory has gone back (empty_cache), else never: at the end of the process
// nothing is given back. Throws InvalidArgument where one of the two functions is missing.
LOCKSTEP_API void set_memory_resource(Device device, MemoryResource resource);

}  // namespace lockstep
