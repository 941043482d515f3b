#include "lockstep/parallel/comm/mpi/mpi_rank.h"

#include <algorithm>
#include <cstring>

#include "lockstep/parallel/comm/comm_error_message.h"
#include "lockstep/parallel/comm/host_reduce.h"
#include "lockstep/parallel/comm/mpi/mpi_work.h"
#include "lockstep/parallel/comm/together.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

using Kind = Collective::Kind;

constexpr std::int64_t kBroadcastInParts = 256 << 10;  // from here on the others help the root
constexpr std::size_t kMostExchangeBytes = 64 << 20;

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

MpiRank::MpiRank(MpiEngine& engine, std::shared_ptr<MpiGroup> group, Break notify_owner)
    : engine_(engine),
      group_(std::move(group)),
      rank_(group_->index),
      size_(static_cast<int>(group_->members.size())),
      sent_(group_->members.size()),
      received_(group_->members.size()),
      notify_owner_(std::move(notify_owner)) {}

MpiRank::~MpiRank() { engine_.close(group_); }

std::byte* MpiRank::staging(std::size_t bytes) {
  if (bytes > staging_bytes_) {
    staging_.reset(new std::byte[bytes]);
    staging_bytes_ = bytes;
  }
  return staging_.get();
}

// ---- failures

void MpiRank::fail(const CommError& error) { engine_.fail(group_, {error.rank, message_of_failure(error)}, false); }

void MpiRank::disown() {
  const std::lock_guard lock(mutex_);
  notify_owner_ = nullptr;
}

void MpiRank::skip(const Collective& collective) noexcept try {
  const CommError error(rank_, to_string(collective.kind),
                        cat("rank ", rank_, " could not begin ", to_string(fingerprint(collective)),
                            ": work before it on its stream failed"));
  {
    const std::lock_guard lock(mutex_);
    if (notify_owner_) notify_owner_(error);  // first: what the others do once they know may ask it
  }
  fail(error);
} catch (...) {  // no memory for the text: the others end at their deadlines
}

// ---- collectives

// Tells the owner of a failure.
template <class Body>
void MpiRank::guarded(Body&& body) {
  try {
    body();
  } catch (const CommError& error) {
    const std::lock_guard lock(mutex_);
    if (notify_owner_) notify_owner_(error);
    throw;
  }
}

void MpiRank::perform(const Collective& collective) {
  guarded([&] { carry_out(collective); });
}

void MpiRank::perform(const std::vector<Collective>& transfers) {
  guarded([&] { perform_together(transfers, [this](const Collective& each) { carry_out(each); }); });
}

void MpiRank::carry_out(const Collective& collective) {
  Work work(*this, collective);
  const auto peer = static_cast<std::size_t>(collective.peer);
  std::uint64_t& turn = collective.kind == Kind::send   ? sent_[peer]
                        : collective.kind == Kind::recv ? received_[peer]
                                                        : group_->done.collectives;
  if (!engine_.wait_for_turn(*group_, work.tag, turn, collective.sequence, work.deadline)) {
    if (engine_.failure(*group_)) work.pass_on();
    work.give_up(rank_, cat("expected the call before ", to_string(work.print), " to end within ",
                            collective.timeout.count(), " ms"));
  }
  work.compare();
  run(work);
  engine_.next_turn(turn);
}

void MpiRank::run(Work& work) {
  switch (work.collective.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      return all_reduce(work);
    case Kind::reduce_scatter:
      return reduce_scatter(work);
    case Kind::broadcast:
      return broadcast(work);
    default:
      return move(work);
  }
}

// Each rank reduces its share of a round, and then gives it to all, or to the root.
void MpiRank::all_reduce(Work& work) {
  if (goes_by_host(work)) return all_reduce_by_host(work);
  const std::int64_t size = work.bytes_each, count = work.collective.count;
  const std::int64_t round = std::max<std::int64_t>(1, kRoundBytes / size);
  const int root = work.collective.kind == Kind::reduce ? work.collective.peer : -1;
  for (std::int64_t begin = 0; begin < count; begin += round) {
    const std::int64_t length = std::min(round, count - begin);
    const auto first = [&](int m) { return begin + length * m / size_; };
    const auto bytes = [&](int m) { return (first(m + 1) - first(m)) * size; };
    const std::int64_t mine = bytes(rank_);
    std::byte* const parts = staging(static_cast<std::size_t>(mine) * static_cast<std::size_t>(size_));
    std::vector<const void*> inputs(static_cast<std::size_t>(size_));
    for (int m = 0; m < size_; ++m) {
      inputs[static_cast<std::size_t>(m)] = m == rank_ ? work.input(first(m)) : parts + m * mine;
      if (m == rank_) continue;
      work.send(m, work.input(first(m)), bytes(m));
      work.recv(m, parts + m * mine, mine);
    }
    work.transfer();
    void* const result = root < 0 || root == rank_ ? work.output(first(rank_)) : parts + rank_ * mine;
    host_reduce(work.collective.reduction, work.collective.dtype, inputs, {&result, 1}, mine / size);
    for (const int m : work.others) {
      if (root < 0 || root == m) work.send(m, result, mine);
      if (root < 0 || root == rank_) work.recv(m, work.output(first(m)), bytes(m));
    }
    work.transfer();
  }
}

