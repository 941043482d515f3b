// One device's cache; private to the library. The rules:
//  - A block belongs to the stream it was allocated on, also while it is free: that stream's order makes reuse safe.
//  - Blocks that other streams used wait on the pending list until those streams have passed.
//  - What was never used by anybody, or only by work that is done, stands in `ownerless`.
//  - Blocks are cut and joined only where there is no new memory: until then each class keeps what it had, so that a
//    loop finds all that it had the last time. And only where much more is held than was ever in use: parts of
//    segments that are in use cannot go back.
//  - The mutex is held for list surgery only, never while the backend or a memory resource allocates or frees, or a
//    device is waited for; nor when a resource is destroyed, which its last segment may do.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/memory/memory_resource.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/retained.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep::detail {

// A raw allocation: a row of carved blocks, or one large block.
struct Segment {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::size_t asked_bytes = 0;  // of the device, or of the resource that it came from
  std::size_t carved_bytes = 0;
  int blocks = 0;
  int idle = 0;  // while idle ones are looked for: how many of them are free
  Segment* next = nullptr;
  std::shared_ptr<const MemoryResource> resource = {};
};

// What must have happened before a block can be used again.
struct BlockUse {
  StreamState* stream;
  EventHandle event;   // null until the block is released, and where nothing is to be waited for
  bool marked = true;  // false: the block was released, and there was no memory for the event
  bool over() const noexcept { return !event || stream->backend->is_lost(stream->device.index()); }
};
struct BlockUses {
  std::vector<BlockUse> list;
};

// Throws InvalidArgument in a thread that a memory resource is called in.
void refuse_in_resource(const char* operation, Device device);

// For the order checker.
inline CheckedBlock checked(const MemoryBlock& block) { return {block.data, block.bytes, block.stream->handle}; }

class DeviceAllocator {
 public:
  explicit DeviceAllocator(Device device);

  static DeviceAllocator& of(Device device);

  MemoryBlock* allocate(const Stream& stream, std::size_t bytes);
  void release(MemoryBlock* block) noexcept;
  void record_use(MemoryBlock* block, StreamState& stream);

  void add(StreamState* stream);
  StreamState* redirect(StreamState& stream);
  void restore(StreamState& stream) noexcept;
  void retire(StreamState* pool) noexcept;
  void suspend(StreamState& stream) noexcept;
  void resume(StreamState& stream) noexcept;
  void synchronize(Deadline deadline);

  MemoryStats stats();
  void reset_peak();
  void set_limit(std::size_t bytes);
  void set_sharing(double multiple);
  void set_resource(std::shared_ptr<const MemoryResource> resource);
  void empty_cache();
  Retained retained_uses();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // All of these want the lock held; those that take it give it up while the backend works.
  MemoryBlock* take_cached(StreamState& stream, int bin);
  MemoryBlock* allocate_slowly(Lock& lock, StreamState& stream, int bin);
  MemoryBlock* allocate_uncached(Lock& lock, StreamState& stream, int bin, std::size_t bytes);
  MemoryBlock* allocate_raw(Lock& lock, StreamState& stream, int bin);
  bool may_share(std::size_t bytes) const;
  // Of free blocks in segments of at most `largest_segment` bytes.
  MemoryBlock* share(StreamState& stream, int bin, std::size_t largest_segment);
  MemoryBlock* join(StreamState& stream, int bin, std::size_t largest_segment);
  void cut(MemoryBlock* block, int bin);
  Segment* add_segment(Lock& lock, std::size_t bytes, std::size_t asked_bytes);
  // The device's, or the resource's. Without the lock.
  void* take_raw(const Segment& segment);
  void give_raw(const Segment& segment, void* memory) noexcept;
  MemoryBlock* carve(Segment& segment, StreamState& home, int bin);
  void carve_rest(Segment& segment, StreamState& home);
  static void put_back(MemoryBlock* block) noexcept {
    MemoryBlock*& bin = block->home->bins[block->bin];
    block->next = bin;
    bin = block;
  }
  void reserve_spare();
  void poll_pending(Lock& lock);
  void end_uses(MemoryBlock* block) noexcept;
  bool uses_over(MemoryBlock* block);
  static bool mark_use(BlockUse& use);

  MemoryBlock* take_spare();
  void collect(Lock& lock);    // what is free in any stream's order is ownerless then
  bool free_idle(Lock& lock);  // of what is ownerless; true when memory went back to the device
  void release_slowly(MemoryBlock* block) noexcept;
  bool release_to_graph(MemoryBlock* block) noexcept;  // false: release_slowly is to go on
  void leave_graph(MemoryBlock* block);

  const Device device_;
  Backend& backend_;
  const bool synchronous_;
  const bool checked_;  // the order checker watches
  const bool caches_;   // unless LOCKSTEP_CACHE=off
  const bool poisons_;  // memory that nobody has, for AddressSanitizer

  std::mutex mutex_;
  StreamState ownerless_;
  StreamState* streams_ = nullptr;
  Segment* open_ = nullptr;  // what blocks are carved from
  MemoryBlock* pending_ = nullptr;
  MemoryBlock* spare_ = nullptr;  // objects without memory
  std::vector<std::unique_ptr<MemoryBlock[]>> slabs_;
  bool full_ = false;  // the device or the limit gave nothing the last time
  bool collecting_ = false;
  int giving_ = 0;  // threads that give raw memory back to the device
  std::condition_variable flushed_;

  std::size_t in_use_bytes_ = 0;
  std::size_t peak_in_use_bytes_ = 0;
  std::size_t raw_bytes_ = 0;
  std::size_t limit_bytes_ = 0;
  std::size_t most_in_use_bytes_ = 0;  // until the last reset_peak
  double sharing_ = 2;
  std::shared_ptr<const MemoryResource> resource_;  // null: the device itself
  std::uint64_t raw_allocations_ = 0;
  std::uint64_t raw_frees_ = 0;
};

}  // namespace lockstep::detail
