#include "lockstep/parallel/comm/peer/peer_rank.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <optional>

#include "lockstep/parallel/comm/peer/device_reduce.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep::detail {
namespace {

using Kind = Collective::Kind;

struct Release {
  void operator()(MemoryBlock* block) const noexcept { release(block); }
};
using OwnedBlock = std::unique_ptr<MemoryBlock, Release>;

const std::byte* at(const void* memory, std::size_t bytes) { return static_cast<const std::byte*>(memory) + bytes; }
std::byte* at(void* memory, std::size_t bytes) { return static_cast<std::byte*>(memory) + bytes; }

// Of a reduction that the ranks share: which elements are whose. Pieces begin on whole cache lines.
struct Range {
  std::int64_t begin, count;
};
Range range_of(int rank, int size, std::int64_t count) {
  constexpr std::int64_t kMultiple = 64;
  const std::int64_t part = ((count + size - 1) / size + kMultiple - 1) / kMultiple * kMultiple;
  const std::int64_t begin = std::min(count, rank * part);
  return {begin, std::min(count, begin + part) - begin};
}

}  // namespace

// A collective on its way.
struct PeerCommunicator::Work {
  const Collective& collective;
  Stream stream;
  Meeting meeting;
  std::vector<Contribution> contributions = {};  // of the last meeting
  std::size_t bytes = 0;                         // of one rank's part
  Deadline deadline;                             // of the meeting
  bool shared = false;                           // a reduction of which each rank does its range
  OwnedBlock reduced = nullptr;                  // what this rank has reduced, while it cannot lie in the output
  const Contribution& contribution(int rank) const { return contributions[static_cast<std::size_t>(rank)]; }
};

PeerCommunicator::PeerCommunicator(std::shared_ptr<PeerGroup> group, int rank, const PeerOptions& options)
    : Communicator(rank, group->size(), group->device(rank), options.timeout),
      group_(std::move(group)),
      scratch_bytes_(options.scratch_bytes),
      pulls_(device()) {}

PeerCommunicator::~PeerCommunicator() { group_->place().leave(rank()); }

void PeerCommunicator::on_broken(const CommError& error) { group_->place().fail(error); }

Meeting PeerCommunicator::next_meeting(const Collective& collective) {
  if (collective.kind == Kind::send) return {rank(), collective.peer, collective.sequence};
  if (collective.kind == Kind::recv) return {collective.peer, rank(), collective.sequence};
  return {.number = ++meetings_};
}

std::vector<std::string> PeerCommunicator::exchange(const Collective& collective, const std::string& mine) try {
  const Meeting meeting = next_meeting(collective);
  std::vector<Contribution> contributions = group_->place().meet(
      meeting, rank(), {.fingerprint = fingerprint(collective), .message = mine}, collective.timeout);
  group_->place().check_agreement(meeting, contributions);
  std::vector<std::string> messages;
  for (Contribution& contribution : contributions) messages.push_back(std::move(contribution.message));
  return messages;
} catch (const CommError& error) {
  throw break_with(error);
}

std::unique_ptr<Communicator> PeerCommunicator::make_split(const std::vector<int>& members, int index,
                                                           const std::string& id) try {
  return std::make_unique<PeerCommunicator>(group_->split(members, id), index,
                                            PeerOptions{.timeout = timeout(), .scratch_bytes = scratch_bytes_});
} catch (const CommError& error) {
  throw break_with(error);
}

RollCall PeerCommunicator::roll_call() {
  return {.store = group_->store(), .prefix = "peer", .gone = [group = group_] { return group->place().gone(); }};
}

// What goes wrong breaks the communicator.
template <class Body>
void PeerCommunicator::guarded(const Collective& collective, Body&& body) {
  try {
    body();
  } catch (const CommError& error) {
    throw break_with(error);
  } catch (...) {
    break_with(CommError(rank(), to_string(collective.kind), describe(std::current_exception())));
    throw;
  }
}

void PeerCommunicator::enqueue(const Collective& collective, const Stream& stream) {
  guarded(collective, [&] { size() == 1 ? copy_own(collective, stream) : run(collective, stream); });
}

