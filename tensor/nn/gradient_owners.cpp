#include "lockstep/tensor/nn/gradient_owners.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lockstep/runtime/copy/chain.h"
#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/keep_device.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/runtime/topology.h"
#include "lockstep/tensor/nn/add_in_order.h"

namespace lockstep::detail {
namespace {

// Rounds for which an owner has room: one is summed while the next arrives.
constexpr std::size_t kHeld = 2;
// What a fast link moves in the time that a copy takes to start, 5 us at 400 GB/s, or the host to enqueue one with its
// events.
constexpr double kCopyBytes = 2e6;
// The copies of a round grow with the square of the devices: of more of them the host starts a chain sooner.
constexpr std::size_t kMostPlaces = 16;
// A chain adds at every device, and fills over all of them, but each link has one copy after the other without waiting
// for who else reads there. From this times the cube of the devices on it is sooner there, with less memory: on a
// simulated switch of 400 GB/s from 55 MB for 3 devices, 135 MB for 4, 500 MB for 6 and 940 MB for 8.
constexpr std::size_t kChainBytes = std::size_t{7} << 18;

// A device that takes part; home is the first.
struct Owner {
  Tensor part;  // undefined for home where it took no part
  Stream stream, copies;
  Event ready;   // of the part, and of the memory for what arrives
  Event passed;  // the last copy out of it: one device reads it at a time
  Tensor room;   // of an owner: kHeld times a piece from every other part
  Event arrived;
  std::array<Event, kHeld> summed;
};

class OwnerSum {
 public:
  OwnerSum(const std::vector<Tensor>& parts, const Tensor& sum, std::size_t asked_rounds)
      : sum_(sum), element_(static_cast<std::int64_t>(size_of(sum.dtype()))) {
    if (parts[0].device() != sum.device()) add_place(sum.device());
    for (const Tensor& part : parts) add_place(part.device()).part = part;
    first_ = places_.size() > 2 ? 1 : 0;
    owners_ = places_.size() > 2 ? places_.size() - 1 : 1;
    const auto owners = static_cast<std::int64_t>(owners_);
    const auto at_least = [](std::int64_t count, std::int64_t by) { return (count + by - 1) / by; };
    const auto rounds =
        static_cast<std::int64_t>(asked_rounds > 0 ? asked_rounds : owner_rounds(sum.bytes(), places_.size()));
    piece_ = sum.count();
    if (places_[0].stream.synchronous())
      piece_ = std::min(at_least(piece_, owners), static_cast<std::int64_t>(kCachedPieceBytes) / element_);
    else
      piece_ = at_least(piece_, owners * rounds);
    const std::int64_t unit = 256 / element_;
    piece_ = at_least(piece_, unit) * unit;
    rounds_ = static_cast<std::size_t>(at_least(sum.count(), piece_ * owners));
    const auto held = static_cast<std::int64_t>(std::min(kHeld, rounds_) * (parts.size() - 1)) * piece_;
    for (std::size_t o = first_; o < first_ + owners_; ++o)
      places_[o].room =
          Tensor::over(Storage::allocate(places_[o].stream.device(), static_cast<std::size_t>(held * element_)),
                       sum.dtype(), {held}, {1});
  }

  void run() try {
    for (Owner& place : places_) LOCKSTEP_EDGE(place.ready.record(place.stream));
    for (Owner& place : places_) LOCKSTEP_EDGE(place.copies.wait(place.ready));
    // In every turn each device reads another one, and each is read by another one. Two that read one device at a time
    // would halve each other's rate while a third device is read by none, and ever more so.
    for (std::size_t round = 0; round < rounds_; ++round) {
      for (std::size_t turn = 1; turn < places_.size(); ++turn) {
        for (std::size_t o = first_; o < first_ + owners_; ++o) bring(round, o, (o + turn) % places_.size());
        if (round > 0 && first_ > 0) take_home(round - 1, turn);
      }
      for (std::size_t o = first_; o < first_ + owners_; ++o) add(round, o);
    }
    if (first_ > 0)
      for (std::size_t o = 1; o < places_.size(); ++o) take_home(rounds_ - 1, o);
    finish();
  } catch (...) {
    for (const Owner& place : places_) settle(place.copies.backend(), place.copies.device(), place.copies.handle());
    throw;
  }

 private:
  Owner& add_place(Device device) {
    Owner& place = places_.emplace_back();
    place.stream = current_stream(device);
    place.copies = copies_of(place.stream);
    return place;
  }

  // Pieces go to the owners by turns; the last ones may be shorter, or missing.
  std::int64_t begin_of(std::size_t round, std::size_t o) const {
    return std::min(sum_.count(), static_cast<std::int64_t>(round * owners_ + o - first_) * piece_);
  }
  std::int64_t length_of(std::size_t round, std::size_t o) const {
    return std::min(piece_, sum_.count() - begin_of(round, o));
  }
  Tensor piece_of(const Tensor& whole, std::size_t round, std::size_t o) const {
    return whole.narrow(0, begin_of(round, o), length_of(round, o));
  }
  // Where the piece from another place arrives.
  Tensor arrival(std::size_t round, std::size_t o, std::size_t from) const {
    const std::size_t without = places_[0].part.defined() ? 0 : 1;  // places that have no part
    const std::size_t others = places_.size() - without - 1, skipped = without + (from > o ? 1U : 0U);
    const std::size_t at = round % kHeld * others + from - skipped;
    return places_[o].room.narrow(0, static_cast<std::int64_t>(at) * piece_, length_of(round, o));
  }

