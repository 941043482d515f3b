// Giving cached memory back to the device. Free blocks may still be in use by work that is in flight on their own
// stream (its order is what makes them reusable), so a flush first takes them out of the bins, waits with the lock
// given up, and then frees the segments that are wholly unused.
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

bool DeviceAllocator::flush(Lock& lock) {
  refuse_in_resource("empty_cache", device_);
  const RestWithout rest(lock);
  flushed_.wait(lock, [this] { return !flushing_; });
  Marks marks;
  if (!synchronous_) {
    // Before anything is taken, so that an error here changes nothing.
    for (StreamState* stream = streams_; stream; stream = stream->next) {
      if (closed(*stream)) continue;
      LOCKSTEP_EDGE(marks.add(*stream));
    }
  }
  flushing_ = true;
  MemoryBlock* held = nullptr;
  auto take_bins = [&held](StreamState& stream) {
    for (MemoryBlock*& bin : stream.bins) {
      while (MemoryBlock* block = bin) {
        bin = block->next;
        prepend(held, block);
      }
    }
  };
  for (StreamState* stream = streams_; stream; stream = stream->next) {
    if (!closed(*stream)) take_bins(*stream);
  }
  take_bins(ownerless_);
  MemoryBlock* waiting = std::exchange(pending_, nullptr);
  Segment* was_open = std::exchange(open_, nullptr);

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
  bool freed = false;
  if (!error) {
    freed = free_idle(lock, held, was_open);
  } else {
    while (MemoryBlock* block = held) {
      held = block->next;
      put_back(block);
    }
    if (!open_) open_ = was_open;  // else its rest is lost until it is wholly free
  }
  flushing_ = false;
  flushed_.notify_all();
  if (error) std::rethrow_exception(error);
  return freed;
}

bool DeviceAllocator::free_idle(Lock& lock, MemoryBlock* held, Segment* was_open) {
  for (MemoryBlock* block = held; block; block = block->next) ++block->segment->idle;

  Segment* dead = nullptr;
  auto bury = [&dead](Segment* segment) {
    segment->next = dead;
    dead = segment;
  };
  if (was_open && was_open->idle != was_open->blocks) {
    if (!open_) {
      open_ = was_open;
    } else {
      try {
        carve_rest(*was_open, ownerless_);  // its rest was never used by anybody
      } catch (...) {
      }
    }
  } else if (was_open && was_open->blocks == 0) {
    bury(was_open);
  }
  while (MemoryBlock* block = held) {
    held = block->next;
    Segment* segment = block->segment;
    if (segment->idle == segment->blocks) {
      prepend(spare_, block);
      --segment->idle;
      if (--segment->blocks == 0) bury(segment);  // the last of its blocks to come by
    } else {
      segment->idle = 0;
      put_back(block);
    }
  }

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
  raw_bytes_ -= freed_bytes;
  raw_frees_ += frees;
  return frees > 0;
}

}  // namespace lockstep::detail
