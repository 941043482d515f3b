// The order checker behind runtime/order/order.h. Private to the library.
//
// Actors are streams and host threads; each has a vector clock. An operation on a stream happens after what the stream
// has run or waited for, and after what the thread that enqueues it has waited for; work on plain memory is the host
// thread's own. Shadow memory holds the last write and the reads since for every byte; an access that the operation's
// clock does not cover is a race. Releasing a block is an operation on its stream, handing it out again is one too.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/order/shadow_memory.h"

namespace lockstep::detail {

struct HostThread;

// How far a stream's operations have been enqueued and have run, in the checker's count.
struct StreamTicks {
  std::atomic<std::uint64_t> issued{0}, completed{0};
};

// A block of the allocator, as the checker sees it.
struct CheckedBlock {
  const void* data;
  std::size_t bytes;
  StreamHandle stream;  // whose order governs reuse
};

class OrderChecker {
 public:
  // Null unless the host devices are in mode strict.
  static OrderChecker* active() { return active_.load(std::memory_order_acquire); }
  // Makes it, once.
  static OrderChecker& start();

  // From the backends. A handle that add_stream never saw is a stream of plain memory: what runs there is the calling
  // thread's own.
  void add_stream(StreamHandle handle, Device device, StreamTicks& ticks);
  void remove_stream(StreamHandle handle) noexcept;
  // Another name for a stream, for backends whose handles are not those that the checker was told of.
  void alias(StreamHandle handle, StreamHandle stream);
  void remove_alias(StreamHandle handle) noexcept;
  VectorClock record(StreamHandle handle);  // what an event on the stream marks
  void wait(StreamHandle handle, const VectorClock& event);
  void host_wait(const VectorClock& event);
  void waited_for(StreamHandle handle) noexcept;  // for all that was on the stream; throws nothing that was deferred
  void add_memory(const void* memory, std::size_t bytes, Device device, bool anybodys);
  void remove_memory(const void* memory) noexcept;
  void copy(StreamHandle handle, const CopyArgs& args);
  void fill(StreamHandle handle, Device device, const void* memory, std::size_t bytes);
  void use(StreamHandle handle, const char* operation, std::span<const MemoryUse> uses, Place place);

  // From the allocator. What is wrong about a release is thrown by the next operation or host wait of any thread.
  void allocated(const CheckedBlock& block);
  void released(const CheckedBlock& block) noexcept;
  void used(const CheckedBlock& block, StreamHandle user);
  void settled(const CheckedBlock& block) noexcept;  // what other streams did with it has run

  // Between host threads.
  VectorClock known();  // to the calling thread
  void learn(const VectorClock& known);
  void hand_over(const void* address);
  void take_over(const void* address);
  void forget_hand_overs(const void* address);
  void end_thread(HostThread& thread) noexcept;

  void label_stream(StreamHandle handle, const char* label);
  // Whether the calling thread knows of everything that the stream has done and waited for. Then work that comes on it
  // next is ordered after nothing that it would not be ordered after on a new one.
  bool knows_all_of(StreamHandle handle);
  OrderStats stats();

 private:
  struct Actor {
    std::string name;
    bool is_thread = false;
    StreamTicks* ticks = nullptr;  // of a stream, until it is destroyed
    VectorClock clock;             // of a stream; a thread keeps its own
  };
  struct Memory {
    std::uintptr_t end;
    Device device;
    bool anybodys;  // pinned: every device may use it
  };
  struct BlockInfo {
    std::uintptr_t end;
    std::vector<ActorId> users;  // streams named by record_use
  };
  // An operation on its way.
  struct Current {
    HostThread& thread;
    ActorId actor;
    const VectorClock& known;  // what it happens after
    std::shared_ptr<const Operation> operation;
  };

  HostThread& this_thread();
  Current begin(StreamHandle handle, const char* operation, Place place);
  Access access_of(const Current& current, bool new_tick);
  void check_memory(const Operation& operation, const MemoryUse& use, ByteRun bounds) const;
  void check_race(const Current& current, ByteRun run, bool writes);
  bool in_order(const Current& current, const Access& earlier);
  bool threads_know(const Access& access);  // counts: in order if the host threads have handed over
  template <class Visit>
  static void for_each_access(const ShadowMemory::Cell& cell, Visit visit);
  void defer(const std::string& problem);
  void throw_deferred();

  // Texts.
  std::string describe(const Operation& operation) const;
  std::string edge_text(const Operation& first, const Operation& second) const;
  std::string race_text(const Operation& second, bool second_writes, const Operation& first, bool first_writes,
                        ByteRun bytes) const;
  std::string released_text(const Operation& operation, bool writes, const Operation& release, ByteRun bytes) const;
  std::string release_text(const Operation& release, const Operation& user, bool reuse, ByteRun bytes) const;
  std::string free_text(const Operation& user, const HostThread& thread, ByteRun bytes) const;

  static std::atomic<OrderChecker*> active_;

  std::mutex mutex_;
  std::vector<Actor> actors_;
  std::unordered_map<StreamHandle, ActorId> streams_;
  int streams_made_ = 0, threads_seen_ = 0;
  VectorClock all_threads_;    // what any host thread knows
  VectorClock ended_threads_;  // what those knew that have ended: whoever joined them knows it too
  std::uint64_t threads_ended_ = 0;
  std::vector<HostThread*> vacant_;  // of threads that have ended
  std::unordered_map<const void*, VectorClock> handovers_;
  ShadowMemory shadow_;
  std::map<std::uintptr_t, Memory> memories_;
  std::map<std::uintptr_t, BlockInfo> blocks_;  // handed out
  std::exception_ptr deferred_;
  OrderStats stats_;
};

// What a host thread is to the checker. Guarded by the checker's mutex, and never freed: whatever else a thread
// destroys when it ends may still come by. Everybody knows what a thread did that has ended, so that the next one is
// its sequel: clocks are as long as there are threads at a time.
struct HostThread {
  ActorId actor = 0;
  std::uint64_t tick = 0;
  std::uint64_t ended_seen = 0;
  VectorClock clock;
};

// The place that copies made by this thread are reported with.
inline constinit thread_local Place copy_place;

// Sets it for the copies that are enqueued in the scope.
class CopyPlaceScope {
 public:
  CopyPlaceScope(bool checked, Place place) : checked_(checked) {
    if (checked_) [[unlikely]]
      copy_place = place;
  }
  CopyPlaceScope(const CopyPlaceScope&) = delete;
  CopyPlaceScope& operator=(const CopyPlaceScope&) = delete;
  ~CopyPlaceScope() {
    if (checked_) [[unlikely]]
      copy_place = {};
  }

 private:
  bool checked_;
};

}  // namespace lockstep::detail