  // Copies on the destination's stream for copies.
  void move(Owner& from, const Tensor& here, Owner& to, const Tensor& there) {
    if (first_ > 0) LOCKSTEP_EDGE(to.copies.wait(from.passed));
    copy_on(to.copies, {.destination = there.view().data,
                        .destination_device = there.device(),
                        .source = here.data(),
                        .source_device = here.device(),
                        .bytes = here.bytes()});
    LOCKSTEP_EDGE(from.passed.record(to.copies));
  }

  void bring(std::size_t round, std::size_t o, std::size_t from) {
    if (length_of(round, o) == 0) return;
    Owner &to = places_[o], &source = places_[from];
    if (from == (o + 1) % places_.size()) LOCKSTEP_EDGE(to.copies.wait(to.summed[round % kHeld]));
    if (!source.part.defined()) return;
    if (round == 0) LOCKSTEP_EDGE(to.copies.wait(source.ready));
    move(source, piece_of(source.part, round, o), to, arrival(round, o, from));
  }

  void add(std::size_t round, std::size_t o) {
    if (length_of(round, o) == 0) return;
    Owner& owner = places_[o];
    LOCKSTEP_EDGE(owner.arrived.record(owner.copies));
    LOCKSTEP_EDGE(owner.stream.wait(owner.arrived));
    std::vector<Tensor> terms;  // in replica order
    for (std::size_t p = 0; p < places_.size(); ++p)
      if (places_[p].part.defined()) terms.push_back(p == o ? piece_of(owner.part, round, o) : arrival(round, o, p));
    add_in_order(std::move(terms), piece_of(o == 0 ? sum_ : owner.part, round, o));
    LOCKSTEP_EDGE(owner.summed[round % kHeld].record(owner.stream));
  }

  void take_home(std::size_t round, std::size_t o) {
    if (length_of(round, o) == 0) return;
    Owner& owner = places_[o];
    LOCKSTEP_EDGE(places_[0].copies.wait(owner.summed[round % kHeld]));
    move(owner, piece_of(owner.part, round, o), places_[0], piece_of(sum_, round, o));
  }

  // The parts have been read, and the sum is at home.
  void finish() {
    for (Owner& place : places_) LOCKSTEP_EDGE(place.stream.wait(place.passed));
    if (first_ > 0) LOCKSTEP_EDGE(places_[0].stream.wait_for(places_[0].copies));
  }

  Tensor sum_;
  std::int64_t element_;  // bytes
  std::vector<Owner> places_;
  std::size_t first_, owners_;  // places_[first_] is the first of the owners
  std::int64_t piece_;          // elements
  std::size_t rounds_;
};

}  // namespace

bool sums_by_owners(const std::vector<Tensor>& parts, Device home) {
  if (parts.size() < 2) return false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Device next = i + 1 < parts.size() ? parts[i + 1].device() : home;
    if (!chainable(parts[i].device(), next)) return false;
  }
  const std::size_t places = parts.size() + (parts[0].device() == home ? 0 : 1);
  if (places == 2) return true;
  if (places > kMostPlaces || parts[0].bytes() >= places * places * places * kChainBytes) return false;
  // All devices send to all, and receive meanwhile: where ways differ, or what is sent slows down what is received, a
  // chain is faster.
  std::vector<Device> devices{home};
  for (const Tensor& part : parts)
    if (part.device() != home) devices.push_back(part.device());
  const std::shared_ptr<const Topology> ways = topology(devices);
  if (!ways->alike || ways->links.at(1, 2).shared) return false;
  for (const Tensor& from : parts)
    for (const Tensor& to : parts)
      if (&from != &to && !peer_copies(from.device(), to.device())) return false;
  return true;
}

// The first round, which home waits for, and the start of n - 1 copies each weigh against each other: the best count
// grows with the root. And all copies together, n² of a round, must not take the host longer than the links.
std::size_t owner_rounds(std::size_t bytes, std::size_t places) {
  const auto all = static_cast<double>(bytes), n = static_cast<double>(places);
  const double best = std::min(std::sqrt(all / (2 * (n - 1) * kCopyBytes)), all / (n * n * kCopyBytes));
  return static_cast<std::size_t>(std::max<long>(1, std::lround(best)));
}

void sum_by_owners(const std::vector<Tensor>& parts, const Tensor& sum, std::size_t rounds) {
  NoGrad off;
  const KeepDevice turns;
  OwnerSum(parts, sum, rounds).run();
}

}  // namespace lockstep::detail
