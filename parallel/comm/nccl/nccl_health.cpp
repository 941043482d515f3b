// How an NCCL rank finds out that something is wrong, and what becomes of it then.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <thread>

#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/parallel/comm/odd_one_out.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/growth_lock.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::nccl {
namespace {

constexpr Milliseconds kAbortTime{10'000};  // after that the device is left to itself
constexpr Milliseconds kStoreInterval{100};
// How long the others have to say where they are, once one is late.
constexpr Milliseconds kStateTime{2'000};
constexpr const char* kState = "state";

// What a rank says when it is asked where it is.
struct State {
  std::uint64_t number = 0;     // of its last collective
  std::string last, waits_for;  // its last call; the first that is not through
};
State state_in(const std::optional<std::string>& text) {
  if (!text) return {};
  const std::size_t space = text->find(' '), line = text->find('\n');
  if (space == text->npos || line == text->npos || line < space) return {};
  return {std::strtoull(text->c_str(), nullptr, 10), text->substr(space + 1, line - space - 1), text->substr(line + 1)};
}

void rest() { std::this_thread::sleep_for(Milliseconds(1)); }

// Threads that give communicators back. The end of the program waits for them, for a while: NCCL and CUDA must not be
// taken down under their feet.
std::atomic<int> giving_back{0};
void let_them_finish() {
  const Deadline deadline = Deadline::after(Milliseconds(5'000));
  while (giving_back.load(std::memory_order_acquire) > 0 && !deadline.passed()) rest();
}

}  // namespace

bool Rank::retire() noexcept {
  const auto through = [](const PendingWork& entry) {
    try {
      return entry.done.progress() != Event::Progress::pending;
    } catch (...) {  // the device is lost
      return true;
    }
  };
  const std::lock_guard lock(state_);
  while (!pending_.empty() && through(pending_.front())) {
    pending_.pop_front();
    detail::end_collective();
  }
  return pending_.empty();
}

void Rank::poll() noexcept try {
  const std::unique_lock polling(polling_, std::try_to_lock);
  if (!polling) return;
  if (failed_.load(std::memory_order_acquire)) {
    if (retire() || Clock::now() < give_up_) return;
    const std::lock_guard lock(state_);  // the abort hangs
    for (; !pending_.empty(); pending_.pop_front()) detail::end_collective();
    return;
  }
  if (!retire()) check_nccl();
  check_store();
  check_timeout();
} catch (const CommError& error) {
  fail(error);
} catch (...) {
  fail(CommError(oob_.rank(), "nccl", detail::describe(std::current_exception())));
}

void Rank::check_nccl() {
  Result result = kSuccess;
  {
    const std::unique_lock use(use_, std::try_to_lock);  // who is in there sees for itself
    if (!use || !comm_ || nccl_.comm_get_async_error(comm_, &result) != kSuccess) return;
  }
  if (result == kSuccess || result == kInProgress) return;
  if (!others_asked()) return;  // NCCL does not say whom it has lost
  std::string name = "nccl";
  {
    const std::lock_guard lock(state_);
    if (!pending_.empty()) name = to_string(pending_.front().fingerprint.kind);
  }
  throw blame(name, silent_rank(), explain(result));
}

void Rank::check_store() {
  if (Clock::now() < next_store_check_) return;
  next_store_check_ = Clock::now() + kStoreInterval;
  if (const std::optional<CommError> error = oob_.failure()) throw *error;
  publish_state_if_asked();
  std::optional<Fingerprint> oldest;
  {
    const std::lock_guard lock(state_);
    if (!pending_.empty()) oldest = pending_.front().fingerprint;
  }
  if (!oldest || Collective{.kind = oldest->kind}.pairwise()) return;
  if (const std::optional<int> rank = oob_.left_before(oldest->sequence))
    throw CommError(*rank, to_string(oldest->kind), "it left before this collective: its communicator was destroyed");
}

void Rank::check_timeout() {
  const Clock::time_point now = Clock::now();
  Fingerprint oldest;
  Milliseconds timeout{};
  std::vector<int> peers;
  {
    const std::lock_guard lock(state_);
    if (pending_.empty() || now < pending_.front().deadline) return;
    oldest = pending_.front().fingerprint;
    timeout = pending_.front().timeout;
    peers = pending_.front().peers;
  }
  if (!others_asked()) return;
  throw peers.empty() ? explain_timeout(oldest, timeout) : explain_pair_timeout(oldest, timeout, peers);
}

// Where are the others? True when all have said so, or had the time to. By one thread at a time: see polling_.
bool Rank::others_asked() {
  const Clock::time_point now = Clock::now();
  if (!states_requested_at_) {
    states_requested_at_ = now;
    oob_.request_states();
    publish_state();
  }
  return silent_rank() == oob_.rank() || now >= *states_requested_at_ + kStateTime;
}

// The first that has been asked and does not say where it is; none: this one.
int Rank::silent_rank() {
  for (int r = 0; r < oob_.size(); ++r)
    if (r != oob_.rank() && !oob_.peek(kState, r)) return r;
  return oob_.rank();
}

// The same for a thread that may wait. Throws what another rank has found out meanwhile.
int Rank::find_silent_rank() {
  for (;; rest()) {
    if (const std::optional<CommError> error = oob_.failure()) throw *error;
    const std::lock_guard polling(polling_);
    if (others_asked()) return silent_rank();
  }
}

CommError Rank::blame(const std::string& collective, int silent, const std::string& text) const {
  if (silent == oob_.rank()) return CommError(silent, collective, text);
  return CommError(silent, collective,
                   cat("it says nothing any more, and NCCL says to rank ", oob_.rank(), ": ", text));
}

// What this rank has enqueued last, and what it waits for, for a rank that looks for the one that is missing.
void Rank::publish_state() {
  std::string text;
  {
    const std::lock_guard lock(state_);
    text = cat(last_number_, ' ', last_enqueued_ ? to_string(*last_enqueued_) : "", '\n',
               pending_.empty() ? "" : to_string(pending_.front().fingerprint));
  }
  oob_.publish(kState, text);
  state_published_ = true;
}
void Rank::publish_state_if_asked() {
  if (!state_published_ && oob_.states_requested()) publish_state();
}

// Names who is missing or has called something else.
CommError Rank::explain_timeout(const Fingerprint& oldest, Milliseconds timeout) {
  const State mine = state_in(oob_.peek(kState, oob_.rank()));
  std::optional<int> missing;
  std::string text, differences;
  std::vector<int> waiting;          // for what has not come about
  std::vector<std::string> awaited;  // what that is
  for (int r = 0; r < oob_.size(); ++r) {
    const std::optional<std::string> said = oob_.peek(kState, r);
    const State state = state_in(said);
    if (!said || state.number < oldest.sequence) {
      if (!missing) missing = r;
      text += cat("; rank ", r, " did not come (",
                  !said                ? "and says nothing"
                  : state.last.empty() ? "it has made no call"
                                       : "its last call was " + state.last,
                  ")");
    } else if (!state.waits_for.empty()) {
      waiting.push_back(r);
      awaited.push_back(state.waits_for);
      if (state.waits_for != mine.waits_for) differences += cat("; rank ", r, " has called ", state.waits_for);
    }
  }
  const auto same = [&](int a, int b) {
    return awaited[static_cast<std::size_t>(a)] == awaited[static_cast<std::size_t>(b)];
  };
  int rank = oob_.rank();
  if (missing)
    rank = *missing;
  else if (const auto found = detail::odd_one_out(static_cast<int>(waiting.size()), same))
    rank = waiting[static_cast<std::size_t>(found->odd)];
  return CommError(rank, to_string(oldest.kind),
                   cat("rank ", oob_.rank(), " expected ", to_string(oldest), " to be through within ", timeout.count(),
                       " ms, it is not", text, differences));
}

// Sends and receives have numbers of their own, per pair, so how far others are says nothing. Names a rank that is
// silent, before all one that is waited for; else one that is waited for, before all one that waits for nothing itself.
CommError Rank::explain_pair_timeout(const Fingerprint& oldest, Milliseconds timeout, const std::vector<int>& peers) {
  std::optional<int> silent, idle;
  std::string text;
  for (const int peer : std::set<int>(peers.begin(), peers.end())) {
    const std::optional<std::string> said = oob_.peek(kState, peer);
    const State state = state_in(said);
    if (!said && !silent) silent = peer;
    if (said && state.waits_for.empty() && !idle) idle = peer;
    text += cat("; rank ", peer,
                !said                     ? " says nothing"
                : state.waits_for.empty() ? " waits for nothing"
                                          : " waits for " + state.waits_for);
  }
  if (const int other = silent_rank(); !silent && other != oob_.rank()) silent = other;
  const int rank = silent ? *silent : idle.value_or(peers[0]);
  return CommError(rank, to_string(oldest.kind),
                   cat("rank ", oob_.rank(), " expected ", to_string(oldest), ", ",
                       oldest.kind == Collective::Kind::send ? "to" : "from", " rank ", peers[0],
                       peers.size() > 1 ? cat(", the first of ", peers.size(), " at once,") : "",
                       " to be through within ", timeout.count(), " ms, it is not", text));
}

// An exchange to which not all have come: those who have are to blame where most wait for something else.
CommError Rank::explain_exchange(const Collective& collective, const std::string& name) {
  const int silent = find_silent_rank();
  std::optional<int> first_here, first_missing;
  int here = 0, elsewhere = 0;
  std::string text;
  for (int r = 0; r < oob_.size(); ++r) {
    if (oob_.peek(name, r)) {
      if (here++ == 0) first_here = r;
      continue;
    }
    if (!first_missing) first_missing = r;
    const State state = state_in(oob_.peek(kState, r));
    elsewhere += !state.waits_for.empty();
    text += cat("; rank ", r, " did not come", state.waits_for.empty() ? "" : cat(", it waits for ", state.waits_for));
  }
  const int rank = here > 0 && elsewhere > here ? *first_here
                   : silent != oob_.rank()      ? silent
                                                : first_missing.value_or(oob_.rank());
  return CommError(rank, to_string(collective.kind),
                   cat("rank ", oob_.rank(), " expected every rank within ", collective.timeout.count(), " ms", text));
}

// ---- the end

void Rank::fail(const CommError& error) noexcept try {
  retire();
  {
    const std::lock_guard lock(state_);
    if (failure_) return;
    failure_ = error;
    give_up_ = Clock::now() + kAbortTime;
    reported_.store(closed_.load() || pending_.empty(), std::memory_order_release);
    failed_.store(true, std::memory_order_release);
  }
  if (place_) place_->fail(error);
  abort_in_a_thread();
  detail::break_off_all(error, this);
  {
    const std::lock_guard lock(owner_mutex_);
    if (broken_) broken_(error);
  }
  oob_.report(error);
} catch (...) {
  // The store is gone, or there is no memory: the failure itself is known.
}

void Rank::break_off(const CommError& why) noexcept {
  if (!retire()) fail(why);
}

void Rank::tell(Device waiting) {
  if (waiting != device_ || !failed_.load(std::memory_order_acquire) || reported_.exchange(true)) return;
  wait_for_abort();
  throw *failure();
}

void Rank::wait_for_abort() {
  const Deadline deadline = Deadline::after(kAbortTime);
  while (!aborted_.load(std::memory_order_acquire) && !deadline.passed()) rest();
}

// Ending a communicator may wait for the kernels of others, so each is ended by a thread of its own.
void Rank::abort_in_a_thread() noexcept try {
  detail::start_service_thread("lockstep-abort", [self = shared_from_this()] {
    try {
      const cuda::CurrentDevice current(self->device_);
      const std::lock_guard lock(self->use_);
      if (self->comm_) (void)self->nccl_.comm_abort(std::exchange(self->comm_, nullptr));
    } catch (...) {  // the device is lost, and the communicator with it
    }
    self->retire();
    self->aborted_.store(true, std::memory_order_release);
  });
} catch (...) {
  aborted_.store(true, std::memory_order_release);
}

void Rank::close() noexcept try {
  {
    const std::lock_guard lock(owner_mutex_);
    broken_ = nullptr;
  }
  closed_ = true;
  mark_reported();  // there is nobody any more
  if (place_) place_->leave(member_of_rank_[static_cast<std::size_t>(oob_.rank())]);
  static const int registered = std::atexit(let_them_finish);
  (void)registered;
  giving_back.fetch_add(1, std::memory_order_acq_rel);
  try {
    detail::start_service_thread("lockstep-close", [self = shared_from_this()] {
      self->give_back();
      giving_back.fetch_sub(1, std::memory_order_acq_rel);
    });
  } catch (...) {
    giving_back.fetch_sub(1, std::memory_order_acq_rel);
    throw;
  }
} catch (...) {
  detail::remove_in_flight(this);
}

// When what is on the way is through, or broken off.
void Rank::give_back() noexcept {
  try {
    oob_.leave(last_number_);
  } catch (...) {  // the store is gone
  }
  while (!retire()) {
    poll();
    rest();
  }
  try {
    const cuda::CurrentDevice current(device_);
    const std::lock_guard lock(use_);
    if (Comm comm = std::exchange(comm_, nullptr)) {
      Result state = failed_.load() ? kInternalError : nccl_.comm_finalize(comm);
      for (const Deadline deadline = Deadline::after(kAbortTime);
           (state == kSuccess || state == kInProgress) && !deadline.passed(); rest()) {
        if (nccl_.comm_get_async_error(comm, &state) != kSuccess) state = kInternalError;
        if (state == kSuccess) break;
      }
      (void)(state == kSuccess ? nccl_.comm_destroy(comm) : nccl_.comm_abort(comm));
    }
  } catch (...) {
  }
  detail::remove_in_flight(this);
}

}  // namespace lockstep::nccl
