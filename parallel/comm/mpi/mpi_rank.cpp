#include "lockstep/parallel/comm/mpi/mpi_rank.h"

#include <algorithm>
#include <cstring>

#include "lockstep/parallel/comm/comm_error_message.h"
#include "lockstep/parallel/comm/host_reduce.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

using Kind = Collective::Kind;
using Outcome = MpiEngine::Outcome;

constexpr std::int64_t kRoundBytes = 64 << 20;         // of a message that is reduced, at a time: what staging it costs
constexpr std::int64_t kBroadcastInParts = 256 << 10;  // from here on the others help the root
constexpr std::size_t kMostExchangeBytes = 64 << 20;

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// A send and its recv are the same call.
Fingerprint comparable(Fingerprint print) {
  if (print.kind == Kind::recv) print.kind = Kind::send;
  return print;
}

}  // namespace

// One collective under way: its messages, and what becomes of them.
class MpiMember::Call {
 public:
  Call(MpiMember& member, const Collective& of)
      : collective(of),
        print(fingerprint(of)),
        deadline(Deadline::after(of.timeout)),
        bytes_each(static_cast<std::int64_t>(size_of(of.dtype))),
        member_(member) {
    const bool pair = of.kind == Kind::send || of.kind == Kind::recv;
    lane = of.kind == Kind::exchange ? MpiLane::exchange : pair ? MpiLane::pair : MpiLane::collective;
    for (int m = 0; m < member.size_; ++m)
      if (m != member.rank_ && (!pair || m == of.peer)) others.push_back(m);
  }

  const Collective& collective;
  const Fingerprint print;
  const Deadline deadline;
  const std::int64_t bytes_each;  // of an element
  MpiLane lane;
  std::vector<int> others;

  std::byte* output(std::int64_t element) const {
    return static_cast<std::byte*>(collective.output) + element * bytes_each;
  }
  // Messages are only read from it, whatever MPI's types say.
  std::byte* input(std::int64_t element) const {
    return const_cast<std::byte*>(static_cast<const std::byte*>(collective.input)) + element * bytes_each;
  }
  void send(int member, const void* data, std::int64_t bytes) { add(true, member, const_cast<void*>(data), bytes); }
  void recv(int member, void* data, std::int64_t bytes) { add(false, member, data, bytes); }

  // Carries out what was added. Throws CommError.
  void transfer() {
    const auto result = member_.engine_.transfer(member_.channel_, messages_, collective.sequence, deadline);
    messages_.clear();
    if (result.outcome == Outcome::done) return;
    if (result.outcome == Outcome::left)
      give_up(result.members[0], cat("rank ", result.members[0], " left before it came to ", to_string(print)));
    if (result.outcome == Outcome::late) give_up_late(result.members);
    pass_on();
  }

  [[noreturn]] void give_up(int rank, const std::string& text) {
    member_.engine_.fail(member_.channel_, {rank, text}, true);
    pass_on();
  }
  [[noreturn]] void give_up_late(const std::vector<int>& late) {
    member_.engine_.silent(*member_.channel_, late);
    std::string names;
    for (const int m : late) names += cat(names.empty() ? "rank " : ", rank ", m);
    give_up(late.empty() ? member_.rank_ : late[0], cat("expected every rank to come to ", to_string(print), " within ",
                                                        collective.timeout.count(), " ms, got nothing from ", names));
  }
  [[noreturn]] void pass_on() {
    const MpiFailure failure = *member_.engine_.failure(*member_.channel_);
    throw CommError(failure.rank, to_string(collective.kind), failure.text);
  }

  // All members' fingerprints, before anything else moves. A pair's two answer each other in lanes of their own.
  void compare() {
    std::vector<Fingerprint> prints(static_cast<std::size_t>(member_.size_), print);
    const MpiLane there = lane, back = lane == MpiLane::pair ? MpiLane::pair_answer : lane;
    const bool receives = collective.kind == Kind::recv;
    for (const int m : others) {
      lane = receives ? back : there;
      send(m, &print, sizeof print);
      lane = receives ? there : back;
      recv(m, &prints[static_cast<std::size_t>(m)], sizeof print);
    }
    lane = there;
    transfer();
    std::vector<int> all = others;
    all.push_back(member_.rank_);
    std::sort(all.begin(), all.end());
    const Fingerprint& first = prints[static_cast<std::size_t>(all[0])];
    int odd = -1;
    std::string text = "expected all ranks to make the same call, got ";
    for (const int m : all) {
      const Fingerprint& its = prints[static_cast<std::size_t>(m)];
      if (odd < 0 && comparable(its) != comparable(first)) odd = m;
      text += cat(m == all[0] ? "" : "; ", "rank ", m, ": ", to_string(its));
    }
    if (odd >= 0) give_up(odd, text);
  }

