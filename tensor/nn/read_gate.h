// Who reads the elements of parameters, and who replaces them. A call of a module reads all it uses from its beginning
// to its end; a refresh of mirrors, or a load of new elements, comes before it or after it, never in its middle.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

class ParameterBody;

// Readers on one side, writers on the other. A reader that comes while a writer waits queues behind it, and goes before
// the next one: neither side starves the other. Several gates are closed all at once or not at all, and no writer holds
// one while it waits: so writers of different gates cannot wait for each other.
class LOCKSTEP_API ReadGate {
 public:
  enum class Of : std::uint8_t { home, mirrors };
  explicit ReadGate(Of of = Of::home);
  ReadGate(const ReadGate&) = delete;
  ReadGate& operator=(const ReadGate&) = delete;

  Of of() const { return of_; }
  // Waits, with the default deadline, while a writer is inside or, unless `passing`, waits; no longer for one that
  // waits than until no reader has left for the patience.
  void enter(bool passing = false);
  void leave() noexcept;
  // Waits until nobody is inside any of `gates`. False at the deadline: then none is closed.
  static bool close(std::span<ReadGate* const> gates, Deadline deadline);
  static bool try_close(std::span<ReadGate* const> gates);  // if nobody is inside now
  static void open(std::span<ReadGate* const> gates) noexcept;
  // Of all gates; for tests.
  static void set_patience(Milliseconds patience) { patience_ = patience; }
  static constexpr Milliseconds kPatience{5'000};
  bool wanted() const { return (state_.load(std::memory_order_acquire) & kWanted) != 0; }  // a writer waits
  int readers() const { return static_cast<int>(state_.load(std::memory_order_acquire) & kReaders); }

  // The order of the work on devices, of streams that do not run it at once. By a reader, inside: what `stream` does
  // from now on comes after what the last writer enqueued, and before what the next one does.
  void read_on(const Stream& stream);
  // By a writer, inside: what `stream` does from now on comes after what the readers, and the last writer, enqueued.
  void write_on(const Stream& stream);
  void written_on(const Stream& stream);  // when the writer has enqueued it all

 private:
  static constexpr std::uint32_t kWriting = 1u << 31, kWanted = 1u << 30, kReaders = kWanted - 1;
  bool take();  // by a writer
  static bool take_all(std::span<ReadGate* const> gates);
  static void take_over_from(std::span<ReadGate* const> gates);
  void admit();  // who has queued, when no writer is inside

  static inline std::atomic<Milliseconds> patience_ = kPatience;
  const Of of_;
  std::atomic<std::uint32_t> state_{0};
  // Under the mutex of all gates.
  int writers_ = 0;           // that wait
  std::uint32_t queued_ = 0;  // readers
  std::uint64_t turn_ = 0;    // how often those have been admitted

  std::mutex mutex_;                               // of what follows
  std::vector<detail::StreamBody*> readers_;       // since the last write
  std::vector<std::pair<Device, Event>> written_;  // the last one
};

// What this thread reads while the object lives. Scopes nest; what an outer one holds an inner one may enter at any
// time, also while a writer waits.
class LOCKSTEP_API Reading {
 public:
  using Held = std::vector<std::shared_ptr<ReadGate>>;  // each entered once more

  // `held` is the caller's, for a replica that works for it, and outlives this object.
  explicit Reading(const Held* held = nullptr);
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading();

  static Reading* current();  // this thread's innermost one, or null
  static bool holds(const ReadGate& gate);

  // Enters the gate unless this thread has. Throws TimeoutError when a writer stays inside.
  void enter(const std::shared_ptr<ReadGate>& gate) { entry(gate); }
  // The same for the gate of a parameter's home, and for work on `stream`.
  void read(const ParameterBody& body, const Stream& stream);

  // What this thread holds of homes, for those who work for it. `leave` gives it back, from any thread.
  static Held share();
  static void leave(Held& held) noexcept;

 private:
  struct Entry {
    std::shared_ptr<ReadGate> gate;
    detail::StreamBody* stream = nullptr;  // the last one that it was read on
  };
  Entry& entry(const std::shared_ptr<ReadGate>& gate);
  Entry* find(const ReadGate& gate);
  template <class F>
  void for_each(F&& f);

  Reading* const outer_;
  const Held* const held_;
  std::array<Entry, 2> first_;  // nearly always enough
  std::size_t count_ = 0;
  bool has_mirrors_ = false;
  std::vector<Entry> more_;
};

namespace detail {

// Gives the bodies that have no gate yet one in common. Done where a module is used as a whole.
LOCKSTEP_API void share_gate(std::span<ParameterBody* const> bodies);

// While it lives, this thread alone uses the elements at home of `bodies`: calls that read them are over, others wait.
class Writing {
 public:
  // `devices`: where their elements are, or will be. Throws Error, naming `op`, inside a call that reads them, and on a
  // device thread when it would have to wait; and TimeoutError when calls that read them do not end.
  Writing(const char* op, std::span<ParameterBody* const> bodies, std::span<const Device> devices, Deadline deadline);
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
  ~Writing();

 private:
  std::vector<std::shared_ptr<ReadGate>> owners_;
  std::vector<ReadGate*> gates_;
  std::vector<detail::StreamBody*> streams_;
};

}  // namespace detail

}  // namespace lockstep
