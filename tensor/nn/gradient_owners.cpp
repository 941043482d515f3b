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
// Pieces are whole units of memory, in bytes.
constexpr std::int64_t kUnit = 256;

std::int64_t divide_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

std::int64_t whole_units(std::int64_t count, DType dtype) {
  const std::int64_t unit = kUnit / static_cast<std::int64_t>(size_of(dtype));
  return divide_up(count, unit) * unit;
}

// A device that takes part; home is the first.
struct Owner {
  Tensor part;  // of the round; undefined for home where it takes no part
  Stream stream, copies;
  Event passed;  // the last copy out of it: one device reads it at a time
  Tensor room;   // of an owner: kHeld times a piece from every other part
  Event arrived;
  std::array<Event, kHeld> summed;
};

class OwnerSum final : public SectionSum {
 public:
  // `piece`: of an owner in a round, whole units.
  OwnerSum(const std::vector<Device>& devices, Device home, DType dtype, std::int64_t piece, std::size_t rounds_held)
      : dtype_(dtype), piece_(piece), without_(devices[0] == home ? 0 : 1) {
    if (without_ > 0) add_place(home);
    for (const Device device : devices) add_place(device);
    first_ = places_.size() > 2 ? 1 : 0;
    owners_ = places_.size() > 2 ? places_.size() - 1 : 1;
    const std::int64_t held = static_cast<std::int64_t>(rounds_held * (devices.size() - 1)) * piece_;
    for (std::size_t o = first_; o < first_ + owners_; ++o)
      places_[o].room =
          Tensor::over(Storage::allocate(places_[o].stream.device(), static_cast<std::size_t>(held) * size_of(dtype)),
                       dtype, {held}, {1});
    // The memory may be what an earlier sum on these streams has left. Home owns alone when it stands first.
    for (std::size_t o = first_; o < first_ + owners_; ++o) {
      Owner& owner = places_[o];
      LOCKSTEP_EDGE(owner.arrived.record(owner.stream));
      LOCKSTEP_EDGE(owner.copies.wait(owner.arrived));
    }
  }

  void add(const std::vector<Tensor>& parts, const Tensor& sum, const std::vector<const Event*>& ready) override {
    // An owner reads every part, so that one event for all of them is enough.
    const Stream& gate = first_ > 0 ? places_[0].stream : places_[0].copies;
    for (const Event* event : ready) LOCKSTEP_EDGE(gate.wait(*event));
    if (ready.empty())
      for (const Tensor& part : parts) LOCKSTEP_EDGE(gate.wait_for(current_stream(part.device())));
    if (first_ > 0) {
      Event all;
      LOCKSTEP_EDGE(all.record(gate));
      for (const Owner& place : places_) LOCKSTEP_EDGE(place.copies.wait(all));
    }
    const auto owners = static_cast<std::int64_t>(owners_);
    const std::int64_t rounds = std::max<std::int64_t>(1, divide_up(sum.count(), owners * piece_));
    const std::int64_t round = owners * whole_units(divide_up(sum.count(), owners * rounds), dtype_);
    for (std::int64_t begin = 0; begin < sum.count(); begin += round) {
      const std::int64_t length = std::min(round, sum.count() - begin);
      std::vector<Tensor> of_round;
      for (const Tensor& part : parts) of_round.push_back(part.narrow(0, begin, length));
      add_round(of_round, sum.narrow(0, begin, length));
    }
  }

  // The parts have been read, and the sum is at home.
  void end() override {
    if (first_ > 0)
      for (std::size_t o = 1; o < places_.size(); ++o) take_home(o);
    for (Owner& place : places_) LOCKSTEP_EDGE(place.stream.wait(place.passed));
    if (first_ > 0) LOCKSTEP_EDGE(places_[0].stream.wait_for(places_[0].copies));
  }

  void settle() noexcept override {
    for (const Owner& place : places_)
      detail::settle(place.copies.backend(), place.copies.device(), place.copies.handle());
  }

 private:
  void add_place(Device device) {
    Owner& place = places_.emplace_back();
    place.stream = current_stream(device);
    place.copies = copies_of(place.stream);
  }

  // In every turn each device reads another one, and each is read by another one. Two that read one device at a time
  // would halve each other's rate while a third device is read by none, and ever more so.
  void add_round(const std::vector<Tensor>& parts, const Tensor& sum) {
    const std::size_t round = rounds_;
    for (std::size_t turn = 1; turn < places_.size(); ++turn) {
      for (std::size_t o = first_; o < first_ + owners_; ++o) {
        Owner& to = places_[o];
        const std::size_t from = (o + turn) % places_.size();
        if (turn == 1) LOCKSTEP_EDGE(to.copies.wait(to.summed[round % kHeld]));
        if (from < without_) continue;
        const Tensor& part = parts[from - without_];
        if (const std::int64_t length = length_of(part, o); length > 0)
          move(places_[from], piece_of(part, o), to, arrival(round, o, from, length));
      }
      if (round > 0 && first_ > 0) take_home(turn);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Owner& place = places_[i + without_];
      place.part = parts[i];
      LOCKSTEP_EDGE(parts[i].storage()->record_use(place.stream));  // which waits for who reads it, at the end
    }
    sum_ = sum;
    rounds_ = round + 1;
    for (std::size_t o = first_; o < first_ + owners_; ++o) add_up(o);
  }