void MpiRank::reduce_scatter(Work& work) {
  const std::int64_t size = work.bytes_each, count = work.collective.count;
  const std::int64_t round = std::max<std::int64_t>(1, kRoundBytes / size / size_);
  for (std::int64_t begin = 0; begin < count; begin += round) {
    const std::int64_t length = std::min(round, count - begin), bytes = length * size;
    std::byte* const parts = staging(static_cast<std::size_t>(bytes) * static_cast<std::size_t>(size_));
    std::vector<const void*> inputs(static_cast<std::size_t>(size_));
    for (int m = 0; m < size_; ++m) {
      inputs[static_cast<std::size_t>(m)] = m == rank_ ? work.input(m * count + begin) : parts + m * bytes;
      if (m == rank_) continue;
      work.send(m, work.input(m * count + begin), bytes);
      work.recv(m, parts + m * bytes, bytes);
    }
    work.transfer();
    void* const result = work.output(begin);
    host_reduce(work.collective.reduction, work.collective.dtype, inputs, {&result, 1}, length);
  }
}

// Long messages go from the root in parts, one to each of the others, who give theirs to the rest.
void MpiRank::broadcast(Work& work) {
  const std::int64_t count = work.collective.count, bytes = count * work.bytes_each;
  const int root = work.collective.peer, helpers = size_ - 1;
  std::byte* const data = rank_ == root ? work.input(0) : work.output(0);
  const bool in_parts = helpers > 1 && bytes >= kBroadcastInParts;
  const auto index = [&](int m) { return (m - root + size_) % size_ - 1; };  // of the helpers
  const auto first = [&](int m) { return in_parts ? bytes * index(m) / helpers : 0; };
  const auto last = [&](int m) { return in_parts ? bytes * (index(m) + 1) / helpers : bytes; };
  if (rank_ == root) {
    for (const int m : work.others) work.send(m, data + first(m), last(m) - first(m));
    return work.transfer();
  }
  work.recv(root, data + first(rank_), last(rank_) - first(rank_));
  work.transfer();
  if (!in_parts) return;
  for (const int m : work.others) {
    if (m == root) continue;
    work.send(m, data + first(rank_), last(rank_) - first(rank_));
    work.recv(m, data + first(m), last(m) - first(m));
  }
  work.transfer();
}

// What only changes places.
void MpiRank::move(Work& work) {
  const Kind kind = work.collective.kind;
  const std::int64_t count = work.collective.count, bytes = count * work.bytes_each;
  const int root = work.collective.peer;
  const bool in_parts = kind == Kind::scatter || kind == Kind::all_to_all;  // the input
  const bool to_parts = kind == Kind::gather || kind == Kind::all_gather || kind == Kind::all_to_all;
  for (int m = 0; m < size_; ++m) {
    const bool sends = kind == Kind::send      ? m == root
                       : kind == Kind::recv    ? false
                       : kind == Kind::gather  ? m == root
                       : kind == Kind::scatter ? rank_ == root
                                               : true;
    const bool receives = kind == Kind::recv      ? m == root
                          : kind == Kind::send    ? false
                          : kind == Kind::gather  ? rank_ == root
                          : kind == Kind::scatter ? m == root
                                                  : true;
    if (m == rank_) {
      if (sends && receives)
        copy_bytes(work.output(to_parts ? m * count : 0), work.input(in_parts ? m * count : 0), bytes);
      continue;
    }
    if (sends) work.send(m, work.input(in_parts ? m * count : 0), bytes);
    if (receives) work.recv(m, work.output(to_parts ? m * count : 0), bytes);
  }
  work.transfer();
}

// ---- between hosts

std::vector<std::string> MpiRank::exchange(const Collective& collective, const std::string& mine) {
  LOCKSTEP_CHECK(mine.size() <= kMostExchangeBytes, "[exchange] expected a message of at most ", kMostExchangeBytes,
                 " bytes, got ", mine.size());
  Work work(*this, collective);
  work.compare();
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size_), length);
  for (const int m : work.others) {
    work.send(m, &length, sizeof length);
    work.recv(m, &lengths[static_cast<std::size_t>(m)], sizeof length);
  }
  work.transfer();
  std::vector<std::string> all(static_cast<std::size_t>(size_));
  for (int m = 0; m < size_; ++m) {
    std::string& its = all[static_cast<std::size_t>(m)];
    if (m == rank_) {
      its = mine;
      continue;
    }
    its.resize(lengths[static_cast<std::size_t>(m)]);
    work.send(m, mine.data(), static_cast<std::int64_t>(mine.size()));
    work.recv(m, its.data(), static_cast<std::int64_t>(its.size()));
  }
  work.transfer();
  engine_.next_turn(group_->done.exchanges);
  return all;
}

std::shared_ptr<MpiGroup> MpiRank::split(const std::vector<int>& members, int index, Deadline deadline) {
  std::int64_t number = index == 0 ? engine_.next_number() : 0;
  std::vector<MpiMessage> messages;
  const auto add = [&](bool send, int member) {
    messages.push_back({send, member, MpiTag::split, &number, sizeof number});
  };
  if (index != 0) add(false, members[0]);
  for (std::size_t m = 1; index == 0 && m < members.size(); ++m) add(true, members[m]);
  const auto result = engine_.transfer(group_, messages, group_->done.exchanges, deadline);
  if (result.outcome != MpiEngine::Outcome::done) {
    engine_.fail(group_, {members[0], "expected the ranks of a split to make their communicator before the deadline"},
                 true);
    const MpiFailure failure = *engine_.failure(*group_);
    throw CommError(failure.rank, "split", failure.text);
  }
  std::vector<int> world;
  for (const int m : members) world.push_back(group_->members[static_cast<std::size_t>(m)]);
  const int creator = world[0];
  return engine_.open(engine_.context(creator, number), std::move(world), index);
}

}  // namespace lockstep::detail
