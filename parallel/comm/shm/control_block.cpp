#include "lockstep/parallel/comm/shm/control_block.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <thread>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kLine = 4096;  // what belongs to different ranks or channels begins on a page of its own
constexpr std::size_t kTextBytes = 3000;
// Rounds of spinning while every rank can have a core, and how long a wait then gives its core away before it sleeps.
constexpr int kSpins = 120, kSpinsWhenCrowded = 4;
constexpr std::chrono::microseconds kYieldTime{150};

std::size_t rounded(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::size_t channel_bytes(std::size_t members, std::size_t slot_bytes) {
  return rounded(members * sizeof(RankState)) + members * 2 * rounded(slot_bytes);
}

}  // namespace

struct ControlBlock::Awaited {
  std::atomic<std::int32_t> rank;  // the rank + 1; 0: nobody
  std::atomic<std::uint64_t> counter_offset, least;
};

// failed: 0 no, 1 the text is being written, 2 yes.
struct ControlBlock::Header {
  alignas(128) std::atomic<std::uint32_t> epoch;
  alignas(128) std::atomic<std::uint32_t> waiters;
  alignas(128) std::atomic<std::uint32_t> failed;
  std::int32_t failed_rank;
  char text[kTextBytes];
  alignas(128) std::atomic<std::uint32_t> presence[kMostRanks];
  alignas(128) Awaited waits_for[kMostRanks];
};

std::size_t ControlBlock::bytes_of(const ControlBlockLayout& layout) {
  const auto n = static_cast<std::size_t>(layout.ranks);
  return rounded(sizeof(Header)) + channel_bytes(n, layout.slot_bytes) + channel_bytes(n, layout.host_slot_bytes) +
         n * n * channel_bytes(2, layout.pair_slot_bytes);
}

ControlBlock::ControlBlock(const ControlBlockLayout& layout, int file)
    : layout_(layout), bytes_(bytes_of(layout)), process_(getpid()) {
  // Untouched pages cost nothing: most pairs never send.
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_NORESERVE;
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, file, 0);
  if (memory == MAP_FAILED) {
    detail::fail<Error>("[communicator] expected ", bytes_to_string(bytes_), " of shared memory, got ",
                        std::strerror(errno));
  }
  memory_ = static_cast<std::byte*>(memory);
  header_ = std::launder(reinterpret_cast<Header*>(memory_));
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
  spins_ = std::thread::hardware_concurrency() >= static_cast<unsigned>(layout.ranks) ? kSpins : kSpinsWhenCrowded;
}

ControlBlock::~ControlBlock() { munmap(memory_, bytes_); }

bool ControlBlock::in_own_process() const { return getpid() == process_; }

// In this order: header, the streams' channel, the hosts' channel, a channel per pair.
ControlBlock::Region ControlBlock::stream_region() const {
  std::byte* begin = memory_ + rounded(sizeof(Header));
  const auto n = static_cast<std::size_t>(layout_.ranks);
  return {reinterpret_cast<RankState*>(begin), begin + rounded(n * sizeof(RankState)), rounded(layout_.slot_bytes)};
}

ControlBlock::Region ControlBlock::host_region() const {
  const auto n = static_cast<std::size_t>(layout_.ranks);
  std::byte* begin = memory_ + rounded(sizeof(Header)) + channel_bytes(n, layout_.slot_bytes);
  return {reinterpret_cast<RankState*>(begin), begin + rounded(n * sizeof(RankState)),
          rounded(layout_.host_slot_bytes)};
}

ControlBlock::Region ControlBlock::pair_region(int source, int destination) const {
  const auto n = static_cast<std::size_t>(layout_.ranks);
  const std::size_t index = static_cast<std::size_t>(source) * n + static_cast<std::size_t>(destination);
  std::byte* begin = memory_ + rounded(sizeof(Header)) + channel_bytes(n, layout_.slot_bytes) +
                     channel_bytes(n, layout_.host_slot_bytes) + index * channel_bytes(2, layout_.pair_slot_bytes);
  return {reinterpret_cast<RankState*>(begin), begin + rounded(2 * sizeof(RankState)),
          rounded(layout_.pair_slot_bytes)};
}

void ControlBlock::fail(int rank, const std::string& text) {
  std::uint32_t none = 0;
  if (header_->failed.compare_exchange_strong(none, 1, std::memory_order_seq_cst)) {
    header_->failed_rank = rank;
    const std::size_t length = std::min(text.size(), kTextBytes - 1);
    std::memcpy(header_->text, text.data(), length);
    header_->text[length] = '\0';
    header_->failed.store(2, std::memory_order_seq_cst);
  }
  notify_all();
}