  // Pieces go to the owners by turns; the last ones may be shorter, or missing.
  std::int64_t begin_of(const Tensor& whole, std::size_t o) const {
    return std::min(whole.count(), static_cast<std::int64_t>(o - first_) * share_of(whole));
  }
  std::int64_t length_of(const Tensor& whole, std::size_t o) const {
    return std::min(share_of(whole), whole.count() - begin_of(whole, o));
  }
  std::int64_t share_of(const Tensor& whole) const {
    return whole_units(divide_up(whole.count(), static_cast<std::int64_t>(owners_)), dtype_);
  }
  Tensor piece_of(const Tensor& whole, std::size_t o) const {
    return whole.narrow(0, begin_of(whole, o), length_of(whole, o));
  }
  // Where the piece from another place arrives.
  Tensor arrival(std::size_t round, std::size_t o, std::size_t from, std::int64_t length) const {
    const std::size_t others = places_.size() - without_ - 1, skipped = without_ + (from > o ? 1U : 0U);
    const std::size_t at = round % kHeld * others + from - skipped;
    return places_[o].room.narrow(0, static_cast<std::int64_t>(at) * piece_, length);
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

  void add_up(std::size_t o) {
    Owner& owner = places_[o];
    const std::size_t round = rounds_ - 1;
    const std::int64_t length = length_of(sum_, o);
    if (length == 0) return;
    LOCKSTEP_EDGE(owner.arrived.record(owner.copies));
    LOCKSTEP_EDGE(owner.stream.wait(owner.arrived));
    std::vector<Tensor> terms;  // in replica order
    for (std::size_t p = without_; p < places_.size(); ++p)
      terms.push_back(p == o ? piece_of(owner.part, o) : arrival(round, o, p, length));
    add_in_order(std::move(terms), piece_of(o == 0 ? sum_ : owner.part, o));
    LOCKSTEP_EDGE(owner.summed[round % kHeld].record(owner.stream));
  }

  // Of the last round.
  void take_home(std::size_t o) {
    if (length_of(sum_, o) == 0) return;
    Owner& owner = places_[o];
    LOCKSTEP_EDGE(places_[0].copies.wait(owner.summed[(rounds_ - 1) % kHeld]));
    move(owner, piece_of(owner.part, o), places_[0], piece_of(sum_, o));
  }

  DType dtype_;
  std::int64_t piece_;   // elements, at most
  std::size_t without_;  // places that have no part: home's, the first
  std::vector<Owner> places_;
  std::size_t first_ = 0, owners_ = 1;  // places_[first_] is the first of the owners
  std::size_t rounds_ = 0;
  Tensor sum_;  // of the last round
};

std::size_t owners_of(const std::vector<Device>& devices, Device home) {
  const std::size_t places = devices.size() + (devices[0] == home ? 0 : 1);
  return places > 2 ? places - 1 : 1;
}

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

std::unique_ptr<SectionSum> owner_sum(const std::vector<Device>& devices, Device home, DType dtype,
                                      std::int64_t longest) {
  const auto owners = static_cast<std::int64_t>(owners_of(devices, home));
  return std::make_unique<OwnerSum>(devices, home, dtype, whole_units(divide_up(longest, owners), dtype), kHeld);
}

void sum_by_owners(const std::vector<Tensor>& parts, const Tensor& sum, std::size_t rounds) {
  NoGrad off;
  const KeepDevice turns;
  std::vector<Device> devices;
  for (const Tensor& part : parts) devices.push_back(part.device());
  const auto owners = static_cast<std::int64_t>(owners_of(devices, sum.device()));
  std::int64_t piece = divide_up(sum.count(), owners);
  if (current_stream(sum.device()).synchronous()) {
    piece = std::min(piece, static_cast<std::int64_t>(kCachedPieceBytes / size_of(sum.dtype())));
  } else {
    const std::size_t places = devices.size() + (devices[0] == sum.device() ? 0 : 1);
    piece = divide_up(piece, static_cast<std::int64_t>(rounds > 0 ? rounds : owner_rounds(sum.bytes(), places)));
  }
  piece = whole_units(piece, sum.dtype());
  const auto all = static_cast<std::size_t>(divide_up(sum.count(), piece * owners));
  OwnerSum by(devices, sum.device(), sum.dtype(), piece, std::min(kHeld, all));
  sum_one(by, parts, sum);
}

}  // namespace lockstep::detail
