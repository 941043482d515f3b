#include "lockstep/parallel/comm/nccl/nccl_rank.h"

#include <algorithm>
#include <thread>

#include "lockstep/kernels/api.h"
#include "lockstep/parallel/comm/shared_by_name.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/growth_lock.h"
#include "lockstep/runtime/cuda/native_stream.h"

namespace lockstep::nccl {
namespace {

using Kind = Collective::Kind;

// How often the store is asked for failures.
constexpr Milliseconds kStoreInterval{100};

// Between two questions whether NCCL is ready: often at first.
class Patience {
 public:
  void pass() {
    if (++asked_ < 20) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(asked_ < 200 ? 50 : 1000));
  }

 private:
  int asked_ = 0;
};

}  // namespace

Rank::Rank(OutOfBand oob, Device device, OnBroken broken)
    : oob_(std::move(oob)), device_(device), nccl_(library()), broken_(std::move(broken)) {}

std::string Rank::explain(Result result) const {
  std::string text = nccl_.get_error_string(result);
  if (const char* last = nccl_.get_last_error(nullptr); last && *last) text += cat(" (", last, ")");
  return text;
}

// ---- making it

void Rank::connect(Milliseconds timeout) {
  constexpr const char* kName = "make_nccl_communicator";
  const Deadline deadline = Deadline::after(timeout);
  default_stream(device_);    // starts the device
  kernels::prepare(device_);  // nothing is loaded while a collective spins
  const int rank = oob_.rank(), size = oob_.size();
  const auto check_health = [&] {
    if (const std::optional<CommError> error = oob_.failure()) throw *error;
  };

  // Who else is in this process?
  const int gpu = native_ordinal(device_);
  const std::vector<std::string> places =
      oob_.exchange("process", cat(detail::process_token(), ' ', gpu), kName, timeout, check_health);
  std::vector<int> locals;
  member_of_rank_.assign(static_cast<std::size_t>(size), -1);
  for (int r = 0; r < size; ++r) {
    const std::string& place = places[static_cast<std::size_t>(r)];
    if (!place.starts_with(detail::process_token() + ' ')) continue;
    LOCKSTEP_CHECK(r == rank || place != places[static_cast<std::size_t>(rank)], "[", kName,
                   "] expected a GPU for every rank, got GPU ", gpu, " for ranks ", std::min(r, rank), " and ",
                   std::max(r, rank), " (logical devices that share one need a PeerCommunicator)");
    member_of_rank_[static_cast<std::size_t>(r)] = static_cast<int>(locals.size());
    locals.push_back(r);
  }

  UniqueId id{};
  if (rank == 0) {
    const Result result = nccl_.get_unique_id(&id);
    if (result != kSuccess) throw CommError(0, kName, cat("ncclGetUniqueId: ", explain(result)));
    oob_.publish("id", std::string(id.internal, sizeof id.internal));
  }
  const std::string text = oob_.wait_for("id", 0, kName, timeout, deadline, check_health);
  if (text.size() != sizeof id.internal) throw CommError(0, kName, "expected a unique id of NCCL, got something else");
  std::copy(text.begin(), text.end(), id.internal);

  static auto* const places_of_process = new detail::SharedByName<detail::MeetingPlace>;
  place_ = places_of_process->get(text, locals.size(), [&] { return std::make_shared<detail::MeetingPlace>(locals); });

  const cuda::CurrentDevice current(device_);
  Config config;
  std::unique_lock lock(use_);
  const Result result = nccl_.comm_init_rank_config(&comm_, size, id, rank, &config);
  if (result != kSuccess && result != kInProgress)
    throw CommError(rank, kName, cat("ncclCommInitRankConfig: ", explain(result)));
  wait_until_ready(lock, kName, deadline, timeout);
}

