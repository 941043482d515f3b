// How an NCCL rank finds out that something is wrong, and what becomes of it then.
#include <cstdlib>
#include <thread>

#include "lockstep/parallel/comm/comm_error_message.h"
#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/parallel/comm/nccl/patience.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/service_thread.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::nccl {
namespace {

constexpr Milliseconds kAbortTime{10'000};  // after that the device is left to itself

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
    ++through_;
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
  check_issue();
} catch (const CommError& error) {
  fail(error);
} catch (...) {
  fail(CommError(oob_.rank(), "nccl", detail::describe(std::current_exception())));
}

void Rank::check_nccl() {
  Result result = kSuccess;
  {
    const std::unique_lock use(use_, std::try_to_lock);  // who is in there sees for itself
    if (!use || !comm_ || in_blocking_call() || nccl_.comm_get_async_error(comm_, &result) != kSuccess) return;
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
  if (const std::optional<CommError> error = failure_of_others()) throw *error;
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
  std::optional<std::uint64_t> late;  // its number
  {
    const std::lock_guard lock(state_);
    if (!pending_.empty() && now >= pending_.front().deadline) {
      late = through_;
      oldest = pending_.front().fingerprint;
      timeout = pending_.front().timeout;
      peers = pending_.front().peers;
    }
  }
  if (asked_for_ && asked_for_ != late) {  // it was only late: the answers are of then
    states_requested_at_.reset();
    asked_for_.reset();
  }
  if (!late) return;
  if (!states_requested_at_) asked_for_ = late;
  if (!others_asked() || is_through(*late)) return;
  throw peers.empty() ? explain_timeout(oldest, timeout) : explain_pair_timeout(oldest, timeout, peers);
}

bool Rank::in_blocking_call() {
  const std::lock_guard lock(state_);
  return issuing_.has_value();
}

// A call that blocks is not looked at by who is in it.
void Rank::check_issue() {
  std::optional<Issuing> late;
  {
    const std::lock_guard lock(state_);
    if (issuing_ && Clock::now() >= issuing_->deadline) late = issuing_;
  }
  if (late && others_asked()) throw blame(to_string(late->fingerprint.kind), silent_rank(), not_ready(late->timeout));
}

bool Rank::is_through(std::uint64_t number) {
  retire();
  const std::lock_guard lock(state_);
  return through_ > number;
}

// ---- the end

// What another rank has found out, as an error of the collective that this one is in.
std::optional<CommError> Rank::failure_of_others() {
  const std::optional<CommError> error = oob_.failure();
  return error ? std::optional(in_own_terms(*error)) : std::nullopt;
}
CommError Rank::in_own_terms(const CommError& error) {
  int kind = in_call_;
  if (kind == kNoCall) {
    const std::lock_guard lock(state_);
    if (pending_.empty()) return error;
    kind = static_cast<int>(pending_.front().fingerprint.kind);
  }
  return CommError(error.rank, to_string(static_cast<Collective::Kind>(kind)), detail::message_of_failure(error));
}

void Rank::fail(const CommError& error) noexcept { fail(error, true); }

void Rank::fail(const CommError& error, bool break_off_others) noexcept try {
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
  leave_process();
  abort_in_a_thread();
  {
    const std::lock_guard lock(owner_mutex_);
    if (broken_) broken_(error);  // a launcher hears of this before it hears what follows from it
  }
  owner_knows_.store(true, std::memory_order_release);
  if (break_off_others) detail::break_off_all(error, id_, this);
  oob_.report(error);
} catch (...) {
  // The store is gone, or there is no memory: the failure itself is known.
  owner_knows_.store(true, std::memory_order_release);
}

// In another communicator the ranks have other numbers: there it is this rank that ends what is on the way.
void Rank::break_off(const CommError& why, const std::string& of) noexcept try {
  if (retire()) return;
  if (of == id_) return fail(in_own_terms(why), false);
  const std::string text =
      cat("rank ", oob_.rank(), " broke it off, since another communicator of its process failed: ", why.what());
  fail(in_own_terms(CommError(oob_.rank(), "nccl", text)), false);
} catch (...) {  // no memory for the text
  fail(why, false);
}

void Rank::tell(Device waiting) {
  if (waiting != device_ || !failed_.load(std::memory_order_acquire) || reported_.exchange(true)) return;
  wait_for_abort();
  throw *failure();
}

// The abort of a communicator that is in a graph returns when the graph has gone, but its kernels end at once. Who is
// told finds the communicator broken.
void Rank::wait_for_abort() {
  const auto over = [this] {
    return owner_knows_.load(std::memory_order_acquire) &&
           (aborted_.load(std::memory_order_acquire) || (graphs_ > 0 && retire()));
  };
  for (const Deadline deadline = Deadline::after(kAbortTime); !over() && !deadline.passed();) rest();
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
  leave_process();
  mark_reported();  // there is nobody any more
  if (place_) place_->leave(member_of_rank_[static_cast<std::size_t>(oob_.rank())]);
  static const int registered = std::atexit(let_them_finish);
  (void)registered;
  giving_back.fetch_add(1, std::memory_order_acq_rel);
  try {
    detail::start_service_thread("lockstep-close", [self = shared_from_this()] {
      self->finish_pending();
      if (self->graphs_ > 0) {  // they may live longer than the program waits
        giving_back.fetch_sub(1, std::memory_order_acq_rel);
        detail::remove_in_flight(self.get());
        self->wait_for_graphs();
        giving_back.fetch_add(1, std::memory_order_acq_rel);
      }
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
void Rank::finish_pending() noexcept {
  try {
    oob_.leave(last_number_);
  } catch (...) {  // the store is gone
  }
  while (!retire()) {
    poll();
    rest();
  }
}

// Which nobody replays any more.
void Rank::wait_for_graphs() noexcept {
  for (int graphs = graphs_; graphs > 0; graphs = graphs_) graphs_.wait(graphs);
}

void Rank::give_back() noexcept {
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
