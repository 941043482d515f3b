#include "lockstep/parallel/comm/shm/channel.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/parallel/comm/host_reduce.h"

namespace lockstep::detail {
namespace {

using Kind = Collective::Kind;

// Longer messages are combined in shares, one per rank, instead of wholly by each: the fewer bytes cost a step more.
constexpr std::int64_t kSharedWorkBytes = 16 << 10;

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// Of `length` elements from `begin`, the part that member `index` of `count` works on.
std::pair<std::int64_t, std::int64_t> share(std::int64_t length, int index, int count, std::int64_t size) {
  const std::int64_t line = 64 / size;
  const std::int64_t each = ((length + count - 1) / count + line - 1) / line * line;
  const std::int64_t begin = std::min(length, each * index);
  return {begin, std::min(length, begin + each) - begin};
}

bool has_many_inputs(Kind kind) {
  return kind == Kind::scatter || kind == Kind::reduce_scatter || kind == Kind::all_to_all;
}

// A send and its recv are the same call.
Fingerprint comparable(Fingerprint print) {
  if (print.kind == Kind::recv) print.kind = Kind::send;
  return print;
}

}  // namespace

struct Lane::Call {
  Call(const Collective& of, int members)
      : collective(of),
        print(fingerprint(of)),
        deadline(Deadline::after(of.timeout)),
        size(static_cast<std::int64_t>(size_of(of.dtype))),
        parts(has_many_inputs(of.kind) ? members : 1),
        root(of.kind == Kind::send || of.kind == Kind::recv ? 0 : of.peer) {}

  const Collective& collective;
  Fingerprint print;
  Deadline deadline;
  std::int64_t size, parts;  // of an element; of the input
  int root;                  // a member; -1 where there is none
  bool posted = false;       // what the others must know of the call, with its first step
  std::uint64_t bytes = 0;

