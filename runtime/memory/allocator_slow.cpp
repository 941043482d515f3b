// The caching allocator when its bins do not have what is asked for: new memory, blocks that other streams still use.
#include <algorithm>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/memory/allocator_state.h"
#include "lockstep/runtime/memory/poison.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep::detail {

// --- Finding a block -------------------------------------------------------------------------------------------------

MemoryBlock* DeviceAllocator::take_cached(StreamState& stream, int bin) {
  for (StreamState* owner : {&stream, &ownerless_}) {
    if (MemoryBlock* block = owner->bins[bin]) {
      owner->bins[bin] = block->next;
      block->home = &stream;
      return block;
    }
  }
  if (bin > kLargestCarvedClass || !open_ || open_->bytes - open_->carved_bytes < class_bytes(bin)) return nullptr;
  return carve(*open_, stream, bin);
}

MemoryBlock* DeviceAllocator::allocate_slowly(Lock& lock, StreamState& stream, int bin) {
  poll_pending(lock);
  // Small blocks live long: they do not take large segments apart before a flush has looked for another way.
  const std::size_t largest_segment = bin <= kLargestCarvedClass && !full_ ? kSegmentBytes : kLargestBytes;
  const auto from_cache = [&] { return may_share(class_bytes(bin)) ? share(stream, bin, largest_segment) : nullptr; };
  const auto from_device = [&] {
    MemoryBlock* const block = allocate_raw(lock, stream, bin);
    full_ = !block;
    return block;
  };
  // One flush is enough, unless other threads take what it gave back.
  constexpr int kMostFlushes = 3;
  for (int flushes = 0; flushes <= kMostFlushes; ++flushes) {
    if (MemoryBlock* block = take_cached(stream, bin)) return block;
    // A device that is full need not be asked each time.
    const bool cache_first = full_;
    if (MemoryBlock* block = cache_first ? from_cache() : from_device()) return block;
    if (MemoryBlock* block = cache_first ? from_device() : from_cache()) return block;
    collect(lock);
    if (MemoryBlock* block = from_cache()) return block;
    if (!free_idle(lock) && flushes > 0) break;
  }
  if (MemoryBlock* block = share(stream, bin, kLargestBytes)) return block;
  full_ = false;  // what nobody could have says nothing of what others ask for
  return nullptr;
}

// For tools that watch raw memory: every block is a raw allocation of just the bytes asked for, and none is kept.
MemoryBlock* DeviceAllocator::allocate_uncached(Lock& lock, StreamState& stream, int bin, std::size_t bytes) {
  poll_pending(lock);
  collect(lock);
  free_idle(lock);
  Segment* segment = add_segment(lock, class_bytes(bin), bytes);
  return segment ? carve(*segment, stream, bin) : nullptr;
}

MemoryBlock* DeviceAllocator::allocate_raw(Lock& lock, StreamState& stream, int bin) {
  const std::size_t bytes = class_bytes(bin);
  if (bin <= kLargestCarvedClass) {
    if (Segment* segment = add_segment(lock, kSegmentBytes, kSegmentBytes)) {
      Segment* const before = std::exchange(open_, segment);
      MemoryBlock* const block = carve(*segment, stream, bin);
      try {
        if (before) carve_rest(*before, stream);
      } catch (const std::bad_alloc&) {  // the rest is lost until the segment is wholly free
      }
      return block;
    }
    // No room for a segment: there may still be some for the block alone.
  }
  Segment* segment = add_segment(lock, bytes, bytes);
  return segment ? carve(*segment, stream, bin) : nullptr;
}

// Null when the limit or the device says no. Other threads may come in between.
Segment* DeviceAllocator::add_segment(Lock& lock, std::size_t bytes, std::size_t asked_bytes) {
  refuse_in_resource("allocate", device_);
  if (limit_bytes_ != 0 && (bytes > limit_bytes_ || raw_bytes_ > limit_bytes_ - bytes)) return nullptr;
  auto segment = std::make_unique<Segment>();
  segment->bytes = bytes;
  segment->asked_bytes = std::max<std::size_t>(asked_bytes, 1);
  segment->resource = resource_;
  raw_bytes_ += bytes;
  ++raw_allocations_;
  lock.unlock();
  try {
    segment->memory = static_cast<std::byte*>(take_raw(*segment));
  } catch (...) {
    segment.reset();
    lock.lock();
    raw_bytes_ -= bytes;
    throw;
  }
  if (!segment->memory)
    segment.reset();
  else if (poisons_)
    poison(device_, segment->memory, bytes);
  lock.lock();
  if (!segment) {
    raw_bytes_ -= bytes;
    return nullptr;
  }
  try {
    reserve_spare();  // so that it can be carved
  } catch (...) {
    raw_bytes_ -= bytes;
    lock.unlock();
    if (poisons_) unpoison(device_, segment->memory, bytes);
    give_raw(*segment, segment->memory);
    segment.reset();
    lock.lock();
    throw;
  }
  return segment.release();
}

void DeviceAllocator::reserve_spare() {
  if (spare_) return;
  constexpr int kSlabBlocks = 64;
  slabs_.push_back(std::make_unique<MemoryBlock[]>(kSlabBlocks));
  for (int i = 0; i < kSlabBlocks; ++i) {
    MemoryBlock* block = &slabs_.back()[static_cast<std::size_t>(i)];
    block->next = std::exchange(spare_, block);
  }
}

MemoryBlock* DeviceAllocator::take_spare() {
  reserve_spare();
  return std::exchange(spare_, spare_->next);
}

