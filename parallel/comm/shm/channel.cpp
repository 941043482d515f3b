#include "lockstep/parallel/comm/shm/channel.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/parallel/comm/host_reduce.h"
#include "lockstep/parallel/comm/odd_one_out.h"

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

}  // namespace

struct Channel::Work {
  Work(const Collective& of, int members)
      : collective(of),
        print(fingerprint(of)),
        deadline(Deadline::after(of.timeout)),
        size(static_cast<std::int64_t>(size_of(of.dtype))),
        parts(has_many_inputs(of.kind) ? members : 1),
        root(of.pairwise() ? 0 : of.peer) {}

  const Collective& collective;
  Fingerprint print;
  Deadline deadline;
  std::int64_t size, parts;  // of an element; of the input
  int root;                  // a member; -1 where there is none
  bool published = false;    // the descriptor, with the first step
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

Channel::Channel(ControlBlock& control, ControlBlock::Region region, std::vector<int> members, int index)
    : control_(control),
      region_(region),
      members_(std::move(members)),
      index_(index),
      count_(static_cast<int>(members_.size())) {}

const std::byte* Channel::slot(int member) const {
  return region_.slots + (static_cast<std::size_t>(member) * 2 + piece_ % 2) * region_.slot_bytes;
}

const WorkDescriptor& Channel::descriptor(const Work& work, int member) const {
  return region_.states[member].descriptors[work.collective.sequence % 2];
}

// ---- steps

void Channel::begin(Work& work) {
  const std::uint64_t before = work.collective.sequence - 1;
  const auto my_turn = [&] { return turn_.load(std::memory_order_acquire) == before; };
  if (!control_.wait_until(
          my_turn, [&] { return control_.failed(); }, work.deadline)) {
    if (control_.failed()) pass_on_failure(work);
    give_up(work, members_[static_cast<std::size_t>(index_)],
            cat("expected the call before ", to_string(work.print), " to end within ", work.collective.timeout.count(),
                " ms"));
  }
  if (control_.failed()) pass_on_failure(work);
}

void Channel::end(const Work& work) {
  turn_.store(work.collective.sequence, std::memory_order_seq_cst);
  control_.notify_all();
}

void Channel::arrive(Work& work) {
  RankState& state = region_.states[index_];
  if (!std::exchange(work.published, true)) {
    state.descriptors[work.collective.sequence % 2] = {work.print, work.collective.input, work.collective.output,
                                                       work.bytes};
  }
  state.arrived.store(++step_, std::memory_order_seq_cst);
  control_.notify_all();
}

void Channel::meet(Work& work) {
  const bool first = !work.published;
  arrive(work);
  wait_for_all(work, &RankState::arrived, step_);
  if (first) compare(work);
}

void Channel::come_to_hosts(const Collective& collective) {
  region_.states[index_].called.store(collective.sequence, std::memory_order_seq_cst);
  control_.notify_all();
}

void Channel::meet_hosts(const Collective& collective) {
  const Work work(collective, count_);
  if (region_.states[index_].called.load(std::memory_order_relaxed) < collective.sequence) come_to_hosts(collective);
  wait_for_all(work, &RankState::called, collective.sequence);
}

void Channel::wait_for_all(const Work& work, std::atomic<std::uint64_t> RankState::*counter, std::uint64_t least) {
  const auto has_come = [&](int m) { return (region_.states[m].*counter).load(std::memory_order_acquire) >= least; };
  int here = 0;  // members before this one have come
  const auto everybody = [&] {
    while (here < count_ && has_come(here)) ++here;
    return here == count_;
  };
  const int self = members_[static_cast<std::size_t>(index_)];
  bool shown = false;
  const auto over = [&] {
    if (control_.failed() || mismatched_member() >= 0) return true;
    if (here < count_)
      control_.set_waits_for(self, members_[static_cast<std::size_t>(here)], region_.states[here].*counter, least);
    shown = true;
    for (int m = here; m < count_; ++m)
      if (control_.presence(members_[static_cast<std::size_t>(m)]) != ControlBlock::Presence::here && !has_come(m))
        return true;
    return false;
  };
  const bool come = control_.wait_until(everybody, over, work.deadline);
  if (!come) explain(work, has_come);
  if (shown) control_.set_waits_for_nobody(self);
}

// Before any byte has moved.
void Channel::compare(const Work& work) {
  const auto same = [&](int a, int b) { return same_call(descriptor(work, a).print, descriptor(work, b).print); };
  bool agreed = true;
  for (int m = 1; agreed && m < count_; ++m) agreed = same(0, m);
  if (agreed) [[likely]]
    return;
  // Of a pair the higher rank, whoever sends.
  const int odd = work.collective.pairwise() ? (members_[0] > members_[1] ? 0 : 1) : odd_one_out(count_, same)->odd;
  std::string text = "expected all ranks to make the same call, got ";
  for (int m = 0; m < count_; ++m)
    text +=
        cat(m ? "; " : "", "rank ", members_[static_cast<std::size_t>(m)], ": ", to_string(descriptor(work, m).print));
  give_up(work, members_[static_cast<std::size_t>(odd)], text);
}

// ---- failures

void Channel::give_up(const Work& work, int rank, const std::string& text) {
  control_.fail(rank, text);
  pass_on_failure(work);
}

void Channel::pass_on_failure(const Work& work) {
  // The control block has the failure: a rank that becomes busy after this sees it and stops. One that is busy now only
  // copies.
  for (int m = 0; m < count_; ++m)
    while (m != index_ && control_.threads() && region_.states[m].busy.load(std::memory_order_seq_cst) != 0)
      sched_yield();
  const ControlBlock::Failure failure = *control_.failure();
  throw CommError(failure.rank, to_string(work.collective.kind), failure.text);
}

template <class HasCome>
void Channel::explain(const Work& work, HasCome&& has_come) {
  if (control_.failed()) pass_on_failure(work);
  std::string late;
  int first_late = -1;
  for (int m = 0; m < count_; ++m) {
    if (has_come(m)) continue;
    const int rank = members_[static_cast<std::size_t>(m)];
    const ControlBlock::Presence presence = control_.presence(rank);
    if (presence != ControlBlock::Presence::here)
      give_up(work, rank,
              cat("rank ", rank, presence == ControlBlock::Presence::left ? " left" : " died", " before it came to ",
                  to_string(work.print)));
    if (first_late < 0) first_late = rank;
    late += cat(late.empty() ? "rank " : ", rank ", rank);
  }
  if (first_late < 0) return;  // just in time
  if (const int odd = mismatched_member(); odd >= 0)
    give_up(work, odd,
            cat("expected all ranks to make the same calls in the same order, but rank ", odd,
                " has called another when a rank came to ", to_string(work.print)));
  // It may only wait for another itself.
  const int cause = control_.end_of_waits(first_late);
  give_up(work, cause,
          cat("expected every rank to come to ", to_string(work.print), " within ", work.collective.timeout.count(),
              " ms, got nothing from ", late, cause == first_late ? "" : cat(", who waits for rank ", cause)));
}

// ---- collectives

void Channel::perform(const Collective& collective) {
  Work work(collective, count_);
  begin(work);
  const bool fits = work.parts * work.count() * work.size <= static_cast<std::int64_t>(region_.slot_bytes);
  if (fits || !control_.threads())
    through_slots(work);
  else
    directly(work);
  end(work);
}

// What this rank writes, given the elements from `begin` on of every part: source(member, part).
template <class Source>
void Channel::take(const Work& work, std::int64_t begin, std::int64_t length, Source&& source) {
  const auto bytes = static_cast<std::size_t>(length * work.size);
  const bool at_root = index_ == work.root;
  const auto reduce = [&](int part) {
    std::vector<const void*> inputs(static_cast<std::size_t>(count_));
    for (int m = 0; m < count_; ++m) inputs[static_cast<std::size_t>(m)] = source(m, part);
    void* output = work.output(0, begin);
    host_reduce(work.collective.reduction, work.collective.dtype, inputs, {&output, 1}, length);
  };
  const auto collect = [&](int part) {
    for (int m = 0; m < count_; ++m) copy(work.output(m, begin), source(m, part), bytes);
  };
  switch (work.collective.kind) {
    case Kind::all_reduce:
      return reduce(0);
    case Kind::reduce:
      return at_root ? reduce(0) : void();
    case Kind::reduce_scatter:
      return reduce(index_);
    case Kind::broadcast:
    case Kind::send:
    case Kind::recv:
      return at_root ? void() : copy(work.output(0, begin), source(work.root, 0), bytes);
    case Kind::scatter:
      return copy(work.output(0, begin), source(work.root, index_), bytes);
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
void Channel::offer(const Work& work, std::int64_t begin, std::int64_t length) {
  const Kind kind = work.collective.kind;
  const bool from_root = kind == Kind::broadcast || kind == Kind::scatter || work.collective.pairwise();
  const bool to_root = kind == Kind::reduce || kind == Kind::gather;
  const bool at_root = index_ == work.root;
  if ((from_root && !at_root) || (to_root && at_root)) return;
  for (std::int64_t part = 0; part < work.parts; ++part)
    copy(own_slot() + part * length * work.size, work.input(part, begin), static_cast<std::size_t>(length * work.size));
}

// Each rank combines its share of the piece and leaves it in its slot, where its own input would be.
void Channel::all_reduce_piece(Work& work, std::int64_t begin, std::int64_t length) {
  for (int m = 0; m < count_; ++m) {
    const auto [first, elements] = share(length, m, count_, work.size);
    if (m != index_)
      copy(own_slot() + first * work.size, work.input(0, begin + first),
           static_cast<std::size_t>(elements * work.size));
  }
  meet(work);
  const auto [mine, elements] = share(length, index_, count_, work.size);
  std::vector<const void*> inputs(static_cast<std::size_t>(count_));
  for (int m = 0; m < count_; ++m)
    inputs[static_cast<std::size_t>(m)] = m == index_ ? work.input(0, begin + mine) : slot(m) + mine * work.size;
  void* const outputs[] = {work.output(0, begin + mine), own_slot() + mine * work.size};
  host_reduce(work.collective.reduction, work.collective.dtype, inputs, outputs, elements);
  meet(work);
  for (int m = 0; m < count_; ++m) {
    const auto [first, its] = share(length, m, count_, work.size);
    if (m != index_)
      copy(work.output(0, begin + first), slot(m) + first * work.size, static_cast<std::size_t>(its * work.size));
  }
}

void Channel::through_slots(Work& work) {
  const std::int64_t capacity = static_cast<std::int64_t>(region_.slot_bytes) / (work.parts * work.size);
  std::int64_t begin = 0;
  do {
    const std::int64_t length = std::min(capacity, work.count() - begin);
    ++piece_;
    if (work.collective.kind == Kind::all_reduce && work.count() * work.size > kSharedWorkBytes) {
      all_reduce_piece(work, begin, length);
    } else {
      offer(work, begin, length);
      meet(work);
      take(work, begin, length, [&](int member, std::int64_t part) {
        return member == index_ ? work.input(part, begin) : slot(member) + part * length * work.size;
      });
    }
    begin += length;
  } while (begin < work.count());
}

// Several writers, each of the memory of all: for what is the same for every receiver.
void Channel::combine_range(const Work& work) {
  const auto [begin, length] = share(work.count(), index_, count_, work.size);
  const Kind kind = work.collective.kind;
  const auto offset = work.at(0, begin);
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (int m = 0; m < count_; ++m) {
    const WorkDescriptor& its = descriptor(work, m);
    if (kind != Kind::broadcast || m == work.root) inputs.push_back(static_cast<const std::byte*>(its.input) + offset);
    if (kind == Kind::all_reduce || (kind == Kind::broadcast) != (m == work.root))
      outputs.push_back(static_cast<std::byte*>(its.output) + offset);
  }
  if (kind != Kind::broadcast)
    return host_reduce(work.collective.reduction, work.collective.dtype, inputs, outputs, length);
  constexpr std::int64_t kBlock = 64 << 10;  // read once, and from the cache for the others
  for (std::int64_t done = 0; done < length * work.size; done += kBlock)
    for (void* output : outputs)
      copy(static_cast<std::byte*>(output) + done, static_cast<const std::byte*>(inputs[0]) + done,
           static_cast<std::size_t>(std::min(kBlock, length * work.size - done)));
}

void Channel::directly(Work& work) {
  meet(work);
  RankState& own = region_.states[index_];
  own.busy.store(1, std::memory_order_seq_cst);
  if (control_.failed()) {  // a rank may have given up, and its memory be gone
    own.busy.store(0, std::memory_order_seq_cst);
    pass_on_failure(work);
  }
  const Kind kind = work.collective.kind;
  if (kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::broadcast) {
    combine_range(work);
  } else {
    take(work, 0, work.count(), [&](int member, std::int64_t part) {
      return static_cast<const std::byte*>(descriptor(work, member).input) + work.at(part, 0);
    });
  }
  own.busy.store(0, std::memory_order_seq_cst);
  meet(work);  // the tensors are not needed, and written, from here on
}

// ---- host messages

std::vector<std::string> Channel::exchange(const Collective& collective, const std::string& mine) {
  Work work(collective, count_);
  work.bytes = mine.size();
  begin(work);
  if (mine.size() > kMostExchangeBytes)
    give_up(work, members_[static_cast<std::size_t>(index_)],
            cat("expected a message of at most ", bytes_to_string(kMostExchangeBytes), ", got ",
                bytes_to_string(mine.size())));
  std::vector<std::string> all(static_cast<std::size_t>(count_));
  std::vector<std::size_t> sizes(all.size());
  std::size_t longest = 0, begin = 0;
  do {
    ++piece_;
    if (begin < mine.size()) copy(own_slot(), mine.data() + begin, std::min(region_.slot_bytes, mine.size() - begin));
    meet(work);
    for (std::size_t m = 0; m < all.size(); ++m) {
      if (begin == 0) {
        sizes[m] = std::min<std::size_t>(descriptor(work, static_cast<int>(m)).bytes, kMostExchangeBytes);
        longest = std::max(longest, sizes[m]);
        all[m].reserve(sizes[m]);
      }
      if (begin < sizes[m])
        all[m].append(reinterpret_cast<const char*>(slot(static_cast<int>(m))),
                      std::min(region_.slot_bytes, sizes[m] - begin));
    }
    begin += region_.slot_bytes;
  } while (begin < longest);
  end(work);
  return all;
}

}  // namespace lockstep::detail