bool ControlBlock::failed() const { return header_->failed.load(std::memory_order_seq_cst) != 0; }

std::optional<ControlBlock::Failure> ControlBlock::failure() const {
  if (!failed()) return std::nullopt;
  // Who writes the text may be stopped while it does so.
  const Deadline deadline = Deadline::after(Milliseconds(100));
  while (header_->failed.load(std::memory_order_acquire) != 2) {
    if (deadline.passed()) return Failure{0, "the group has failed; the reason was not written"};
    sched_yield();
  }
  return Failure{header_->failed_rank, std::string(header_->text, strnlen(header_->text, kTextBytes))};
}

void ControlBlock::set_presence(int rank, Presence presence) {
  std::uint32_t here = static_cast<std::uint32_t>(Presence::here);
  header_->presence[rank].compare_exchange_strong(here, static_cast<std::uint32_t>(presence));
  notify_all();
}

ControlBlock::Presence ControlBlock::presence(int rank) const {
  return static_cast<Presence>(header_->presence[rank].load(std::memory_order_acquire));
}

void ControlBlock::set_waits_for(int rank, int other, const std::atomic<std::uint64_t>& counter, std::uint64_t least) {
  Awaited& awaited = header_->waits_for[rank];
  awaited.rank.store(0, std::memory_order_relaxed);
  awaited.counter_offset.store(static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(&counter) - memory_),
                               std::memory_order_release);
  awaited.least.store(least, std::memory_order_release);
  awaited.rank.store(other + 1, std::memory_order_release);
}

void ControlBlock::set_waits_for_nobody(int rank) { header_->waits_for[rank].rank.store(0, std::memory_order_relaxed); }

bool ControlBlock::has_come(const Awaited& awaited) const {
  using Counter = std::atomic<std::uint64_t>;
  const std::uint64_t offset = awaited.counter_offset.load(std::memory_order_acquire);
  if (offset > bytes_ - sizeof(Counter) || offset % alignof(Counter) != 0) return false;
  const auto* counter = std::launder(reinterpret_cast<const Counter*>(memory_ + offset));
  return counter->load(std::memory_order_acquire) >= awaited.least.load(std::memory_order_acquire);
}

int ControlBlock::end_of_waits(int rank) const {
  int end = rank;
  for (int steps = 0; steps < ranks(); ++steps) {
    const Awaited& awaited = header_->waits_for[end];
    const int next = awaited.rank.load(std::memory_order_acquire) - 1;
    if (next < 0 || next >= ranks() || has_come(awaited)) return end;
    end = next;
  }
  return rank;
}

// ---- waiting

void ControlBlock::notify_all() {
  if (header_->waiters.load(std::memory_order_seq_cst) == 0) [[likely]]
    return;
  header_->epoch.fetch_add(1, std::memory_order_seq_cst);
  const int wake = threads() ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE;
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&header_->epoch), wake, INT_MAX, nullptr, nullptr, 0);
}

bool ControlBlock::spin_step(int& round, Clock::time_point& yields_end) const {
  if (round < spins_) {
    ++round;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return true;
  }
  // There may be more ranks than cores: the one that is waited for gets this one.
  sched_yield();
  const Clock::time_point now = Clock::now();
  if (yields_end == Clock::time_point{}) yields_end = now + kYieldTime;
  return now < yields_end && !failed();
}

std::uint32_t ControlBlock::begin_wait() {
  header_->waiters.fetch_add(1, std::memory_order_seq_cst);
  return header_->epoch.load(std::memory_order_seq_cst);
}

void ControlBlock::end_wait() { header_->waiters.fetch_sub(1, std::memory_order_seq_cst); }

void ControlBlock::sleep(std::uint32_t epoch, const Deadline& deadline) {
  using std::chrono::nanoseconds;
  const auto since_start = std::chrono::duration_cast<nanoseconds>(deadline.time().time_since_epoch()).count();
  const timespec time{.tv_sec = since_start / 1'000'000'000, .tv_nsec = since_start % 1'000'000'000};
  // The bitset form takes an absolute time, on the clock of steady_clock.
  const int wait = threads() ? FUTEX_WAIT_BITSET_PRIVATE : FUTEX_WAIT_BITSET;
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&header_->epoch), wait, epoch, &time, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

}  // namespace lockstep::detail
