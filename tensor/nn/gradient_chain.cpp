#include "lockstep/tensor/nn/gradient_chain.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/runtime/copy/chain.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/keep_device.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/runtime/topology.h"
#include "lockstep/tensor/nn/add_in_order.h"

namespace lockstep::detail {
namespace {

// A device receives by turns on so many streams, each of which adds what it has received: one piece arrives while the
// one before it is added. What is added and what its room is used for next are in the order of a stream, without
// events, which would cost the host more calls than the copies do. On several lanes one stream each is enough: a line
// is slow beside memory, and two copies at once would share it.
constexpr std::size_t kTurns = 2;
// More copies take the host longer than the links: a copy with its event, its addition and the change of the device is
// some 8 us, and of 1 GB over 8 hops on a switch of 400 GB/s these are 3.2 ms, where bytes and the chain's start
// take 3.3.
constexpr std::size_t kMostCopies = 400;

// A device of the chain, or home at its end, or one that only passes on what two others have no way for.
struct Stop {
  Tensor part;  // what it adds, where the sum so far is formed; undefined for home at the end, and for who passes on
  Tensor room;  // for what arrives: a piece for each turn, or the whole sum at the end
  Stream stream;
  std::array<Stream, kTurns> copies;
  std::array<Event, kTurns> there;      // the piece, with the stop's part
  std::array<Event, kTurns> passed_on;  // of who only passes on
};

struct Piece {
  std::int64_t begin, length;  // elements
};

// One of the ways from the first device over all others to home, and the pieces that take it.
class SumLane {
 public:
  SumLane(const std::vector<Tensor>& parts, const Tensor& sum, const HopLane* over, std::size_t streams_of_each,
          std::map<Device, std::size_t>& used)
      : streams_(streams_of_each) {
    for (std::size_t i = 0; i <= parts.size(); ++i) {
      const std::optional<std::size_t> place = over && i > 0 ? over->over[i - 1] : std::nullopt;
      if (place) add_stop(parts[*place].device(), used);
      const bool last = i == parts.size();
      Stop& stop = add_stop(last ? sum.device() : parts[i].device(), used);
      (last ? stop.room : stop.part) = last ? sum : parts[i];
    }
  }

  std::size_t hops() const { return stops_.size() - 1; }
  std::int64_t load() const { return load_; }
  std::size_t pieces() const { return pieces_.size(); }
  void take(Piece piece) {
    pieces_.push_back(piece);
    load_ += piece.length;
  }

  void begin(DType dtype) {
    longest_ = 0;
    for (const Piece& piece : pieces_) longest_ = std::max(longest_, piece.length);
    streams_ = std::min(streams_, pieces_.size());
    const auto room = static_cast<std::int64_t>(std::min(kTurns, pieces_.size())) * longest_;
    for (std::size_t i = 1; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      if (i + 1 < stops_.size())
        stop.room =
            Tensor::over(Storage::allocate(stop.stream.device(), static_cast<std::size_t>(room) * size_of(dtype)),
                         dtype, {room}, {1});
      for (std::size_t each = 0; each < streams_; ++each) {
        LOCKSTEP_EDGE(stop.copies[each].wait_for(stop.stream));
        if (i == 1) LOCKSTEP_EDGE(stop.copies[each].wait_for(stops_[0].stream));
      }
    }
  }

  // Brings as many pieces as there are turns, from piece k, to home: device by device, so that the host changes the
  // device once for all of them.
  void pass(std::size_t k) {
    for (std::size_t i = 1; i < stops_.size(); ++i)
      for (std::size_t each = k; each < std::min(k + kTurns, pieces_.size()); ++each) pass(each, i);
  }

  void end() {
    for (std::size_t i = 1; i < stops_.size(); ++i)
      for (std::size_t each = 0; each < streams_; ++each) {
        LOCKSTEP_EDGE(stops_[i - 1].stream.wait_for(stops_[i].copies[each]));
        if (i + 1 == stops_.size()) LOCKSTEP_EDGE(stops_[i].stream.wait_for(stops_[i].copies[each]));
      }
  }

  void settle_all() const {
    for (const Stop& stop : stops_)
      for (std::size_t each = 0; each < streams_; ++each)
        settle(stop.copies[each].backend(), stop.copies[each].device(), stop.copies[each].handle());
  }

