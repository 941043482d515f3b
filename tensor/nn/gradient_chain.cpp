#include "lockstep/tensor/nn/gradient_chain.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "lockstep/runtime/copy/chain.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/keep_device.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/runtime/topology.h"

namespace lockstep::detail {
namespace {

// Pieces that a device holds at a time: one is summed while another arrives and a third is passed on, and one more for
// the streams' unevenness.
constexpr std::int64_t kHeld = 4;
// Where work is done at once nothing overlaps, and what is in the cache is what counts.
constexpr std::size_t kCachedPieceBytes = 128 << 10;

// A device of the chain, or home at its end, or one that only passes on what two others have no way for.
struct Stop {
  Tensor part;    // what it adds; undefined for home at the end, and for who only passes on
  Tensor pieces;  // room for what arrives: kHeld pieces after each other, or the whole sum at the end
  Stream stream, copies;
  Event arrived, added;
  std::array<Event, std::size_t{kHeld}> passed_on;
};

class SumChain {
 public:
  SumChain(const std::vector<Tensor>& parts, const Tensor& sum) : count_(sum.count()) {
    const auto element = static_cast<std::int64_t>(size_of(sum.dtype()));
    const bool at_once = current_stream(sum.device()).synchronous();
    piece_ =
        static_cast<std::int64_t>(at_once ? kCachedPieceBytes : chain_piece_bytes(sum.bytes(), parts.size())) / element;
    held_ = at_once ? 1 : kHeld;
    for (const Tensor& part : parts) {
      if (!at_once && !stops_.empty()) add_relay(parts, part.device());
      add_stop(part.device()).part = part;
    }
    if (!at_once) add_relay(parts, sum.device());
    add_stop(sum.device()).pieces = sum;
    for (std::size_t i = 1; i + 1 < stops_.size(); ++i) {
      const std::int64_t room = std::min(held_ * piece_, count_);
      stops_[i].pieces =
          Tensor::over(Storage::allocate(stops_[i].stream.device(), static_cast<std::size_t>(room * element)),
                       sum.dtype(), {room}, {1});
    }
  }

  void run() try {
    for (std::size_t i = 1; i < stops_.size(); ++i) LOCKSTEP_EDGE(stops_[i].copies.wait_for(stops_[i].stream));
    LOCKSTEP_EDGE(stops_[1].copies.wait_for(stops_[0].stream));
    // Piece by piece, and not device by device: room for a piece is free when the one before it has left.
    for (std::int64_t k = 0; k * piece_ < count_; ++k)
      for (std::size_t i = 1; i < stops_.size(); ++i) pass(k, i);
    for (std::size_t i = 1; i < stops_.size(); ++i) {
      LOCKSTEP_EDGE(stops_[i - 1].stream.wait_for(stops_[i].copies));
    }
    LOCKSTEP_EDGE(stops_.back().stream.wait_for(stops_.back().copies));
  } catch (...) {
    for (const Stop& stop : stops_) settle(stop.copies.backend(), stop.copies.device(), stop.copies.handle());
    throw;
  }

 private:
  Stop& add_stop(Device device) {
    Stop& stop = stops_.emplace_back();
    stop.stream = current_stream(device);
    stop.copies = copies_of(stop.stream);
    return stop;
  }

  // Where the way to `next` is through host memory, and a device of the chain has straight ways to both: over that one.
  void add_relay(const std::vector<Tensor>& parts, Device next) {
    std::vector<Device> devices;
    for (const Tensor& part : parts) devices.push_back(part.device());
    const auto place = [&devices](Device device) {
      return static_cast<std::size_t>(std::find(devices.begin(), devices.end(), device) - devices.begin());
    };
    const std::size_t from = place(stops_.back().stream.device()), to = place(next);
    if (to == devices.size() || from == to) return;
    const std::shared_ptr<const Topology> known = topology(devices);
    if (known->links.at(from, to).speed > 0) return;
    const std::optional<std::size_t> over = relay(known->links, from, to);
    if (!over) return;
    Stop& stop = add_stop(devices[*over]);
    // On the device's own one copies of other hops wait for what comes after these.
    stop.copies = lane_copies_of(stop.stream, 1);
  }

  Tensor room(const Stop& stop, std::int64_t k, std::int64_t length) const {
    const bool last = &stop == &stops_.back();
    return stop.pieces.narrow(0, (last ? k : k % held_) * piece_, length);
  }

  // Brings piece k to the stop i, which adds its own.
  void pass(std::int64_t k, std::size_t i) {
    const std::int64_t length = std::min(piece_, count_ - k * piece_);
    const auto slot = static_cast<std::size_t>(k % held_);
    Stop &from = stops_[i - 1], &to = stops_[i];
    const bool first = i == 1, last = i + 1 == stops_.size();
    Tensor there = room(to, k, length);
    const Tensor here = first ? from.part.narrow(0, k * piece_, length) : room(from, k, length);
    if (!first) LOCKSTEP_EDGE(to.copies.wait(from.added));
    if (!last && k >= held_) LOCKSTEP_EDGE(to.copies.wait(to.passed_on[slot]));
    copy_on(to.copies, {.destination = there.view().data,
                        .destination_device = there.device(),
                        .source = here.data(),
                        .source_device = here.device(),
                        .bytes = here.bytes()});
    if (!first) LOCKSTEP_EDGE(from.passed_on[slot].record(to.copies));
    if (last) return;
    if (!to.part.defined()) {
      LOCKSTEP_EDGE(to.added.record(to.copies));
      return;
    }
    LOCKSTEP_EDGE(to.arrived.record(to.copies));
    LOCKSTEP_EDGE(to.stream.wait(to.arrived));
    there.add_(to.part.narrow(0, k * piece_, length));
    LOCKSTEP_EDGE(to.added.record(to.stream));
  }

  std::int64_t count_, piece_;  // elements
  std::int64_t held_;           // pieces
  std::vector<Stop> stops_;
};

}  // namespace

bool sums_along_chain(const std::vector<Tensor>& parts, Device home) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Device next = i + 1 < parts.size() ? parts[i + 1].device() : home;
    if (!chainable(parts[i].device(), next)) return false;
  }
  return parts.size() > 1;
}

void sum_along_chain(const std::vector<Tensor>& parts, const Tensor& sum) {
  NoGrad off;
  const KeepDevice turns;
  SumChain(parts, sum).run();
}

}  // namespace lockstep::detail
