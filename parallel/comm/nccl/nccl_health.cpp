// How an NCCL rank finds out that something is wrong, and what becomes of it then.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "lockstep/parallel/comm/nccl/nccl_rank.h"
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
  std::string name = "nccl";
  {
    const std::lock_guard lock(state_);
    if (!pending_.empty()) name = to_string(pending_.front().fingerprint.kind);
  }
  throw CommError(oob_.rank(), name, explain(result));
}

void Rank::check_store() {
  if (Clock::now() < next_store_check_) return;
  next_store_check_ = Clock::now() + kStoreInterval;
  if (const std::optional<CommError> error = oob_.failure()) throw *error;
  if (!state_published_ && oob_.states_requested()) publish_state();
  std::optional<Fingerprint> oldest;
  {
    const std::lock_guard lock(state_);
    if (!pending_.empty()) oldest = pending_.front().fingerprint;
  }
  if (!oldest || oldest->kind == Collective::Kind::send || oldest->kind == Collective::Kind::recv) return;
  if (const std::optional<int> rank = oob_.left_before(oldest->sequence))
    throw CommError(*rank, to_string(oldest->kind), "it left before this collective: its communicator was destroyed");
}

void Rank::check_timeout() {
  const Clock::time_point now = Clock::now();
  Fingerprint oldest;
  Milliseconds timeout{};
  {
    const std::lock_guard lock(state_);
    if (pending_.empty() || now < pending_.front().deadline) return;
    oldest = pending_.front().fingerprint;
    timeout = pending_.front().timeout;
  }
  if (!states_requested_at_) {
    states_requested_at_ = now;
    oob_.request_states();
    publish_state();
    return;
  }
  bool all_answered = true;
  for (int r = 0; all_answered && r < oob_.size(); ++r) all_answered = oob_.peek(kState, r).has_value();
  if (all_answered || now >= *states_requested_at_ + kStateTime) throw explain_timeout(oldest, timeout);
}

// What this rank has enqueued last, for a rank that looks for the one that is missing.
void Rank::publish_state() {
  std::string text;
  {
    const std::lock_guard lock(state_);
    text = cat(last_number_, ' ', last_enqueued_ ? to_string(*last_enqueued_) : "");
  }
  oob_.publish(kState, text);
  state_published_ = true;
}

// Names who is missing or has called something else.
CommError Rank::explain_timeout(const Fingerprint& oldest, Milliseconds timeout) {
  const auto number_of = [](const std::string& state) { return std::strtoull(state.c_str(), nullptr, 10); };
  const std::string mine = oob_.peek(kState, oob_.rank()).value_or("0 ");
  std::optional<int> missing, different;
  std::string text;
  for (int r = 0; r < oob_.size(); ++r) {
    const std::optional<std::string> state = oob_.peek(kState, r);
    const std::string last = state ? state->substr(state->find(' ') + 1) : "";
    if (!state || number_of(*state) < oldest.sequence) {
      if (!missing) missing = r;
      text += cat("; rank ", r, " did not come (",
                  !state         ? "and says nothing"
                  : last.empty() ? "it has made no call"
                                 : "its last call was " + last,
                  ")");
    } else if (number_of(*state) == number_of(mine) && *state != mine) {
      if (!different) different = r;
      text += cat("; rank ", r, " has called ", last);
    }
  }
  return CommError(missing ? *missing : different.value_or(oob_.rank()), to_string(oldest.kind),
                   cat("rank ", oob_.rank(), " expected ", to_string(oldest), " to be through within ", timeout.count(),
                       " ms, it is not", text));
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
