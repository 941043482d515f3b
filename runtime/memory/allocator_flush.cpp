// Flushes. Free blocks may still be in use by work that is in flight on their own stream (its order is what makes them
// reusable), so they are first taken out of the bins, and waited for with the lock given up. Then they are anybody's:
// others may have them, and segments that are wholly unused can go back to the device.
#include <exception>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/memory/allocator_state.h"
#include "lockstep/runtime/memory/poison.h"

namespace lockstep::detail {
namespace {

void prepend(MemoryBlock*& list, MemoryBlock* block) {
  block->next = list;
  list = block;
}

// Streams that are asked nothing.
bool closed(const StreamState& stream) { return stream.suspended || stream.pool.load(std::memory_order_relaxed); }

// Events on streams, recorded under the lock and waited for without it.
class Marks {
 public:
  Marks() = default;
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  ~Marks() {
    for (const Mark& each : list_) give_event(each.device, each.event);
  }

  void add(StreamState& stream) {
    const std::lock_guard marking(stream.marking);
    list_.push_back({stream.device, nullptr});
    LOCKSTEP_EDGE(list_.back().event = mark(stream));
  }
  void wait(Deadline deadline) const {
    for (const Mark& each : list_) LOCKSTEP_EDGE(wait_for_handle(each.device, each.event, deadline));
  }

 private:
  struct Mark {
    Device device;
    EventHandle event;
  };
  std::vector<Mark> list_;
};

}  // namespace

void DeviceAllocator::synchronize(Deadline deadline) {
  Marks marks;
  {
    Lock lock(mutex_);
    const RestWithout rest(lock);
    for (StreamState* stream = streams_; stream; stream = stream->next) {
      if (closed(*stream)) continue;
      LOCKSTEP_EDGE(marks.add(*stream));
    }
  }
  LOCKSTEP_EDGE(marks.wait(deadline));
}

void DeviceAllocator::collect(Lock& lock) {
  refuse_in_resource("empty_cache", device_);
  const RestWithout rest(lock);
  // What another flush has in its hands, or on its way back to the device, is neither here nor there.
  flushed_.wait(lock, [this] { return !collecting_ && giving_ == 0; });
  Marks marks;
  if (!synchronous_) {
    // Before anything is taken, so that an error here changes nothing.
    for (StreamState* stream = streams_; stream; stream = stream->next) {
      if (closed(*stream)) continue;
      LOCKSTEP_EDGE(marks.add(*stream));
    }
  }
  collecting_ = true;
  MemoryBlock* held = nullptr;
  for (StreamState* stream = streams_; stream; stream = stream->next) {
    if (closed(*stream)) continue;
    for (MemoryBlock*& bin : stream->bins) {
      while (MemoryBlock* block = bin) {
        bin = block->next;
        prepend(held, block);
      }
    }
  }
  MemoryBlock* waiting = nullptr;
  for (MemoryBlock** link = &pending_; *link;) {
    MemoryBlock* const block = *link;
    if (closed(*block->home)) {  // nobody waits for what its own stream has
      link = &block->next;
      continue;
    }
    *link = block->next;
    prepend(waiting, block);
  }

  std::exception_ptr error;
  if (!synchronous_) {
    lock.unlock();
    try {
      const Deadline deadline = Deadline::after(kDefaultTimeout);
      LOCKSTEP_EDGE(marks.wait(deadline));
      for (MemoryBlock* block = waiting; block; block = block->next) {
        for (BlockUse& use : block->uses->list) {
          if (!mark_use(use)) throw std::bad_alloc();
          if (use.over()) continue;
          try {
            LOCKSTEP_EDGE(wait_for_handle(use.stream->device, use.event, deadline));
          } catch (const DeviceError&) {
            if (!use.over()) throw;
          }
        }
      }
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
  }
  while (MemoryBlock* block = waiting) {
    waiting = block->next;
    if (error) {
      prepend(pending_, block);
    } else {
      end_uses(block);
      prepend(held, block);
    }
  }
  while (MemoryBlock* block = held) {
    held = block->next;
    if (!error) {
      if (checked_ && block->stream) [[unlikely]]  // else nobody ever had it
        OrderChecker::active()->settled(checked(*block));
      block->home = &ownerless_;
    }
    put_back(block);
  }
  collecting_ = false;
  flushed_.notify_all();
  if (error) std::rethrow_exception(error);
}

bool DeviceAllocator::free_idle(Lock& lock) {
  for (const MemoryBlock* block : ownerless_.bins) {
    for (; block; block = block->next) ++block->segment->idle;
  }
  Segment* dead = nullptr;
  auto bury = [&dead](Segment* segment) {
    segment->next = dead;
    dead = segment;
  };
  if (open_ && open_->idle == open_->blocks) {
    Segment* const segment = std::exchange(open_, nullptr);
    if (segment->blocks == 0) bury(segment);
  }
  for (MemoryBlock*& bin : ownerless_.bins) {
    for (MemoryBlock** link = &bin; *link;) {
      MemoryBlock* const block = *link;
      Segment* const segment = block->segment;
      if (segment->idle == segment->blocks) {
        *link = block->next;
        prepend(spare_, block);
        --segment->idle;
        if (--segment->blocks == 0) bury(segment);  // the last of its blocks to come by
      } else {
        segment->idle = 0;
        link = &block->next;
      }
    }
  }
  if (!dead) return false;

  ++giving_;
  lock.unlock();
  std::size_t freed_bytes = 0;
  std::uint64_t frees = 0;
  while (Segment* segment = dead) {
    dead = segment->next;
    if (poisons_) unpoison(device_, segment->memory, segment->bytes);
    give_raw(*segment, segment->memory);
    freed_bytes += segment->bytes;
    ++frees;
    delete segment;
  }
  lock.lock();
  --giving_;
  flushed_.notify_all();
  raw_bytes_ -= freed_bytes;
  raw_frees_ += frees;
  full_ = false;
  return true;
}

}  // namespace lockstep::detail