 private:
  void add(bool send, int member, void* data, std::int64_t bytes) {
    if (bytes > 0) messages_.push_back({send, member, lane, data, static_cast<std::size_t>(bytes)});
  }
  MpiMember& member_;
  std::vector<MpiMessage> messages_;
};

MpiMember::MpiMember(MpiEngine& engine, std::shared_ptr<MpiChannel> channel, Break tell_owner)
    : engine_(engine),
      channel_(std::move(channel)),
      rank_(channel_->index),
      size_(static_cast<int>(channel_->members.size())),
      sent_(channel_->members.size()),
      received_(channel_->members.size()),
      tell_owner_(std::move(tell_owner)) {}

MpiMember::~MpiMember() { engine_.close(channel_); }

std::byte* MpiMember::staging(std::size_t bytes) {
  if (bytes > staging_bytes_) {
    staging_.reset(new std::byte[bytes]);
    staging_bytes_ = bytes;
  }
  return staging_.get();
}

// ---- failures

void MpiMember::fail(const CommError& error) { engine_.fail(channel_, {error.rank, words_of(error)}, false); }

void MpiMember::disown() {
  const std::lock_guard lock(mutex_);
  tell_owner_ = nullptr;
}

void MpiMember::skip(const Collective& collective) noexcept try {
  const CommError error(rank_, to_string(collective.kind),
                        cat("rank ", rank_, " could not begin ", to_string(fingerprint(collective)),
                            ": work before it on its stream failed"));
  {
    const std::lock_guard lock(mutex_);
    if (tell_owner_) tell_owner_(error);  // first: what the others do once they know may ask it
  }
  fail(error);
} catch (...) {  // no memory for the text: the others end at their deadlines
}

// ---- collectives

void MpiMember::perform(const Collective& collective) {
  try {
    Call call(*this, collective);
    const auto peer = static_cast<std::size_t>(collective.peer);
    std::uint64_t& turn = collective.kind == Kind::send   ? sent_[peer]
                          : collective.kind == Kind::recv ? received_[peer]
                                                          : channel_->done.collectives;
    if (!engine_.wait_for_turn(*channel_, call.lane, turn, collective.sequence, call.deadline)) {
      if (engine_.failure(*channel_)) call.pass_on();
      call.give_up(rank_, cat("expected the call before ", to_string(call.print), " to end within ",
                              collective.timeout.count(), " ms"));
    }
    call.compare();
    run(call);
    engine_.next_turn(turn);
  } catch (const CommError& error) {
    const std::lock_guard lock(mutex_);
    if (tell_owner_) tell_owner_(error);
    throw;
  }
}

void MpiMember::run(Call& call) {
  switch (call.collective.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      return all_reduce(call);
    case Kind::reduce_scatter:
      return reduce_scatter(call);
    case Kind::broadcast:
      return broadcast(call);
    default:
      return move(call);
  }
}

// Each rank reduces its share of a round, and then gives it to all, or to the root.
void MpiMember::all_reduce(Call& call) {
  const std::int64_t size = call.bytes_each, count = call.collective.count;
  const std::int64_t round = std::max<std::int64_t>(1, kRoundBytes / size);
  const int root = call.collective.kind == Kind::reduce ? call.collective.peer : -1;
  for (std::int64_t begin = 0; begin < count; begin += round) {
    const std::int64_t length = std::min(round, count - begin);
    const auto first = [&](int m) { return begin + length * m / size_; };
    const auto bytes = [&](int m) { return (first(m + 1) - first(m)) * size; };
    const std::int64_t mine = bytes(rank_);
    std::byte* const parts = staging(static_cast<std::size_t>(mine) * static_cast<std::size_t>(size_));
    std::vector<const void*> inputs(static_cast<std::size_t>(size_));
    for (int m = 0; m < size_; ++m) {
      inputs[static_cast<std::size_t>(m)] = m == rank_ ? call.input(first(m)) : parts + m * mine;
      if (m == rank_) continue;
      call.send(m, call.input(first(m)), bytes(m));
      call.recv(m, parts + m * mine, mine);
    }
    call.transfer();
    void* const result = root < 0 || root == rank_ ? call.output(first(rank_)) : parts + rank_ * mine;
    host_reduce(call.collective.reduction, call.collective.dtype, inputs, {&result, 1}, mine / size);
    for (const int m : call.others) {
      if (root < 0 || root == m) call.send(m, result, mine);
      if (root < 0 || root == rank_) call.recv(m, call.output(first(m)), bytes(m));
    }
    call.transfer();
  }
}

