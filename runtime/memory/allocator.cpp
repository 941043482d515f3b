// The everyday path of the caching allocator: a block of the right class is free. The rest is in allocator_slow.cpp.
#include "lockstep/runtime/memory/allocator.h"

#include <algorithm>
#include <atomic>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator_state.h"
#include "lockstep/runtime/memory/poison.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/per_device.h"

namespace lockstep {
namespace detail {
namespace {

bool cache_wanted() {
  const std::string_view text = environment("LOCKSTEP_CACHE");
  LOCKSTEP_CHECK(text.empty() || text == "on" || text == "off", "[LOCKSTEP_CACHE] expected on or off, got \"", text,
                 "\"");
  return text != "off";
}

}  // namespace

DeviceAllocator::DeviceAllocator(Device device)
    : device_(device),
      backend_(backend(device)),
      synchronous_(properties(device).synchronous),
      checked_(properties(device).checked),
      caches_(cache_wanted()),
      poisons_(kPoisons && synchronous_ && caches_) {
  ownerless_.device = device;
  ownerless_.allocator = this;
}

DeviceAllocator& DeviceAllocator::of(Device device) {
  struct Table {
    PerDevice<std::atomic<DeviceAllocator*>> allocators;
    std::mutex mutex;
  };
  static Table* const table = new Table;
  std::atomic<DeviceAllocator*>& slot = table->allocators[device];
  DeviceAllocator* allocator = slot.load(std::memory_order_acquire);
  if (!allocator) [[unlikely]] {
    std::lock_guard lock(table->mutex);
    allocator = slot.load(std::memory_order_acquire);
    if (!allocator) slot.store(allocator = new DeviceAllocator(device), std::memory_order_release);
  }
  return *allocator;
}

MemoryBlock* DeviceAllocator::allocate(const Stream& stream, std::size_t bytes) {
  if (bytes > kLargestBytes) {
    Lock lock(mutex_);
    throw OutOfMemory(device_, bytes, in_use_bytes_, raw_bytes_ - in_use_bytes_, limit_bytes_);
  }
  const int bin = size_class(bytes);
  MemoryBlock* block;
  {
    Lock lock(mutex_);
    StreamState* const pool = detail::state_of(stream).pool.load(std::memory_order_relaxed);
    StreamState& state = pool ? *pool : detail::state_of(stream);
    block = state.bins[bin];
    if (block && caches_) [[likely]] {
      state.bins[bin] = block->next;
    } else {
      block = caches_ ? allocate_slowly(lock, state, bin) : allocate_uncached(lock, state, bin, bytes);
      if (!block) throw OutOfMemory(device_, bytes, in_use_bytes_, raw_bytes_ - in_use_bytes_, limit_bytes_);
    }
    in_use_bytes_ += class_bytes(block->bin);
    peak_in_use_bytes_ = std::max(peak_in_use_bytes_, in_use_bytes_);
    if (pool) [[unlikely]]
      ++pool->handed_out;
  }
  block->stream = &stream.body();
  block->next = nullptr;
  if (poisons_ || !caches_) block->bytes = bytes;  // the slack is poisoned, or not there
  if (poisons_) unpoison(device_, block->data, bytes);
  if (checked_) [[unlikely]] {
    try {
      OrderChecker::active()->allocated(checked(*block));
    } catch (...) {  // a race, or no memory to note it: nobody gets the block
      Lock lock(mutex_);
      in_use_bytes_ -= class_bytes(block->bin);
      put_back(block);
      throw;
    }
  }
  return block;
}

void DeviceAllocator::release(MemoryBlock* block) noexcept {
  // Where work is in flight, the block is still in use, and only the order checker can tell who may use it.
  if (poisons_) poison(device_, block->data, class_bytes(block->bin));
  if (checked_) [[unlikely]]
    OrderChecker::active()->released(checked(*block));
  {
    Lock lock(mutex_);
    if (block->home->graph != StreamState::Graph::none) [[unlikely]] {
      if (release_to_graph(block)) return;
    } else if (!block->uses) [[likely]] {
      in_use_bytes_ -= class_bytes(block->bin);
      put_back(block);
      return;
    }
  }
  release_slowly(block);
}

void DeviceAllocator::record_use(MemoryBlock* block, StreamState& stream) {
  Lock lock(mutex_);  // several threads may read one block
  if (&stream == block->home || stream.pool.load(std::memory_order_relaxed) == block->home) return;
  if (!block->uses) block->uses = new BlockUses;
  for (const BlockUse& use : block->uses->list) {
    if (use.stream == &stream) return;
  }
  block->uses->list.push_back({&stream, nullptr});
}

MemoryStats DeviceAllocator::stats() {
  Lock lock(mutex_);
  return {.in_use_bytes = in_use_bytes_,
          .cached_bytes = raw_bytes_ - in_use_bytes_,
          .peak_in_use_bytes = peak_in_use_bytes_,
          .raw_allocations = raw_allocations_,
          .raw_frees = raw_frees_};
}

void DeviceAllocator::reset_peak() {
  Lock lock(mutex_);
  most_in_use_bytes_ = std::max(most_in_use_bytes_, peak_in_use_bytes_);
  peak_in_use_bytes_ = in_use_bytes_;
}

void DeviceAllocator::set_limit(std::size_t bytes) {
  Lock lock(mutex_);
  limit_bytes_ = bytes;
  full_ = false;
}

void DeviceAllocator::empty_cache() {
  Lock lock(mutex_);
  collect(lock);
  free_idle(lock);
}

}  // namespace detail

MemoryBlock* allocate(const Stream& stream, std::size_t bytes) {
  return detail::state_of(stream).allocator->allocate(stream, bytes);
}

void release(MemoryBlock* block) noexcept {
  if (block) block->home->allocator->release(block);
}

void record_use(MemoryBlock* block, const Stream& stream) {
  const detail::StreamState& state = detail::state_of(stream);
  if (stream.synchronous() || &state == block->home || state.pool.load(std::memory_order_relaxed) == block->home)
    return;
  if (stream.checked()) [[unlikely]]
    detail::OrderChecker::active()->used(detail::checked(*block), stream.handle());
  LOCKSTEP_EDGE(block->home->allocator->record_use(block, detail::state_of(stream)));
}

MemoryStats memory_stats(Device device) { return detail::DeviceAllocator::of(device).stats(); }
void reset_peak(Device device) { detail::DeviceAllocator::of(device).reset_peak(); }
void set_memory_limit(Device device, std::size_t bytes) { detail::DeviceAllocator::of(device).set_limit(bytes); }
void empty_cache(Device device) { detail::DeviceAllocator::of(device).empty_cache(); }

}  // namespace lockstep