 private:
  // Each has streams of its own: copies of other hops into the same device may wait for what comes after these.
  Stop& add_stop(Device device, std::map<Device, std::size_t>& used) {
    Stop& stop = stops_.emplace_back();
    stop.stream = current_stream(device);
    for (std::size_t each = 0; each < streams_; ++each) stop.copies[each] = lane_copies_of(stop.stream, used[device]++);
    return stop;
  }

  // Brings piece k to the stop i, which adds its own.
  void pass(std::size_t k, std::size_t i) {
    const auto [begin, length] = pieces_[k];
    const std::size_t turn = k % kTurns;
    const std::int64_t in_room = static_cast<std::int64_t>(turn) * longest_;
    Stop &from = stops_[i - 1], &to = stops_[i];
    const bool last = i + 1 == stops_.size();
    const Stream& copies = to.copies[k % streams_];
    const Tensor here = from.part.defined() ? from.part.narrow(0, begin, length) : from.room.narrow(0, in_room, length);
    const Tensor there = to.room.narrow(0, last ? begin : in_room, length);
    if (i > 1) LOCKSTEP_EDGE(copies.wait(from.there[turn]));
    if (!last && !to.part.defined()) LOCKSTEP_EDGE(copies.wait(to.passed_on[turn]));
    copy_on(copies, {.destination = there.view().data,
                     .destination_device = there.device(),
                     .source = here.data(),
                     .source_device = here.device(),
                     .bytes = here.bytes()});
    if (!from.part.defined()) LOCKSTEP_EDGE(from.passed_on[turn].record(copies));
    if (last) return;
    if (to.part.defined()) {
      LOCKSTEP_EDGE_SCOPE(StreamScope, adding, copies);
      const Tensor own = to.part.narrow(0, begin, length);
      add_in_order({there, own}, own);
    }
    LOCKSTEP_EDGE(to.there[turn].record(copies));
  }

  std::size_t streams_;
  std::vector<Stop> stops_;
  std::vector<Piece> pieces_;
  std::int64_t load_ = 0, longest_ = 0;  // elements
};

// By which third devices pieces go where the straight way is slow, and on how many lanes; empty for straight ways.
std::vector<HopLane> ways(const std::vector<Tensor>& parts, Device home) {
  std::vector<Device> devices;
  for (const Tensor& part : parts) devices.push_back(part.device());
  std::vector<std::size_t> stops(parts.size());
  for (std::size_t i = 0; i < stops.size(); ++i) stops[i] = i;
  if (devices[0] == home) stops.push_back(0);
  std::vector<HopLane> found = hop_lanes(topology(devices)->links, stops);
  for (HopLane& lane : found) lane.over.resize(parts.size());
  return found;
}

std::vector<SumLane> make_lanes(const std::vector<Tensor>& parts, const Tensor& sum) {
  std::vector<SumLane> lanes;
  std::map<Device, std::size_t> streams;
  const bool at_once = current_stream(sum.device()).synchronous();
  if (at_once) {
    lanes.emplace_back(parts, sum, nullptr, kTurns, streams);
  } else {
    const std::vector<HopLane> all = ways(parts, sum.device());
    for (const HopLane& lane : all) lanes.emplace_back(parts, sum, &lane, all.size() > 1 ? 1 : kTurns, streams);
  }
  std::size_t hops = 1;
  for (const SumLane& lane : lanes) hops = std::max(hops, lane.hops());
  const std::size_t most = std::max<std::size_t>(1, kMostCopies / hops);
  // A line of a pair's own is slow beside the host: shorter pieces start soon enough.
  const std::size_t bytes =
      at_once ? kCachedPieceBytes : piece_of(chain_piece_bytes(sum.bytes() / lanes.size(), hops, most), lanes.size());
  const auto length = static_cast<std::int64_t>(std::max<std::size_t>(1, bytes / size_of(sum.dtype())));
  for (std::int64_t begin = 0; begin < sum.count(); begin += length)
    std::min_element(lanes.begin(), lanes.end(), [](const SumLane& a, const SumLane& b) {
      return a.load() < b.load();
    })->take({begin, std::min(length, sum.count() - begin)});
  return lanes;
}

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
  std::vector<SumLane> lanes = make_lanes(parts, sum);
  try {
    for (SumLane& lane : lanes) lane.begin(sum.dtype());
    for (std::size_t k = 0; k < lanes[0].pieces(); k += kTurns)
      for (SumLane& lane : lanes) lane.pass(k);
    for (SumLane& lane : lanes) lane.end();
  } catch (...) {
    for (const SumLane& lane : lanes) lane.settle_all();
    throw;
  }
}

}  // namespace lockstep::detail
