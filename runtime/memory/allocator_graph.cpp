// Memory of graphs. What is allocated on a stream while it is captured comes from a pool: inside the capture its blocks
// are used again, as on a stream of its own; afterwards by nobody, since each replay writes them. When the graph has
// gone they go to whoever needs them next.
#include <utility>

#include "lockstep/runtime/memory/allocator_state.h"
#include "lockstep/runtime/stream/capture.h"

namespace lockstep::detail {

StreamState* DeviceAllocator::redirect(StreamState& stream) {
  auto pool = std::make_unique<StreamState>();
  pool->device = device_;
  pool->allocator = this;
  pool->graph = StreamState::Graph::captured;
  pool->captured = &stream;
  const Lock lock(mutex_);
  const std::lock_guard marking(stream.marking);
  stream.pool.store(pool.get(), std::memory_order_relaxed);
  return pool.release();
}

void DeviceAllocator::restore(StreamState& stream) noexcept {
  const Lock lock(mutex_);
  const std::lock_guard marking(stream.marking);
  if (StreamState* const pool = stream.pool.exchange(nullptr, std::memory_order_relaxed))
    pool->graph = StreamState::Graph::kept;
}

// What was done with it after the capture was done on the stream that it is for, or is noted already. Nobody may have
// had it: what was left of a full segment, or was cut off, is in no stream's name, or in an earlier one's.
void DeviceAllocator::leave_graph(MemoryBlock* block) {
  StreamState* const stream = block->home->captured;
  if (!block->uses) block->uses = new BlockUses;
  block->uses->list.push_back({stream, nullptr});
  block->stream = stream;
  block->home = &ownerless_;
}

bool DeviceAllocator::release_to_graph(MemoryBlock* block) noexcept {
  StreamState& pool = *block->home;
  --pool.handed_out;
  if (pool.graph == StreamState::Graph::retired) {
    try {
      leave_graph(block);
    } catch (const std::bad_alloc&) {
      ++pool.handed_out;  // it is lost
      return true;
    }
    if (pool.handed_out == 0) delete &pool;
    return false;
  }
  in_use_bytes_ -= class_bytes(block->bin);
  if (pool.graph == StreamState::Graph::captured && !block->uses) {
    put_back(block);
  } else {
    block->next = std::exchange(pool.held, block);
  }
  return true;
}

void DeviceAllocator::retire(StreamState* pool) noexcept {
  MemoryBlock* used = nullptr;  // since the capture
  {
    const Lock lock(mutex_);
    pool->graph = StreamState::Graph::retired;
    for (MemoryBlock*& bin : pool->bins) {
      while (MemoryBlock* const block = bin) {
        bin = block->next;
        if (checked_) [[unlikely]] {
          // To the order checker the capture's work is done in its place on the stream: not before it comes to that.
          block->next = std::exchange(pool->held, block);
          continue;
        }
        block->home = &ownerless_;
        put_back(block);
      }
    }
    while (MemoryBlock* const block = pool->held) {
      pool->held = block->next;
      try {
        leave_graph(block);
      } catch (const std::bad_alloc&) {
        continue;  // it is lost
      }
      in_use_bytes_ += class_bytes(block->bin);
      block->next = std::exchange(used, block);
    }
    if (pool->handed_out == 0) delete pool;
  }
  while (MemoryBlock* const block = used) {
    used = block->next;
    release_slowly(block);
  }
}

StreamState* redirect_memory(StreamState& stream) { return stream.allocator->redirect(stream); }
void restore_memory(StreamState& stream) noexcept { stream.allocator->restore(stream); }
void retire_memory(StreamState* pool) noexcept { pool->allocator->retire(pool); }

}  // namespace lockstep::detail