// Each transfer goes on as soon as its other side does.
void PeerCommunicator::enqueue_batch(std::vector<Collective> transfers, const Stream& stream) {
  guarded(transfers[0], [&] {
    std::list<Work> works;
    std::vector<MeetingPlace::Arrival> arrivals;
    for (const Collective& each : transfers) {
      works.push_back(work_of(each, stream));
      arrivals.push_back({works.back().meeting, announcement(works.back())});
    }
    group_->place().come(std::move(arrivals), rank());
    std::exception_ptr error;
    while (!works.empty()) {
      std::vector<Meeting> meetings;
      for (const Work& work : works) meetings.push_back(work.meeting);
      // The first one's deadline is the first of all.
      const std::size_t ready = group_->place().wait_for_any(meetings, works.front().deadline);
      const auto work = std::next(works.begin(), static_cast<std::ptrdiff_t>(ready));
      if (step(*work, error))
        works.splice(works.end(), works, work);
      else
        works.erase(work);
    }
    if (error) std::rethrow_exception(error);
  });
}

// Of a transfer that need not wait: whether there is more to come, as for all that have met, whatever becomes of them.
// What goes wrong with one is nothing to those of the others; `first_error` is that of the batch.
bool PeerCommunicator::step(Work& work, std::exception_ptr& first_error) {
  const bool met = work.meeting.phase > 0;
  std::exception_ptr error;
  bool goes_on = false;
  try {
    if (met) {
      part(work);
    } else {
      collect(work);
      group_->place().check_agreement(work.meeting, work.contributions);
      goes_on = true;
      move(work);
    }
  } catch (...) {
    error = std::current_exception();
  }
  if (goes_on) come_again(work, error, nullptr);
  if (!first_error) first_error = error;
  return goes_on;
}

// What the rank has for itself.
void PeerCommunicator::copy_own(const Collective& collective, const Stream& stream) {
  const std::size_t part = static_cast<std::size_t>(collective.count) * size_of(collective.dtype);
  const std::size_t own = static_cast<std::size_t>(rank()) * part;
  const void* from = collective.input;
  void* to = collective.output;
  if (collective.kind == Kind::scatter || collective.kind == Kind::all_to_all) from = at(from, own);
  if (collective.kind == Kind::gather || collective.kind == Kind::all_gather || collective.kind == Kind::all_to_all)
    to = at(to, own);
  if (!collective.input || !collective.output || from == to) return;
  copy_bytes({to, device(), from, device(), part}, stream, stream);
}

PeerCommunicator::Work PeerCommunicator::work_of(const Collective& collective, const Stream& stream) {
  const std::size_t bytes = static_cast<std::size_t>(collective.count) * size_of(collective.dtype);
  const bool reduces = collective.kind == Kind::all_reduce || collective.kind == Kind::reduce;
  return {.collective = collective,
          .stream = stream,
          .meeting = next_meeting(collective),
          .bytes = bytes,
          .deadline = Deadline::after(collective.timeout),
          .shared = reduces && bytes * static_cast<std::size_t>(size()) > group_->one_shot_bytes()};
}

void PeerCommunicator::run(const Collective& collective, const Stream& stream) {
  Work work = work_of(collective, stream);
  begin(work);
  // Who has come this far comes to the other meetings too, even after an error: until then others may read its memory.
  std::exception_ptr error;
  void* reduced = nullptr;
  try {
    if (work.shared) {
      const Range range = range_of(rank(), size(), collective.count);
      const std::size_t element_bytes = size_of(collective.dtype);
      if (collective.output) {
        reduced = at(collective.output, static_cast<std::size_t>(range.begin) * element_bytes);
      } else {
        work.reduced.reset(allocate(stream, static_cast<std::size_t>(range.count) * element_bytes));
        reduced = work.reduced->data;
      }
      reduce_range(work, range.begin, range.count, reduced);
    } else {
      move(work);
    }
  } catch (...) {
    error = std::current_exception();
  }
  meet_again(work, error, reduced);
  if (!work.shared) {
    if (work.reduced)  // the others have read what was there
      copy_bytes({collective.output, device(), work.reduced->data, device(), work.bytes}, stream, stream);
    return;
  }
  try {
    collect_ranges(work);
  } catch (...) {
    error = std::current_exception();
  }
  meet_again(work, error, nullptr);
}

