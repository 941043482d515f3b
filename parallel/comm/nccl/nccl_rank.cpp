#include "lockstep/parallel/comm/nccl/nccl_rank.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>

#include "lockstep/parallel/comm/nccl/patience.h"
#include "lockstep/parallel/comm/odd_one_out.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::nccl {
namespace {

using Kind = Collective::Kind;

}  // namespace

Rank::Rank(OutOfBand oob, Device device, bool blocking, OnBroken broken)
    : oob_(std::move(oob)), device_(device), blocking_(blocking), nccl_(library()), broken_(std::move(broken)) {}

std::string Rank::explain(Result result) const {
  std::string text = nccl_.get_error_string(result);
  if (const char* last = nccl_.get_last_error(nullptr); last && *last) text += cat(" (", last, ")");
  return text;
}

// NCCL may still be working on what it was asked for: nothing else may be asked of it, nor enqueued, before it is done.
void Rank::wait_until_ready(std::unique_lock<std::mutex>& lock, const char* what, Deadline deadline,
                            Milliseconds timeout) {
  Clock::time_point next_check = Clock::now() + kStoreInterval;
  for (Patience patience(kSpinTime);; patience.pass()) {
    if (!comm_) check();
    Result state = kSuccess;
    const Result result = nccl_.comm_get_async_error(comm_, &state);
    if (result != kSuccess) throw CommError(oob_.rank(), what, cat("ncclCommGetAsyncError: ", explain(result)));
    if (state == kSuccess) return;
    lock.unlock();  // somebody may want to abort it
    if (state != kInProgress) throw blame(what, find_silent_rank(), explain(state));
    check_while_waiting(what, deadline, timeout, next_check);
    lock.lock();
  }
}

void Rank::check_while_waiting(const char* what, Deadline deadline, Milliseconds timeout,
                               Clock::time_point& next_check) {
  if (deadline.passed()) throw blame(what, find_silent_rank(), not_ready(timeout));
  if (Clock::now() >= next_check) {
    next_check = Clock::now() + kStoreInterval;
    if (const std::optional<CommError> error = failure_of_others()) throw *error;
    publish_state_if_asked();
  }
  check();
}

std::string Rank::not_ready(Milliseconds timeout) {
  return cat("expected NCCL to be ready within ", timeout.count(), " ms, it is not");
}

// ---- collectives

void Rank::check() {
  if (!failed_.load(std::memory_order_acquire)) return;
  mark_reported();
  throw *failure();
}

std::optional<CommError> Rank::failure() {
  const std::lock_guard lock(state_);
  return failure_;
}

