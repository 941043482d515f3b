// The memory that the ranks of a shared-memory group have in common: who is there, why it failed, and the ranks'
// states and slots in its channels. Private memory for threads, a memfd for processes; everything in it is plain data,
// zero at first, and every rank trusts the others no further than its own bounds.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/collective.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

// What a rank tells the others of a call.
struct alignas(64) WorkDescriptor {
  Fingerprint print;
  const void* input;
  void* output;
  std::uint64_t bytes;  // of the whole message of an exchange
};

// A rank's state in a channel. Only the rank writes it; the others read a descriptor once `arrived` says so.
struct alignas(128) RankState {
  std::atomic<std::uint64_t> arrived;  // steps of the channel that the rank has come to
  std::atomic<std::uint32_t> busy;     // it reads and writes the others' memory
  // In the states of the host channel: how many collectives of the stream channel (high half) and exchanges (low half)
  // the rank's host thread has called. In those of the other channels: the last call that it has come to, where hosts
  // meet.
  std::atomic<std::uint64_t> called;
  WorkDescriptor descriptors[2];  // calls take turns: who is one call ahead does not disturb who still reads
};

// What the ranks of a group agree on before they have the memory.
struct ControlBlockLayout {
  std::int32_t ranks = 0;
  std::int32_t threads = 0;  // 1: ranks are threads of one process and reach each other's tensors
  std::uint64_t slot_bytes = 0, pair_slot_bytes = 0, host_slot_bytes = 0;
  friend bool operator==(const ControlBlockLayout&, const ControlBlockLayout&) = default;
};

class ControlBlock {
 public:
  static constexpr int kMostRanks = 128;
  enum class Presence : std::uint32_t { here, left, died };
  struct Failure {
    int rank;
    std::string text;
  };
  // Ranks' states and slots of one channel; a slot is two buffers of slot_bytes.
  struct Region {
    RankState* states;
    std::byte* slots;
    std::size_t slot_bytes;
  };

  // Private memory, or that of `file`, a memfd of bytes_of(layout); which need not stay open.
  explicit ControlBlock(const ControlBlockLayout& layout, int file = -1);
  ControlBlock(const ControlBlock&) = delete;
  ControlBlock& operator=(const ControlBlock&) = delete;
  ~ControlBlock();
  static std::size_t bytes_of(const ControlBlockLayout& layout);

  int ranks() const { return layout_.ranks; }
  bool threads() const { return layout_.threads != 0; }
  // False in a forked child: the rank is its parent.
  bool in_own_process() const;
  Region stream_region() const;
  Region host_region() const;
  Region pair_region(int source, int destination) const;

  // The first failure stays.
  void fail(int rank, const std::string& text);
  bool failed() const;
  std::optional<Failure> failure() const;
  void set_presence(int rank, Presence presence);  // the first change stays
  Presence presence(int rank) const;
  // Whom a rank waits for in its call: until `counter`, which is in this memory, is `least`. Shown once the wait is
  // long enough to sleep. A rank that is stopped shows it for ever: it counts while the other has not come.
  void set_waits_for(int rank, int other, const std::atomic<std::uint64_t>& counter, std::uint64_t least);
  void set_waits_for_nobody(int rank);
  // Where the waits that begin with `rank` end: a rank that is waited for and waits for nobody. In a circle, `rank`.
  int end_of_waits(int rank) const;

  // Wakes the ranks that wait. To be called after every change that a wait may be about.
  void notify_all();
  // Until `ready()`, or `over()`, or the deadline; spins, then gives its core away, then sleeps. Returns ready().
  template <class Ready, class Over>
  bool wait_until(Ready&& ready, Over&& over, const Deadline& deadline);

 private:
  struct Header;
  struct Awaited;
  bool has_come(const Awaited& awaited) const;
  bool spin_step(int& round, Clock::time_point& yields_end) const;
  void sleep(std::uint32_t epoch, const Deadline& deadline);
  std::uint32_t begin_wait();
  void end_wait();

  ControlBlockLayout layout_;
  std::size_t bytes_;
  std::byte* memory_;
  Header* header_;
  int spins_;
  pid_t process_;
};

template <class Ready, class Over>
bool ControlBlock::wait_until(Ready&& ready, Over&& over, const Deadline& deadline) {
  if (ready()) return true;
  Clock::time_point yields_end{};
  for (int round = 0; spin_step(round, yields_end);)
    if (ready()) return true;
  for (;;) {
    if (over()) return ready();
    const std::uint32_t epoch = begin_wait();
    // Looked at once more: whoever changes something after this sees a waiter, and notifies it.
    if (!ready() && !over()) sleep(epoch, deadline);
    end_wait();
    if (ready()) return true;
    if (deadline.passed()) return ready();
  }
}

}  // namespace lockstep::detail