void MpiMember::reduce_scatter(Call& call) {
  const std::int64_t size = call.bytes_each, count = call.collective.count;
  const std::int64_t round = std::max<std::int64_t>(1, kRoundBytes / size / size_);
  for (std::int64_t begin = 0; begin < count; begin += round) {
    const std::int64_t length = std::min(round, count - begin), bytes = length * size;
    std::byte* const parts = staging(static_cast<std::size_t>(bytes) * static_cast<std::size_t>(size_));
    std::vector<const void*> inputs(static_cast<std::size_t>(size_));
    for (int m = 0; m < size_; ++m) {
      inputs[static_cast<std::size_t>(m)] = m == rank_ ? call.input(m * count + begin) : parts + m * bytes;
      if (m == rank_) continue;
      call.send(m, call.input(m * count + begin), bytes);
      call.recv(m, parts + m * bytes, bytes);
    }
    call.transfer();
    void* const result = call.output(begin);
    host_reduce(call.collective.reduction, call.collective.dtype, inputs, {&result, 1}, length);
  }
}

// Long messages go from the root in parts, one to each of the others, who give theirs to the rest.
void MpiMember::broadcast(Call& call) {
  const std::int64_t count = call.collective.count, bytes = count * call.bytes_each;
  const int root = call.collective.peer, helpers = size_ - 1;
  std::byte* const data = rank_ == root ? call.input(0) : call.output(0);
  const bool in_parts = helpers > 1 && bytes >= kBroadcastInParts;
  const auto index = [&](int m) { return (m - root + size_) % size_ - 1; };  // of the helpers
  const auto first = [&](int m) { return in_parts ? bytes * index(m) / helpers : 0; };
  const auto last = [&](int m) { return in_parts ? bytes * (index(m) + 1) / helpers : bytes; };
  if (rank_ == root) {
    for (const int m : call.others) call.send(m, data + first(m), last(m) - first(m));
    return call.transfer();
  }
  call.recv(root, data + first(rank_), last(rank_) - first(rank_));
  call.transfer();
  if (!in_parts) return;
  for (const int m : call.others) {
    if (m == root) continue;
    call.send(m, data + first(rank_), last(rank_) - first(rank_));
    call.recv(m, data + first(m), last(m) - first(m));
  }
  call.transfer();
}

// What only changes places.
void MpiMember::move(Call& call) {
  const Kind kind = call.collective.kind;
  const std::int64_t count = call.collective.count, bytes = count * call.bytes_each;
  const int root = call.collective.peer;
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
        copy_bytes(call.output(to_parts ? m * count : 0), call.input(in_parts ? m * count : 0), bytes);
      continue;
    }
    if (sends) call.send(m, call.input(in_parts ? m * count : 0), bytes);
    if (receives) call.recv(m, call.output(to_parts ? m * count : 0), bytes);
  }
  call.transfer();
}

// ---- between hosts

std::vector<std::string> MpiMember::exchange(const Collective& collective, const std::string& mine) {
  LOCKSTEP_CHECK(mine.size() <= kMostExchangeBytes, "[exchange] expected a message of at most ", kMostExchangeBytes,
                 " bytes, got ", mine.size());
  Call call(*this, collective);
  call.compare();
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size_), length);
  for (const int m : call.others) {
    call.send(m, &length, sizeof length);
    call.recv(m, &lengths[static_cast<std::size_t>(m)], sizeof length);
  }
  call.transfer();
  std::vector<std::string> all(static_cast<std::size_t>(size_));
  for (int m = 0; m < size_; ++m) {
    std::string& its = all[static_cast<std::size_t>(m)];
    if (m == rank_) {
      its = mine;
      continue;
    }
    its.resize(lengths[static_cast<std::size_t>(m)]);
    call.send(m, mine.data(), static_cast<std::int64_t>(mine.size()));
    call.recv(m, its.data(), static_cast<std::int64_t>(its.size()));
  }
  call.transfer();
  engine_.next_turn(channel_->done.exchanges);
  return all;
}

std::shared_ptr<MpiChannel> MpiMember::split(const std::vector<int>& members, int index, Deadline deadline) {
  std::int64_t number = index == 0 ? engine_.next_number() : 0;
  std::vector<MpiMessage> messages;
  const auto add = [&](bool send, int member) {
    messages.push_back({send, member, MpiLane::split, &number, sizeof number});
  };
  if (index != 0) add(false, members[0]);
  for (std::size_t m = 1; index == 0 && m < members.size(); ++m) add(true, members[m]);
  const auto result = engine_.transfer(channel_, messages, channel_->done.exchanges, deadline);
  if (result.outcome != Outcome::done) {
    engine_.fail(channel_, {members[0], "expected the ranks of a split to make their communicator before the deadline"},
                 true);
    const MpiFailure failure = *engine_.failure(*channel_);
    throw CommError(failure.rank, "split", failure.text);
  }
  std::vector<int> world;
  for (const int m : members) world.push_back(channel_->members[static_cast<std::size_t>(m)]);
  const int creator = world[0];
  return engine_.open(engine_.context(creator, number), std::move(world), index);
}

}  // namespace lockstep::detail
