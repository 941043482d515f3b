// The memory that OrderChecker knows: what backends allocate, and the blocks that allocators make of it.
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep::detail {
namespace {

ByteRun bytes_of(const CheckedBlock& block) { return {address(block.data), address(block.data) + block.bytes}; }

}  // namespace

template <class Visit>
void OrderChecker::for_each_access(const ShadowMemory::Cell& cell, Visit visit) {
  if (cell.write.operation) visit(cell.write);
  for (const Access& read : cell.reads) visit(read);
}

void OrderChecker::add_memory(const void* memory, std::size_t bytes, Device device, bool anybodys) {
  std::lock_guard lock(mutex_);
  const ByteRun run{address(memory), address(memory) + bytes};
  shadow_.clear(run);
  memories_[run.begin] = {run.end, device, anybodys};
}

void OrderChecker::remove_memory(const void* memory) noexcept try {
  std::unique_lock lock(mutex_);
  const auto found = memories_.find(address(memory));
  if (found == memories_.end()) return;
  const ByteRun run{found->first, found->second.end};
  std::string problem;
  const HostThread& thread = this_thread();
  shadow_.visit(run, [&](ByteRun part, const ShadowMemory::Cell& cell) {
    for_each_access(cell, [&](const Access& access) {
      if (!problem.empty() || thread.clock[access.actor] >= access.tick || threads_know(access)) return;
      problem = free_text(*access.operation, thread, part);
    });
  });
  shadow_.clear(run);
  memories_.erase(found);
  blocks_.erase(blocks_.lower_bound(run.begin), blocks_.lower_bound(run.end));
  lock.unlock();
  defer(problem);
} catch (const std::bad_alloc&) {
}

void OrderChecker::allocated(const CheckedBlock& block) {
  std::lock_guard lock(mutex_);
  const ByteRun bytes = bytes_of(block);
  const Current current = begin(block.stream, "allocate", {});
  if (actors_[current.actor].is_thread) {
    shadow_.clear(bytes);  // work on plain memory is done when it returns, and what others did has been waited for
  } else {
    shadow_.visit(bytes, [&](ByteRun part, const ShadowMemory::Cell& cell) {
      for_each_access(cell, [&](const Access& access) {
        if (!in_order(current, access)) {
          throw RaceError(release_text(*current.operation, *access.operation, true, part));
        }
      });
    });
    shadow_.set(bytes, {.end = bytes.end, .write = access_of(current, false), .reads = {}, .released = {}});
  }
  blocks_[bytes.begin] = {bytes.end, {}};
}

// Other streams' uses must be known to the block's stream (an edge back to it), to the thread (it has waited), or to a
// stream that record_use has named, for which the allocator waits.
void OrderChecker::released(const CheckedBlock& block) noexcept try {
  std::unique_lock lock(mutex_);
  const ByteRun bytes = bytes_of(block);
  const auto info = blocks_.find(bytes.begin);
  if (info == blocks_.end()) return;
  const std::vector<ActorId> users = std::move(info->second.users);
  blocks_.erase(info);
  const Current current = begin(block.stream, "release", {});
  const bool on_stream = !actors_[current.actor].is_thread;
  ShadowMemory::Cell after{.end = bytes.end, .write = {}, .reads = {}, .released = current.operation};
  std::string problem;
  shadow_.visit(bytes, [&](ByteRun part, const ShadowMemory::Cell& cell) {
    for_each_access(cell, [&](const Access& access) {
      const bool host_work = actors_[access.actor].is_thread;
      if (access.actor == current.actor || host_work || current.known[access.actor] >= access.tick) return;
      // The allocator waits for what the users have enqueued, and so for what they have waited for.
      const bool waited_for = std::any_of(users.begin(), users.end(), [&](ActorId user) {
        return user == access.actor || actors_[user].clock[access.actor] >= access.tick;
      });
      if (waited_for) {
        after.reads.push_back(access);
      } else if (problem.empty() && !threads_know(access)) {
        problem = release_text(*current.operation, *access.operation, false, part);
      }
    });
  });
  if (on_stream) after.write = access_of(current, false);
  shadow_.set(bytes, std::move(after));
  lock.unlock();
  defer(problem);
} catch (const std::bad_alloc&) {
}

void OrderChecker::used(const CheckedBlock& block, StreamHandle user) {
  std::lock_guard lock(mutex_);
  const auto info = blocks_.find(address(block.data));
  const auto found = streams_.find(user);
  if (info != blocks_.end() && found != streams_.end()) info->second.users.push_back(found->second);
}

void OrderChecker::settled(const CheckedBlock& block) noexcept try {
  std::lock_guard lock(mutex_);
  shadow_.forget(bytes_of(block), [this](const Access& access) {
    const StreamTicks* ticks = actors_[access.actor].ticks;
    return ticks && ticks->completed.load(std::memory_order_relaxed) >= access.tick;
  });
} catch (const std::bad_alloc&) {
}

// --- Reports ---------------------------------------------------------------------------------------------------------

}  // namespace lockstep::detail