// Ranks of one process: nobody's half of a collective spins while another one may still need the device for itself.
void Rank::meet_locals(std::span<const Collective> calls) {
  if (place_->size() == 1) return;
  const auto member = [&](int rank) { return member_of_rank_[static_cast<std::size_t>(rank)]; };
  const int mine = member(oob_.rank());
  std::vector<detail::MeetingPlace::Arrival> arrivals;
  for (const Collective& each : calls) {
    detail::Meeting meeting;
    if (each.pairwise()) {
      const int other = member(each.peer);
      if (other < 0) continue;
      const bool sends = each.kind == Kind::send;
      meeting = {sends ? mine : other, sends ? other : mine, each.sequence};
    } else {
      meeting.number = ++meetings_;
    }
    arrivals.push_back({meeting, {.fingerprint = fingerprint(each)}});
  }
  const Collective& first = calls[0];
  std::vector<detail::Meeting> meetings;
  for (const auto& arrival : arrivals) meetings.push_back(arrival.meeting);
  const Deadline deadline = Deadline::after(first.timeout);
  place_->come(std::move(arrivals), mine);
  std::exception_ptr error;
  for (const detail::Meeting& meeting : meetings) {
    try {
      place_->check_agreement(meeting, place_->collect(meeting, to_string(first.kind), first.timeout, deadline));
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void Rank::differ(const Collective& collective, int rank, const std::string& theirs) {
  const std::string mine = to_string(fingerprint(collective));
  const int least = std::min(rank, oob_.rank()), most = std::max(rank, oob_.rank());
  throw CommError(most, to_string(collective.kind),
                  cat("expected all ranks to call the same, got ", rank == least ? theirs : mine, " from rank ", least,
                      " and ", rank == least ? mine : theirs, " from rank ", most));
}

// All keys are there before one is waited for, so nobody knows which of its own the other side has read: who reads one
// erases it.
void Rank::check_pairs(std::span<const Collective> transfers) {
  const auto about = [&](const Collective& c) {
    const bool sends = c.kind == Kind::send;
    return cat("pair/", sends ? oob_.rank() : c.peer, '-', sends ? c.peer : oob_.rank(), '/');
  };
  for (const Collective& c : transfers) oob_.publish(cat(about(c), c.sequence), to_string(fingerprint(c)));
  for (const Collective& c : transfers) {
    const std::string theirs = oob_.wait_for(cat(about(c), c.sequence), c.peer, to_string(c.kind), c.timeout,
                                             Deadline::after(c.timeout), [this] { check_health(); });
    const std::string mine = to_string(fingerprint(c));
    if (theirs.substr(theirs.find('(')) != mine.substr(mine.find('('))) differ(c, c.peer, theirs);
    oob_.forget(cat(about(c), c.sequence), c.peer);
  }
}

void Rank::check_agreement(const Collective& c) {
  if (c.pairwise()) return check_pairs({&c, 1});
  const char* name = to_string(c.kind);
  const auto check_health = [this] { this->check_health(); };
  const std::string mine = to_string(fingerprint(c));
  const std::vector<std::string> all = oob_.exchange(cat("call/", c.sequence), mine, name, c.timeout, check_health);
  const auto call = [&](int r) -> const std::string& { return all[static_cast<std::size_t>(r)]; };
  if (const auto found = detail::odd_one_out(oob_.size(), [&](int a, int b) { return call(a) == call(b); })) {
    const auto [first, second] = std::minmax(found->odd, found->usual);
    throw CommError(found->odd, name,
                    cat("expected all ranks to call the same, got ", call(first), " from rank ", first, " and ",
                        call(second), " from rank ", second));
  }
  if (c.sequence > 1)
    oob_.forget(cat("call/", c.sequence - 1), oob_.rank());  // all have come to this one, so they have seen it
}

// While it lives, somebody else may abort the communicator, which ends the call.
struct Rank::BlockingCall {
  BlockingCall(Rank& of, const Issuing& call, std::unique_lock<std::mutex>& used) : rank(of), use(used) {
    set(call);
    use.unlock();
  }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;
  ~BlockingCall() {
    set({});
    if (!rank.failed_.load(std::memory_order_acquire)) use.lock();  // else it is being aborted, which may take a while
  }
  void set(const std::optional<Issuing>& call) const {
    const std::lock_guard lock(rank.state_);
    rank.issuing_ = call;
  }
  Rank& rank;
  std::unique_lock<std::mutex>& use;
};

// Returns when NCCL is done with it.
void Rank::issue_and_wait(std::span<const Collective> calls, const Stream& stream, const PendingWork& entry,
                          Deadline deadline) {
  const Collective& first = calls[0];
  std::unique_lock lock(use_);
  if (!comm_) check();
  const Target to{comm_, native_stream(stream)};
  std::optional<BlockingCall> call;
  if (blocking_) call.emplace(*this, Issuing{entry.fingerprint, entry.deadline, entry.timeout}, lock);
  const Result result = calls.size() == 1 ? issue(first, to) : issue_batch(calls, to);
  call.reset();
  check();
  if (result != kSuccess && result != kInProgress) throw CommError(oob_.rank(), to_string(first.kind), explain(result));
  wait_until_ready(lock, to_string(first.kind), deadline, first.timeout);
}

void Rank::launch(std::span<const Collective> calls, const Stream& stream) {
  check();
  meet_locals(calls);
  const Collective& first = calls[0];
  const std::uint64_t number = first.sequence + replayed_;
  if (std::all_of(calls.begin(), calls.end(), [](const Collective& each) { return each.count == 0; })) {
    const std::lock_guard lock(state_);
    if (!first.pairwise()) last_number_ = number;
    return;
  }
  const Deadline deadline = Deadline::after(first.timeout);
  PendingWork entry{.fingerprint = fingerprint(first), .deadline = deadline.time(), .timeout = first.timeout};
  if (!first.pairwise()) entry.fingerprint.sequence = number;
  for (const Collective& each : calls)
    if (each.pairwise()) entry.peers.push_back(each.peer);
  detail::begin_collective();
  try {
    const cuda::CurrentDevice current(device_);
    issue_and_wait(calls, stream, entry, deadline);
    entry.done.record(stream);
  } catch (...) {
    detail::end_collective();
    throw;
  }
  const std::lock_guard lock(state_);
  last_enqueued_ = entry.fingerprint;
  if (!first.pairwise()) last_number_ = number;
  pending_.push_back(std::move(entry));
}

Result Rank::issue_batch(std::span<const Collective> calls, const Target& to) {
  return in_group(nccl_, [&](const auto& add) {
    for (const Collective& each : calls)
      if (each.count > 0) add([&] { return issue(each, to); });
  });
}

Result Rank::issue(const Collective& c, const Target& to) {
  const auto count = static_cast<std::size_t>(c.count);
  const DataType type = data_type(c.dtype);
  const bool reduces = c.reduces();
  const Op op = reduces ? op_of(c.reduction, c.dtype) : kSum;
  switch (c.kind) {
    case Kind::all_reduce:
      return nccl_.all_reduce(c.input, c.output, count, type, op, to.comm, to.stream);
    case Kind::reduce:
      return nccl_.reduce(c.input, c.output, count, type, op, c.peer, to.comm, to.stream);
    case Kind::reduce_scatter:
      return nccl_.reduce_scatter(c.input, c.output, count, type, op, to.comm, to.stream);
    case Kind::all_gather:
      return nccl_.all_gather(c.input, c.output, count, type, to.comm, to.stream);
    case Kind::broadcast: {
      void* const memory = c.output ? c.output : const_cast<void*>(c.input);
      return nccl_.broadcast(memory, memory, count, type, c.peer, to.comm, to.stream);
    }
    case Kind::send:
      return nccl_.send(c.input, count, type, c.peer, to.comm, to.stream);
    case Kind::recv:
      return nccl_.recv(c.output, count, type, c.peer, to.comm, to.stream);
    default:
      return issue_group(c, to);
  }
}

// gather, scatter and all_to_all, of sends and receives.
Result Rank::issue_group(const Collective& c, const Target& to) {
  const auto count = static_cast<std::size_t>(c.count);
  const std::size_t bytes = count * size_of(c.dtype);
  const DataType type = data_type(c.dtype);
  const int rank = oob_.rank(), size = oob_.size();
  const auto part = [&](const void* memory, int r) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(memory)) + static_cast<std::size_t>(r) * bytes;
  };
  const bool root = rank == c.peer;
  const bool in_place = c.kind == Kind::gather    ? root && c.input == part(c.output, rank)
                        : c.kind == Kind::scatter ? root && c.output == part(c.input, rank)
                                                  : false;
  return in_group(nccl_, [&](const auto& add) {
    const auto send = [&](const void* memory, int peer) {
      add([&] { return nccl_.send(memory, count, type, peer, to.comm, to.stream); });
    };
    const auto recv = [&](void* memory, int peer) {
      add([&] { return nccl_.recv(memory, count, type, peer, to.comm, to.stream); });
    };
    if (c.kind == Kind::gather) {
      if (!in_place) send(c.input, c.peer);
      for (int r = 0; root && r < size; ++r)
        if (r != rank || !in_place) recv(part(c.output, r), r);
    } else if (c.kind == Kind::scatter) {
      for (int r = 0; root && r < size; ++r)
        if (r != rank || !in_place) send(part(c.input, r), r);
      if (!in_place) recv(c.output, c.peer);
    } else {
      for (int r = 0; r < size; ++r) {
        send(part(c.input, r), r);
        recv(part(c.output, r), r);
      }
    }
  });
}

std::vector<std::string> Rank::exchange(const Collective& collective, const std::string& mine) {
  LOCKSTEP_CHECK(mine.size() <= Store::kMaxValueBytes, "[exchange] expected a message of at most ",
                 Store::kMaxValueBytes, " bytes, got ", mine.size());
  const auto name = [](std::uint64_t number) { return cat("exchange/", number); };
  std::vector<std::string> all;
  try {
    all = oob_.exchange(name(collective.sequence), mine, to_string(collective.kind), collective.timeout,
                        [this] { check_health(); });
  } catch (const LateError&) {
    throw explain_exchange(collective, name(collective.sequence));
  }
  if (collective.sequence > 1) oob_.forget(name(collective.sequence - 1), oob_.rank());
  return all;
}

// While the host waits for other hosts. Nothing need be on the way on the device, so nobody else may be asking NCCL.
void Rank::check_health() {
  check();
  {
    const std::lock_guard polling(polling_);
    check_nccl();
  }
  if (const std::optional<CommError> error = failure_of_others()) throw *error;
}

}  // namespace lockstep::nccl