MemoryBlock* DeviceAllocator::carve(Segment& segment, StreamState& home, int bin) {
  MemoryBlock* const block = take_spare();
  block->data = segment.memory + segment.carved_bytes;
  block->bytes = block->extent = class_bytes(bin);
  block->device = device_;
  block->segment = &segment;
  block->home = &home;
  block->next = nullptr;
  block->bin = static_cast<std::uint8_t>(bin);
  segment.carved_bytes += block->bytes;
  ++segment.blocks;
  return block;
}

// What is left when a segment cannot hold the next block serves smaller requests.
void DeviceAllocator::carve_rest(Segment& segment, StreamState& home) {
  for (int bin = kLargestCarvedClass; bin >= 0; --bin) {
    while (segment.bytes - segment.carved_bytes >= class_bytes(bin)) put_back(carve(segment, home, bin));
  }
}

// --- Blocks that other streams still use -----------------------------------------------------------------------------

void DeviceAllocator::release_slowly(MemoryBlock* block) noexcept {
  for (BlockUse& use : block->uses->list) {
    try {
      use.marked = false;
      mark_use(use);
    } catch (...) {
      settle(*use.stream->backend, use.stream->device, use.stream->handle);
      use.marked = true;
    }
  }
  Lock lock(mutex_);
  in_use_bytes_ -= class_bytes(block->bin);
  block->next = pending_;
  pending_ = block;
}

bool DeviceAllocator::mark_use(BlockUse& use) {
  if (use.marked) return true;
  const std::lock_guard marking(use.stream->marking);
  if (use.stream->pool.load(std::memory_order_relaxed)) return false;  // what runs on it comes after the capture
  try {
    LOCKSTEP_EDGE(use.event = mark(*use.stream));
    use.marked = true;
  } catch (const std::bad_alloc&) {
    // It is tried again when somebody asks for the block; what has come by then counts too.
  }
  return use.marked;
}

bool DeviceAllocator::uses_over(MemoryBlock* block) {
  for (BlockUse& use : block->uses->list) {
    if (!mark_use(use)) return false;
    if (use.over()) continue;
    try {
      LOCKSTEP_EDGE(if (!use.stream->backend->query_event(use.event)) return false);
    } catch (const DeviceError&) {
      if (!use.over()) throw;
    }
  }
  return true;
}

void DeviceAllocator::end_uses(MemoryBlock* block) noexcept {
  if (checked_) [[unlikely]]
    OrderChecker::active()->settled(checked(*block));
  for (const BlockUse& use : block->uses->list) give_event(use.stream->device, use.event);
  delete std::exchange(block->uses, nullptr);
}

void DeviceAllocator::poll_pending(Lock& lock) {
  const RestWithout rest(lock);
  for (MemoryBlock** link = &pending_; *link;) {
    MemoryBlock* block = *link;
    if (uses_over(block)) {
      *link = block->next;
      end_uses(block);
      put_back(block);
    } else {
      link = &block->next;
    }
  }
}

Retained DeviceAllocator::retained_uses() {
  Lock lock(mutex_);
  Retained all;
  for (MemoryBlock* block = pending_; block; block = block->next) {
    for (const BlockUse& use : block->uses->list) all.events += !use.over() && use.stream->device != device_;
  }
  return all;
}
Retained retained_uses(Device device) { return DeviceAllocator::of(device).retained_uses(); }

// --- Streams ---------------------------------------------------------------------------------------------------------

void DeviceAllocator::add(StreamState* stream) {
  Lock lock(mutex_);
  stream->next = streams_;
  streams_ = stream;
}

void DeviceAllocator::suspend(StreamState& stream) noexcept {
  Lock lock(mutex_);
  stream.suspended = true;
  // What it did with a block itself becomes one of the block's uses. Where there is no memory for that, the block stays
  // for the stream's return.
  const auto leave = [&](MemoryBlock* block) {
    try {
      std::unique_ptr<BlockUses> made(block->uses ? nullptr : new BlockUses);
      std::vector<BlockUse>& uses = (made ? *made : *block->uses).list;
      uses.reserve(uses.size() + 1);
      BlockUse own{&stream, nullptr, false};
      if (!mark_use(own)) return false;
      uses.push_back(own);
      if (made) block->uses = made.release();
    } catch (...) {
      return false;
    }
    block->stream = &stream;  // where nobody has had it, in no stream's name
    block->home = &ownerless_;
    return true;
  };
  for (MemoryBlock* block = pending_; block; block = block->next) {
    if (block->home == &stream) leave(block);
  }
  for (MemoryBlock*& bin : stream.bins) {
    while (MemoryBlock* const block = bin) {
      if (!leave(block)) return;
      bin = block->next;
      block->next = pending_;
      pending_ = block;
    }
  }
}

void DeviceAllocator::resume(StreamState& stream) noexcept {
  Lock lock(mutex_);
  stream.suspended = false;
}

StreamState* register_stream(const StreamBody& body) {
  auto state = std::make_unique<StreamState>();
  static_cast<StreamBody&>(*state) = body;
  state->allocator = &DeviceAllocator::of(body.device);
  state->allocator->add(state.get());
  return state.release();
}

void suspend_stream(StreamState& stream) noexcept { stream.allocator->suspend(stream); }
void resume_stream(StreamState& stream) noexcept { stream.allocator->resume(stream); }

void synchronize_streams(Device device, Deadline deadline) {
  LOCKSTEP_EDGE(DeviceAllocator::of(device).synchronize(deadline));
}

}  // namespace lockstep::detail
