#include "lockstep/runtime/order/order_checker.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/record/recorder.h"

namespace lockstep {
namespace detail {
namespace {

// The entry of a map of ranges that holds `at`, or null.
template <class Map>
auto* holding(Map& map, std::uintptr_t at) {
  auto found = map.upper_bound(at);
  if (found == map.begin()) return static_cast<decltype(&found->second)>(nullptr);
  --found;
  return found->second.end > at ? &found->second : nullptr;
}

}  // namespace

std::atomic<OrderChecker*> OrderChecker::active_{nullptr};

OrderChecker& OrderChecker::start() {
  static OrderChecker* const made = new OrderChecker;
  active_.store(made, std::memory_order_release);
  return *made;
}

// --- Who acts --------------------------------------------------------------------------------------------------------

HostThread& OrderChecker::this_thread() {
  constinit thread_local HostThread* calling = nullptr;
  if (!calling) {
    struct End {
      HostThread* thread = nullptr;
      ~End() {
        if (thread) active()->end_thread(*thread);
      }
    };
    thread_local End end;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (vacant_.empty()) {
      static auto& threads = *new std::vector<HostThread*>;  // guarded by the checker's mutex
      calling = threads.emplace_back(new HostThread);
      calling->actor = static_cast<ActorId>(actors_.size());
      actors_.push_back({.is_thread = true});
    } else {
      calling = vacant_.back();
      vacant_.pop_back();
    }
    end.thread = calling;
    actors_[calling->actor].name = cat("thread ", threads_seen_++, " (", name, ")");
    calling->clock = all_threads_;  // what its maker knew is part of that
    calling->ended_seen = threads_ended_;
  }
  HostThread& thread = *calling;
  if (thread.ended_seen != threads_ended_) {
    thread.ended_seen = threads_ended_;
    thread.clock.join(ended_threads_);
  }
  return thread;
}

void OrderChecker::end_thread(HostThread& thread) noexcept {
  try {
    std::lock_guard lock(mutex_);
    ended_threads_.join(thread.clock);
    ++threads_ended_;
    vacant_.push_back(&thread);
  } catch (const std::bad_alloc&) {
  }
}

void OrderChecker::add_stream(StreamHandle handle, Device device, StreamTicks& ticks) {
  std::lock_guard lock(mutex_);
  streams_[handle] = static_cast<ActorId>(actors_.size());
  actors_.push_back({.name = cat("stream ", streams_made_++, " of ", device), .ticks = &ticks});
}

// What it did stays: its work may still be in flight.
void OrderChecker::remove_stream(StreamHandle handle) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return;
  actors_[found->second].ticks = nullptr;
  streams_.erase(found);
}

void OrderChecker::label_stream(StreamHandle handle, const char* label) {
  std::lock_guard lock(mutex_);
  if (const auto found = streams_.find(handle); found != streams_.end()) {
    actors_[found->second].name += cat(" (", label, ")");
  }
}

bool OrderChecker::knows_all_of(StreamHandle handle) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  return found != streams_.end() && this_thread().clock.covers(actors_[found->second].clock);
}

// --- What is ordered -------------------------------------------------------------------------------------------------

void OrderChecker::alias(StreamHandle handle, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  if (const auto found = streams_.find(stream); found != streams_.end()) streams_[handle] = found->second;
}

void OrderChecker::remove_alias(StreamHandle handle) noexcept {
  std::lock_guard lock(mutex_);
  streams_.erase(handle);
}

VectorClock OrderChecker::record(StreamHandle handle) {
  std::lock_guard lock(mutex_);
  const Current current = begin(handle, "record", {});
  return current.known;
}

void OrderChecker::wait(StreamHandle handle, const VectorClock& event) {
  std::lock_guard lock(mutex_);
  if (const auto found = streams_.find(handle); found != streams_.end()) actors_[found->second].clock.join(event);
}

void OrderChecker::host_wait(const VectorClock& event) {
  std::lock_guard lock(mutex_);
  this_thread().clock.join(event);
  all_threads_.join(event);
  throw_deferred();
}

void OrderChecker::waited_for(StreamHandle handle) noexcept try {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return;
  this_thread().clock.join(actors_[found->second].clock);
  all_threads_.join(actors_[found->second].clock);
} catch (const std::bad_alloc&) {
}

VectorClock OrderChecker::known() {
  std::lock_guard lock(mutex_);
  return this_thread().clock;
}

void OrderChecker::learn(const VectorClock& known) {
  std::lock_guard lock(mutex_);
  this_thread().clock.join(known);
}

void OrderChecker::hand_over(const void* at) {
  std::lock_guard lock(mutex_);
  handovers_[at].join(this_thread().clock);
}

void OrderChecker::take_over(const void* at) {
  std::lock_guard lock(mutex_);
  if (const auto found = handovers_.find(at); found != handovers_.end()) this_thread().clock.join(found->second);
}

void OrderChecker::forget_hand_overs(const void* at) {
  std::lock_guard lock(mutex_);
  handovers_.erase(at);
}

// --- Operations ------------------------------------------------------------------------------------------------------

OrderChecker::Current OrderChecker::begin(StreamHandle handle, const char* operation, Place place) {
  HostThread& thread = this_thread();
  const auto found = streams_.find(handle);
  const bool on_stream = found != streams_.end();
  const ActorId actor = on_stream ? found->second : thread.actor;
  if (on_stream) actors_[actor].clock.join(thread.clock);
  return {thread, actor, on_stream ? actors_[actor].clock : thread.clock,
          std::make_shared<const Operation>(
              Operation{.name = operation, .place = place, .actor = actor, .thread = thread.actor})};
}