// NCCL may still be working on what it was asked for: nothing else may be asked of it, nor enqueued, before it is done.
void Rank::wait_until_ready(std::unique_lock<std::mutex>& lock, const char* what, Deadline deadline,
                            Milliseconds timeout) {
  Clock::time_point next_check = Clock::now() + kStoreInterval;
  for (Patience patience;; patience.pass()) {
    if (!comm_) check();
    Result state = kSuccess;
    const Result result = nccl_.comm_get_async_error(comm_, &state);
    if (result != kSuccess) throw CommError(oob_.rank(), what, cat("ncclCommGetAsyncError: ", explain(result)));
    if (state == kSuccess) return;
    if (state != kInProgress) throw CommError(oob_.rank(), what, explain(state));
    if (deadline.passed())
      throw CommError(oob_.rank(), what, cat("expected NCCL to be ready within ", timeout.count(), " ms, it is not"));
    lock.unlock();  // somebody may want to abort it
    if (Clock::now() >= next_check) {
      next_check = Clock::now() + kStoreInterval;
      if (const std::optional<CommError> error = oob_.failure()) throw *error;
    }
    check();
    lock.lock();
  }
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
void Rank::meet_locals(const Collective& collective) {
  if (place_->size() == 1) return;
  const auto member = [&](int rank) { return member_of_rank_[static_cast<std::size_t>(rank)]; };
  const int mine = member(oob_.rank());
  detail::Meeting meeting;
  if (collective.kind == Kind::send || collective.kind == Kind::recv) {
    const int other = member(collective.peer);
    if (other < 0) return;
    const bool sends = collective.kind == Kind::send;
    meeting = {sends ? mine : other, sends ? other : mine, collective.sequence};
  } else {
    meeting.number = ++meetings_;
  }
  const detail::Contribution post{.fingerprint = fingerprint(collective)};
  place_->check_agreement(meeting, place_->meet(meeting, mine, post, collective.timeout));
}

void Rank::check_agreement(const Collective& c) {
  const bool pair = c.kind == Kind::send || c.kind == Kind::recv;
  const char* name = to_string(c.kind);
  const auto check_health = [this] { this->check_health(); };
  const std::string mine = to_string(fingerprint(c));
  const auto differ = [&](int rank, const std::string& theirs) {
    const int least = std::min(rank, oob_.rank());
    throw CommError(std::max(rank, oob_.rank()), name,
                    cat("expected all ranks to call the same, got ", rank == least ? theirs : mine, " from rank ",
                        least, " and ", rank == least ? mine : theirs, " from rank ", std::max(rank, oob_.rank())));
  };
  if (pair) {
    const bool sends = c.kind == Kind::send;
    const std::string about = cat("pair/", sends ? oob_.rank() : c.peer, '-', sends ? c.peer : oob_.rank(), '/');
    const std::string theirs = [&] {
      oob_.publish(cat(about, c.sequence), mine);
      return oob_.wait_for(cat(about, c.sequence), c.peer, name, c.timeout, Deadline::after(c.timeout), check_health);
    }();
    if (theirs.substr(theirs.find('(')) != mine.substr(mine.find('('))) differ(c.peer, theirs);
    if (c.sequence > 1) oob_.forget(cat(about, c.sequence - 1));
    return;
  }
  const std::vector<std::string> all = oob_.exchange(cat("call/", c.sequence), mine, name, c.timeout, check_health);
  for (int r = 0; r < oob_.size(); ++r)
    if (all[static_cast<std::size_t>(r)] != all[0])
      throw CommError(r, name,
                      cat("expected all ranks to call the same, got ", all[0], " from rank 0 and ",
                          all[static_cast<std::size_t>(r)], " from rank ", r));
  if (c.sequence > 1) oob_.forget(cat("call/", c.sequence - 1));  // all have come to this one, so they have seen it
}

void Rank::launch(const Collective& collective, const Stream& stream) {
  check();
  meet_locals(collective);
  if (collective.count == 0) return;
  const Deadline deadline = Deadline::after(collective.timeout);
  PendingWork entry{.fingerprint = fingerprint(collective), .deadline = deadline.time(), .timeout = collective.timeout};
  detail::begin_collective();
  try {
    const cuda::CurrentDevice current(device_);
    {
      std::unique_lock lock(use_);
      if (!comm_) check();
      const Result result = issue(collective, native_stream(stream));
      if (result != kSuccess && result != kInProgress)
        throw CommError(oob_.rank(), to_string(collective.kind), explain(result));
      wait_until_ready(lock, to_string(collective.kind), deadline, collective.timeout);
    }
    entry.done.record(stream);
  } catch (...) {
    detail::end_collective();
    throw;
  }
  const std::lock_guard lock(state_);
  last_enqueued_ = entry.fingerprint;
  if (collective.kind != Kind::send && collective.kind != Kind::recv) last_number_ = collective.sequence;
  pending_.push_back(std::move(entry));
}

Result Rank::issue(const Collective& c, void* stream) {
  const auto count = static_cast<std::size_t>(c.count);
  const DataType type = data_type(c.dtype);
  const bool reduces = c.reduces();
  const Op op = reduces ? op_of(c.reduction, c.dtype) : kSum;
  switch (c.kind) {
    case Kind::all_reduce:
      return nccl_.all_reduce(c.input, c.output, count, type, op, comm_, stream);
    case Kind::reduce:
      return nccl_.reduce(c.input, c.output, count, type, op, c.peer, comm_, stream);
    case Kind::reduce_scatter:
      return nccl_.reduce_scatter(c.input, c.output, count, type, op, comm_, stream);
    case Kind::all_gather:
      return nccl_.all_gather(c.input, c.output, count, type, comm_, stream);
    case Kind::broadcast: {
      void* const memory = c.output ? c.output : const_cast<void*>(c.input);
      return nccl_.broadcast(memory, memory, count, type, c.peer, comm_, stream);
    }
    case Kind::send:
      return nccl_.send(c.input, count, type, c.peer, comm_, stream);
    case Kind::recv:
      return nccl_.recv(c.output, count, type, c.peer, comm_, stream);
    default:
      return issue_group(c, stream);
  }
}

// gather, scatter and all_to_all, of sends and receives.
Result Rank::issue_group(const Collective& c, void* stream) {
  const auto count = static_cast<std::size_t>(c.count);
  const std::size_t bytes = count * size_of(c.dtype);
  const DataType type = data_type(c.dtype);
  const int rank = oob_.rank(), size = oob_.size();
  const auto part = [&](const void* memory, int r) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(memory)) + static_cast<std::size_t>(r) * bytes;
  };
  Result first = nccl_.group_start();
  const auto add = [&](auto&& call) {
    if (first == kSuccess || first == kInProgress) first = call();
  };
  const auto send = [&](const void* memory, int to) {
    add([&] { return nccl_.send(memory, count, type, to, comm_, stream); });
  };
  const auto recv = [&](void* memory, int from) {
    add([&] { return nccl_.recv(memory, count, type, from, comm_, stream); });
  };
  const bool root = rank == c.peer;
  const bool in_place = c.kind == Kind::gather    ? root && c.input == part(c.output, rank)
                        : c.kind == Kind::scatter ? root && c.output == part(c.input, rank)
                                                  : false;
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
  const Result end = nccl_.group_end();
  return first == kSuccess || first == kInProgress ? end : first;
}

std::vector<std::string> Rank::exchange(const Collective& collective, const std::string& mine) {
  LOCKSTEP_CHECK(mine.size() <= Store::kMaxValueBytes, "[exchange] expected a message of at most ",
                 Store::kMaxValueBytes, " bytes, got ", mine.size());
  const auto name = [](std::uint64_t number) { return cat("exchange/", number); };
  std::vector<std::string> all = oob_.exchange(name(collective.sequence), mine, to_string(collective.kind),
                                               collective.timeout, [this] { check_health(); });
  if (collective.sequence > 1) oob_.forget(name(collective.sequence - 1));
  return all;
}

// While the host waits for other hosts. Nothing need be on the way on the device, so nobody else may be asking NCCL.
void Rank::check_health() {
  check();
  check_nccl();
  if (const std::optional<CommError> error = oob_.failure()) throw *error;
}

}  // namespace lockstep::nccl