  std::int64_t count() const { return collective.count; }
  // In bytes: element `i` of part `part`.
  std::int64_t at(std::int64_t part, std::int64_t i) const { return (part * count() + i) * size; }
  const std::byte* input(std::int64_t part, std::int64_t i) const {
    return static_cast<const std::byte*>(collective.input) + at(part, i);
  }
  std::byte* output(std::int64_t part, std::int64_t i) const {
    return static_cast<std::byte*>(collective.output) + at(part, i);
  }
};

Lane::Lane(Board& board, Board::Region region, std::vector<int> members, int index)
    : board_(board),
      region_(region),
      members_(std::move(members)),
      index_(index),
      count_(static_cast<int>(members_.size())) {}

const std::byte* Lane::slot(int member) const {
  return region_.slots + (static_cast<std::size_t>(member) * 2 + piece_ % 2) * region_.slot_bytes;
}

const Post& Lane::post(const Call& call, int member) const {
  return region_.seats[member].posts[call.collective.sequence % 2];
}

// ---- steps

void Lane::begin(Call& call) {
  const std::uint64_t before = call.collective.sequence - 1;
  const auto my_turn = [&] { return turn_.load(std::memory_order_acquire) == before; };
  if (!board_.wait_until(
          my_turn, [&] { return board_.failed(); }, call.deadline)) {
    if (board_.failed()) pass_on_failure(call);
    give_up(call, members_[static_cast<std::size_t>(index_)],
            cat("expected the call before ", to_string(call.print), " to end within ", call.collective.timeout.count(),
                " ms"));
  }
  if (board_.failed()) pass_on_failure(call);
}

void Lane::end(const Call& call) {
  turn_.store(call.collective.sequence, std::memory_order_seq_cst);
  board_.ring();
}

void Lane::arrive(Call& call) {
  Seat& seat = region_.seats[index_];
  if (!std::exchange(call.posted, true)) {
    seat.posts[call.collective.sequence % 2] = {call.print, call.collective.input, call.collective.output, call.bytes};
  }
  seat.arrived.store(++step_, std::memory_order_seq_cst);
  board_.ring();
}

void Lane::meet(Call& call) {
  const bool first = !call.posted;
  arrive(call);
  wait_for_all(call, [&](int m) { return region_.seats[m].arrived.load(std::memory_order_acquire) >= step_; });
  if (first) compare(call);
}

void Lane::meet_hosts(const Collective& collective) {
  const Call call(collective, count_);
  region_.seats[index_].called.store(collective.sequence, std::memory_order_seq_cst);
  board_.ring();
  wait_for_all(call,
               [&](int m) { return region_.seats[m].called.load(std::memory_order_acquire) >= collective.sequence; });
}

template <class HasCome>
void Lane::wait_for_all(const Call& call, HasCome&& has_come) {
  int here = 0;  // members before this one have come
  const auto everybody = [&] {
    while (here < count_ && has_come(here)) ++here;
    return here == count_;
  };
  const int self = members_[static_cast<std::size_t>(index_)];
  bool shown = false;
  const auto over = [&] {
    if (board_.failed() || astray() >= 0) return true;
    if (here < count_) board_.set_waits_for(self, members_[static_cast<std::size_t>(here)]);
    shown = true;
    for (int m = here; m < count_; ++m)
      if (board_.presence(members_[static_cast<std::size_t>(m)]) != Board::Presence::here && !has_come(m)) return true;
    return false;
  };
  const bool come = board_.wait_until(everybody, over, call.deadline);
  if (!come) explain(call, has_come);
  if (shown) board_.set_waits_for(self, -1);
}

// Before any byte has moved.
void Lane::compare(const Call& call) {
  int odd = -1;
  for (int m = 1; m < count_ && odd < 0; ++m)
    if (comparable(post(call, m).print) != comparable(post(call, 0).print)) odd = m;
  if (odd < 0) [[likely]]
    return;
  std::string text = "expected all ranks to make the same call, got ";
  for (int m = 0; m < count_; ++m)
    text += cat(m ? "; " : "", "rank ", members_[static_cast<std::size_t>(m)], ": ", to_string(post(call, m).print));
  give_up(call, members_[static_cast<std::size_t>(odd)], text);
}

// ---- failures

void Lane::give_up(const Call& call, int rank, const std::string& text) {
  board_.fail(rank, text);
  pass_on_failure(call);
}

void Lane::pass_on_failure(const Call& call) {
  // The failure stands on the board: whoever becomes busy after this sees it and stops. Who is busy now only copies.
  for (int m = 0; m < count_; ++m)
    while (m != index_ && board_.threads() && region_.seats[m].busy.load(std::memory_order_seq_cst) != 0) sched_yield();
  const Board::Failure failure = *board_.failure();
  throw CommError(failure.rank, to_string(call.collective.kind), failure.text);
}

template <class HasCome>
void Lane::explain(const Call& call, HasCome&& has_come) {
  if (board_.failed()) pass_on_failure(call);
  std::string late;
  int first_late = -1;
  for (int m = 0; m < count_; ++m) {
    if (has_come(m)) continue;
    const int rank = members_[static_cast<std::size_t>(m)];
    const Board::Presence presence = board_.presence(rank);
    if (presence != Board::Presence::here)
      give_up(call, rank,
              cat("rank ", rank, presence == Board::Presence::left ? " left" : " died", " before it came to ",
                  to_string(call.print)));
    if (first_late < 0) first_late = rank;
    late += cat(late.empty() ? "rank " : ", rank ", rank);
  }
  if (first_late < 0) return;  // just in time
  if (const int odd = astray(); odd >= 0)
    give_up(call, odd,
            cat("expected all ranks to make the same calls in the same order, but rank ", odd,
                " has called another when a rank came to ", to_string(call.print)));
  // It may only wait for another itself.
  const int cause = board_.end_of_waits(first_late);
  give_up(call, cause,
          cat("expected every rank to come to ", to_string(call.print), " within ", call.collective.timeout.count(),
              " ms, got nothing from ", late, cause == first_late ? "" : cat(", who waits for rank ", cause)));
}

// ---- collectives

void Lane::perform(const Collective& collective) {
  Call call(collective, count_);
  begin(call);
  const bool fits = call.parts * call.count() * call.size <= static_cast<std::int64_t>(region_.slot_bytes);
  if (fits || !board_.threads())
    through_slots(call);
  else
    directly(call);
  end(call);
}

// What this rank writes, given the elements from `begin` on of every part: source(member, part).
template <class Source>
void Lane::take(const Call& call, std::int64_t begin, std::int64_t length, Source&& source) {
  const auto bytes = static_cast<std::size_t>(length * call.size);
  const bool at_root = index_ == call.root;
  const auto reduce = [&](int part) {
    std::vector<const void*> inputs(static_cast<std::size_t>(count_));
    for (int m = 0; m < count_; ++m) inputs[static_cast<std::size_t>(m)] = source(m, part);
    void* output = call.output(0, begin);
    host_reduce(call.collective.reduction, call.collective.dtype, inputs, {&output, 1}, length);
  };
  const auto collect = [&](int part) {
    for (int m = 0; m < count_; ++m) copy(call.output(m, begin), source(m, part), bytes);
  };
  switch (call.collective.kind) {
    case Kind::all_reduce:
      return reduce(0);
    case Kind::reduce:
      return at_root ? reduce(0) : void();
    case Kind::reduce_scatter:
      return reduce(index_);
    case Kind::broadcast:
    case Kind::send:
    case Kind::recv:
      return at_root ? void() : copy(call.output(0, begin), source(call.root, 0), bytes);
    case Kind::scatter:
      return copy(call.output(0, begin), source(call.root, index_), bytes);
    case Kind::all_gather:
      return collect(0);
    case Kind::gather:
      return at_root ? collect(0) : void();
    case Kind::all_to_all:
      return collect(index_);
    case Kind::exchange:
      return;
  }
}

// Puts this rank's elements into its slot, unless nobody else wants them.
void Lane::offer(const Call& call, std::int64_t begin, std::int64_t length) {
  const Kind kind = call.collective.kind;
  const bool from_root = kind == Kind::broadcast || kind == Kind::scatter || kind == Kind::send || kind == Kind::recv;
  const bool to_root = kind == Kind::reduce || kind == Kind::gather;
  const bool at_root = index_ == call.root;
  if ((from_root && !at_root) || (to_root && at_root)) return;
  for (std::int64_t part = 0; part < call.parts; ++part)
    copy(own_slot() + part * length * call.size, call.input(part, begin), static_cast<std::size_t>(length * call.size));
}

// Each rank combines its share of the piece and leaves it in its slot, where its own input would be.
void Lane::all_reduce_piece(Call& call, std::int64_t begin, std::int64_t length) {
  for (int m = 0; m < count_; ++m) {
    const auto [first, elements] = share(length, m, count_, call.size);
    if (m != index_)
      copy(own_slot() + first * call.size, call.input(0, begin + first),
           static_cast<std::size_t>(elements * call.size));
  }
  meet(call);
  const auto [mine, elements] = share(length, index_, count_, call.size);
  std::vector<const void*> inputs(static_cast<std::size_t>(count_));
  for (int m = 0; m < count_; ++m)
    inputs[static_cast<std::size_t>(m)] = m == index_ ? call.input(0, begin + mine) : slot(m) + mine * call.size;
  void* const outputs[] = {call.output(0, begin + mine), own_slot() + mine * call.size};
  host_reduce(call.collective.reduction, call.collective.dtype, inputs, outputs, elements);
  meet(call);
  for (int m = 0; m < count_; ++m) {
    const auto [first, its] = share(length, m, count_, call.size);
    if (m != index_)
      copy(call.output(0, begin + first), slot(m) + first * call.size, static_cast<std::size_t>(its * call.size));
  }
}

void Lane::through_slots(Call& call) {
  const std::int64_t capacity = static_cast<std::int64_t>(region_.slot_bytes) / (call.parts * call.size);
  std::int64_t begin = 0;
  do {
    const std::int64_t length = std::min(capacity, call.count() - begin);
    ++piece_;
    if (call.collective.kind == Kind::all_reduce && call.count() * call.size > kSharedWorkBytes) {
      all_reduce_piece(call, begin, length);
    } else {
      offer(call, begin, length);
      meet(call);
      take(call, begin, length, [&](int member, std::int64_t part) {
        return member == index_ ? call.input(part, begin) : slot(member) + part * length * call.size;
      });
    }
    begin += length;
  } while (begin < call.count());
}

// Several writers, each of the memory of all: for what is the same for every receiver.
void Lane::combine_range(const Call& call) {
  const auto [begin, length] = share(call.count(), index_, count_, call.size);
  const Kind kind = call.collective.kind;
  const auto offset = call.at(0, begin);
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (int m = 0; m < count_; ++m) {
    const Post& its = post(call, m);
    if (kind != Kind::broadcast || m == call.root) inputs.push_back(static_cast<const std::byte*>(its.input) + offset);
    if (kind == Kind::all_reduce || (kind == Kind::broadcast) != (m == call.root))
      outputs.push_back(static_cast<std::byte*>(its.output) + offset);
  }
  if (kind != Kind::broadcast)
    return host_reduce(call.collective.reduction, call.collective.dtype, inputs, outputs, length);
  constexpr std::int64_t kBlock = 64 << 10;  // read once, and from the cache for the others
  for (std::int64_t done = 0; done < length * call.size; done += kBlock)
    for (void* output : outputs)
      copy(static_cast<std::byte*>(output) + done, static_cast<const std::byte*>(inputs[0]) + done,
           static_cast<std::size_t>(std::min(kBlock, length * call.size - done)));
}

void Lane::directly(Call& call) {
  meet(call);
  Seat& own = region_.seats[index_];
  own.busy.store(1, std::memory_order_seq_cst);
  if (board_.failed()) {  // somebody may have given up, and its memory be gone
    own.busy.store(0, std::memory_order_seq_cst);
    pass_on_failure(call);
  }
  const Kind kind = call.collective.kind;
  if (kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::broadcast) {
    combine_range(call);
  } else {
    take(call, 0, call.count(), [&](int member, std::int64_t part) {
      return static_cast<const std::byte*>(post(call, member).input) + call.at(part, 0);
    });
  }
  own.busy.store(0, std::memory_order_seq_cst);
  meet(call);  // the tensors are not needed, and written, from here on
}

// ---- host messages

std::vector<std::string> Lane::exchange(const Collective& collective, const std::string& mine) {
  Call call(collective, count_);
  call.bytes = mine.size();
  begin(call);
  if (mine.size() > kMostExchangeBytes)
    give_up(call, members_[static_cast<std::size_t>(index_)],
            cat("expected a message of at most ", bytes_to_string(kMostExchangeBytes), ", got ",
                bytes_to_string(mine.size())));
  std::vector<std::string> all(static_cast<std::size_t>(count_));
  std::vector<std::size_t> sizes(all.size());
  std::size_t longest = 0, begin = 0;
  do {
    ++piece_;
    if (begin < mine.size()) copy(own_slot(), mine.data() + begin, std::min(region_.slot_bytes, mine.size() - begin));
    meet(call);
    for (std::size_t m = 0; m < all.size(); ++m) {
      if (begin == 0) {
        sizes[m] = std::min<std::size_t>(post(call, static_cast<int>(m)).bytes, kMostExchangeBytes);
        longest = std::max(longest, sizes[m]);
        all[m].reserve(sizes[m]);
      }
      if (begin < sizes[m])
        all[m].append(reinterpret_cast<const char*>(slot(static_cast<int>(m))),
                      std::min(region_.slot_bytes, sizes[m] - begin));
    }
    begin += region_.slot_bytes;
  } while (begin < longest);
  end(call);
  return all;
}

}  // namespace lockstep::detail