Access OrderChecker::access_of(const Current& current, bool new_tick) {
  Actor& actor = actors_[current.actor];
  std::uint64_t tick = 0;
  if (!actor.is_thread) {
    if (!actor.ticks) return {};  // destroyed
    tick = actor.ticks->issued.load(std::memory_order_relaxed) + (new_tick ? 1 : 0);
    actor.ticks->issued.store(tick, std::memory_order_relaxed);
    actor.clock.raise(current.actor, tick);
  } else {
    tick = current.thread.tick += new_tick ? 1 : 0;
    current.thread.clock.raise(current.actor, tick);
    all_threads_.raise(current.actor, tick);
  }
  return {current.actor, tick, current.operation};
}

void OrderChecker::use(StreamHandle handle, const char* operation, std::span<const MemoryUse> uses, Place place) {
  std::lock_guard lock(mutex_);
  throw_deferred();
  const Current current = begin(handle, operation, place);
  ++stats_.operations;
  std::vector<ByteRun> reads, writes;
  for (const MemoryUse& each : uses) {
    const ByteRun bounds = bounds_of(each);
    if (bounds.begin == bounds.end) continue;
    check_memory(*current.operation, each, bounds);
    // A use that is too scattered to be followed is not guessed at.
    if (!append_runs(each, each.writes ? writes : reads)) ++stats_.skipped_uses;
  }
  for (const ByteRun& run : reads) check_race(current, run, false);
  for (const ByteRun& run : writes) check_race(current, run, true);

  const Access access = access_of(current, true);
  for (const ByteRun& run : reads) shadow_.add_read(run, access, current.known);
  for (const ByteRun& run : writes) shadow_.set(run, {.end = run.end, .write = access, .reads = {}, .released = {}});
}

void OrderChecker::copy(StreamHandle handle, const CopyArgs& args) {
  const MemoryUse uses[] = {MemoryUse::read(args.source, args.bytes, args.source_device),
                            MemoryUse::write(args.destination, args.bytes, args.destination_device)};
  use(handle, "copy", uses, copy_place);
}

void OrderChecker::fill(StreamHandle handle, Device device, const void* memory, std::size_t bytes) {
  const MemoryUse written = MemoryUse::write(memory, bytes, device);
  use(handle, "fill", std::span(&written, 1), copy_place);
}

void OrderChecker::check_memory(const Operation& operation, const MemoryUse& use, ByteRun bounds) const {
  const Memory* memory = holding(memories_, bounds.begin);
  if (!memory) return;  // the caller's own
  LOCKSTEP_CHECK(memory->anybodys || memory->device == use.device, "[", operation.name, "] expected memory of ",
                 use.device, ", got ", bounds.end - bounds.begin, " bytes in the memory of ", memory->device, ": ",
                 describe(operation));
  std::uintptr_t end = memory->end;
  if (const BlockInfo* block = holding(blocks_, bounds.begin)) end = block->end;
  LOCKSTEP_CHECK(bounds.end <= end, "[", operation.name, "] expected to use at most the ", end - bounds.begin,
                 " bytes up to the end of the allocation on ", use.device, ", got ", bounds.end - bounds.begin, ": ",
                 describe(operation));
}

void OrderChecker::check_race(const Current& current, ByteRun run, bool writes) {
  shadow_.visit(run, [&](ByteRun part, const ShadowMemory::Cell& cell) {
    if (cell.released) throw RaceError(released_text(*current.operation, writes, *cell.released, part));
    if (cell.write.operation && !in_order(current, cell.write)) {
      throw RaceError(race_text(*current.operation, writes, *cell.write.operation, true, part));
    }
    if (!writes) return;
    for (const Access& read : cell.reads) {
      if (!in_order(current, read)) throw RaceError(race_text(*current.operation, true, *read.operation, false, part));
    }
  });
}

bool OrderChecker::in_order(const Current& current, const Access& earlier) {
  return earlier.actor == current.actor || current.known[earlier.actor] >= earlier.tick || threads_know(earlier);
}

bool OrderChecker::threads_know(const Access& access) {
  if (all_threads_[access.actor] < access.tick) return false;
  ++stats_.assumed_handovers;
  return true;
}

void OrderChecker::defer(const std::string& problem) {
  // What was declared but could not be enqueued any more has ordered nothing.
  if (problem.empty() || library_threads.load(std::memory_order_acquire) != Threads::run) return;
  log(LogLevel::error, problem);
  std::lock_guard lock(mutex_);
  if (!deferred_) deferred_ = std::make_exception_ptr(RaceError(problem));
}

void OrderChecker::throw_deferred() {
  if (deferred_) std::rethrow_exception(std::exchange(deferred_, nullptr));
}

OrderStats OrderChecker::stats() {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace detail

void hand_over(const void* address) noexcept try {
  if (detail::Recorder* recorder = detail::Recorder::active()) recorder->hand_over(address);
  if (detail::OrderChecker* checker = detail::OrderChecker::active()) checker->hand_over(address);
} catch (const std::bad_alloc&) {
}

void take_over(const void* address) noexcept try {
  if (detail::Recorder* recorder = detail::Recorder::active()) recorder->take_over(address);
  if (detail::OrderChecker* checker = detail::OrderChecker::active()) checker->take_over(address);
} catch (const std::bad_alloc&) {
}

void forget_hand_overs(const void* address) noexcept {
  if (detail::Recorder* recorder = detail::Recorder::active()) recorder->forget_hand_overs(address);
  if (detail::OrderChecker* checker = detail::OrderChecker::active()) checker->forget_hand_overs(address);
}

OrderStats order_stats() {
  detail::OrderChecker* checker = detail::OrderChecker::active();
  return checker ? checker->stats() : OrderStats{};
}

}  // namespace lockstep