// Every rank says what it calls, where its memory is, and when it may be used.
Contribution PeerCommunicator::announcement(const Work& work) {
  auto ready = std::make_shared<Event>();
  LOCKSTEP_EDGE(ready->record(work.stream));
  return {.fingerprint = fingerprint(work.collective),
          .input = work.collective.input,
          .output = work.collective.output,
          .event = std::move(ready)};
}

void PeerCommunicator::begin(Work& work) {
  work.contributions = group_->place().meet(work.meeting, rank(), announcement(work), work.collective.timeout);
  group_->place().check_agreement(work.meeting, work.contributions);
}

// Later work of the stream comes after what the other ranks have done with this one's memory so far.
void PeerCommunicator::meet_again(Work& work, std::exception_ptr own_error, void* output) {
  come_again(work, own_error, output);
  try {
    part(work);
  } catch (...) {
    if (!own_error) throw;
  }
  if (own_error) std::rethrow_exception(own_error);
}

// Says when this rank is done with the others' memory. They have the whole time-out to say so too: until then they may
// read this rank's.
void PeerCommunicator::come_again(Work& work, std::exception_ptr& own_error, void* output) {
  auto done = std::make_shared<Event>();
  try {
    LOCKSTEP_EDGE(work.stream.wait_for(pulls_));
    LOCKSTEP_EDGE(done->record(work.stream));
  } catch (...) {
    if (!own_error) own_error = std::current_exception();
    for (const Stream& stream : {pulls_, work.stream}) settle(stream.backend(), device(), stream.handle());
  }
  ++work.meeting.phase;
  work.deadline = Deadline::after(work.collective.timeout);
  std::vector<MeetingPlace::Arrival> one;
  one.push_back({work.meeting,
                 {.fingerprint = fingerprint(work.collective),
                  .output = output,
                  .event = std::move(done),
                  .error = own_error ? describe(own_error) : ""}});
  group_->place().come(std::move(one), rank());
}

void PeerCommunicator::collect(Work& work) {
  work.contributions =
      group_->place().collect(work.meeting, to_string(work.collective.kind), work.collective.timeout, work.deadline);
}

// What the others say of theirs.
void PeerCommunicator::part(Work& work) {
  const char* name = to_string(work.collective.kind);
  collect(work);
  for (int r = 0; r < size(); ++r)
    if (r != rank() && work.contribution(r).event) LOCKSTEP_EDGE(work.stream.wait(*work.contribution(r).event));
  for (int r = 0; r < size(); ++r)
    if (r != rank() && !work.contribution(r).error.empty()) throw CommError(r, name, work.contribution(r).error);
}

// The copy is ordered by events alone: after what the other rank has said, and before what it is told at the end.
void PeerCommunicator::pull(const Work& work, int from, const void* source, void* destination, std::size_t bytes) {
  if (bytes == 0) return;
  LOCKSTEP_EDGE(pulls_.wait(*work.contribution(from).event));
  start_copy({destination, device(), source, group_->device(from), bytes}, group_->idle_stream(from), pulls_);
}

// Everything but reductions that the ranks share.
void PeerCommunicator::move(Work& work) {
  const Collective& c = work.collective;
  const std::size_t own = static_cast<std::size_t>(rank()) * work.bytes;
  if (c.kind == Kind::all_reduce || c.kind == Kind::reduce) return reduce_all(work);
  if (c.kind == Kind::reduce_scatter) return reduce_range(work, rank() * c.count, c.count, c.output);
  if (c.kind == Kind::send || !c.output) return;
  LOCKSTEP_EDGE(pulls_.wait_for(work.stream));
  switch (c.kind) {
    case Kind::broadcast:
    case Kind::recv:
      if (c.peer != rank()) pull(work, c.peer, work.contribution(c.peer).input, c.output, work.bytes);
      return;
    case Kind::scatter:
      if (c.peer == rank()) return copy_own(c, work.stream);
      return pull(work, c.peer, at(work.contribution(c.peer).input, own), c.output, work.bytes);
    default:
      break;
  }
  for (int i = 1; i < size(); ++i) {
    const int from = (rank() + i) % size();
    const void* source = work.contribution(from).input;
    if (c.kind == Kind::all_to_all) source = at(source, own);
    pull(work, from, source, at(c.output, static_cast<std::size_t>(from) * work.bytes), work.bytes);
  }
  copy_own(c, work.stream);
}

// All of a small message. What is reduced in place is what the others read: there it goes at the end.
void PeerCommunicator::reduce_all(Work& work) {
  const Collective& c = work.collective;
  if (!c.output || c.count == 0) return;
  if (c.input == c.output) work.reduced.reset(allocate(work.stream, work.bytes));
  reduce_range(work, 0, c.count, work.reduced ? work.reduced->data : c.output);
}

// out = the reduced elements [offset, offset + count) of all inputs.
void PeerCommunicator::reduce_range(Work& work, std::int64_t offset, std::int64_t count, void* out) {
  if (count == 0) return;
  const Collective& c = work.collective;
  const std::size_t element_bytes = size_of(c.dtype);
  const auto others = static_cast<std::size_t>(size() - 1);
  // Two sets of pieces: one arrives while the other is added up.
  constexpr std::int64_t kMultiple = 64;
  const std::size_t bytes_per_element = 2 * others * element_bytes + 2 * sizeof(double);
  const std::int64_t fits = static_cast<std::int64_t>(scratch_bytes_ / bytes_per_element) / kMultiple * kMultiple;
  const std::int64_t chunk = std::min(count, std::max(fits, kMultiple));
  const std::size_t piece_bytes = (static_cast<std::size_t>(chunk) * element_bytes + 255) / 256 * 256;
  const std::size_t sets = chunk < count ? 2 : 1;
  const OwnedBlock scratch(allocate(pulls_, sets * others * piece_bytes + combine_scratch_bytes(c.dtype, chunk)));
  LOCKSTEP_EDGE(record_use(scratch.get(), work.stream));
  std::byte* const combining = at(scratch->data, sets * others * piece_bytes);

  std::optional<Event> emptied[2];
  std::vector<const void*> pieces(static_cast<std::size_t>(size()));
  for (std::int64_t begin = 0, set = 0; begin < count; begin += chunk, set ^= 1) {
    const std::int64_t now = std::min(chunk, count - begin);
    const std::size_t from_byte = static_cast<std::size_t>(offset + begin) * element_bytes;
    std::optional<Event>& last_use = emptied[set];
    if (last_use) LOCKSTEP_EDGE(pulls_.wait(*last_use));
    std::byte* slot = at(scratch->data, static_cast<std::size_t>(set) * others * piece_bytes);
    pieces[static_cast<std::size_t>(rank())] = at(c.input, from_byte);
    for (int i = 1; i < size(); ++i, slot += piece_bytes) {
      const int from = (rank() + i) % size();
      pull(work, from, at(work.contribution(from).input, from_byte), slot,
           static_cast<std::size_t>(now) * element_bytes);
      pieces[static_cast<std::size_t>(from)] = slot;
    }
    LOCKSTEP_EDGE(work.stream.wait_for(pulls_));
    combine(work.stream, c.reduction, c.dtype, now, pieces, at(out, static_cast<std::size_t>(begin) * element_bytes),
            combining);
    if (begin + chunk >= count) break;
    LOCKSTEP_EDGE(last_use.emplace().record(work.stream));
  }
}

// Each rank has reduced a range: they are put together in the output.
void PeerCommunicator::collect_ranges(Work& work) {
  const Collective& c = work.collective;
  if (!c.output) return;
  // The output is free: each of the others has waited for this rank before it reduced its range.
  for (int i = 1; i < size(); ++i) {
    const int from = (rank() + i) % size();
    const Range range = range_of(from, size(), c.count);
    const std::size_t element_bytes = size_of(c.dtype);
    pull(work, from, work.contribution(from).output,
         at(c.output, static_cast<std::size_t>(range.begin) * element_bytes),
         static_cast<std::size_t>(range.count) * element_bytes);
  }
}

}  // namespace lockstep::detail
