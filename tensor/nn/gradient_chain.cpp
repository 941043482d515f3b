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
  std::size_t place;  // of its part among all, where it adds one; or one of the other two
  Tensor room;        // for what arrives: a piece for each turn; undefined at the end
  Stream stream;
  std::array<Stream, kTurns> copies;
  std::array<Event, kTurns> there;      // the piece, with the stop's part
  std::array<Event, kTurns> passed_on;  // of who only passes on
};
constexpr std::size_t kHome = ~std::size_t{0}, kPassesOn = kHome - 1;

struct Piece {
  std::int64_t begin, length;  // elements
};

// One of the ways from the first device over all others to home, and the pieces that take it.
class SumLane {
 public:
  SumLane(const std::vector<Device>& devices, Device home, const HopLane* over, std::size_t streams_of_each,
          std::map<Device, std::size_t>& used)
      : streams_(streams_of_each) {
    for (std::size_t i = 0; i <= devices.size(); ++i) {
      const std::optional<std::size_t> by = over && i > 0 ? over->over[i - 1] : std::nullopt;
      if (by) add_stop(devices[*by], kPassesOn, used);
      const bool last = i == devices.size();
      add_stop(last ? home : devices[i], last ? kHome : i, used);
    }
  }

  std::size_t hops() const { return stops_.size() - 1; }
  std::int64_t load() const { return load_; }
  void take(Piece piece) {
    pieces_.push_back(piece);
    load_ += piece.length;
  }
  std::size_t waiting() const { return pieces_.size() - passed_; }

  // Room for `pieces` at a time.
  void begin(DType dtype, std::int64_t longest, std::size_t pieces) {
    longest_ = longest;
    streams_ = std::min(streams_, pieces);
    const auto room = static_cast<std::int64_t>(std::min(kTurns, pieces)) * longest_;
    for (std::size_t i = 1; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      if (stop.place == kHome) continue;  // it needs no room, and waits in section()
      stop.room = Tensor::over(Storage::allocate(stop.stream.device(), static_cast<std::size_t>(room) * size_of(dtype)),
                               dtype, {room}, {1});
      Event now;
      LOCKSTEP_EDGE(now.record(stop.stream));
      for (std::size_t each = 0; each < streams_; ++each) LOCKSTEP_EDGE(stop.copies[each].wait(now));
    }
  }

  // What comes next, and where its sum goes.
  void section(const std::vector<Tensor>& parts, const Tensor& sum, const std::vector<const Event*>& ready) {
    if (waiting() == 0) return;
    parts_ = &parts;
    sum_ = sum;
    for (const Stop& stop : stops_)  // whose streams wait for who reads the parts, at the end
      if (stop.place < parts.size()) LOCKSTEP_EDGE(parts[stop.place].storage()->record_use(stop.stream));
    Event free;
    LOCKSTEP_EDGE(free.record(stops_.back().stream));
    for (std::size_t i = 1; i < stops_.size(); ++i)
      for (std::size_t each = 0; each < streams_; ++each) {
        const Stream& copies = stops_[i].copies[each];
        if (i == 1 && ready.empty()) LOCKSTEP_EDGE(copies.wait_for(stops_[0].stream));
        if (i == 1 && !ready.empty()) LOCKSTEP_EDGE(copies.wait(*ready[0]));
        if (stops_[i].place < ready.size()) LOCKSTEP_EDGE(copies.wait(*ready[stops_[i].place]));
        if (stops_[i].place == kHome) LOCKSTEP_EDGE(copies.wait(free));
      }
  }

  // Brings as many pieces as there are turns to home, if so many wait: device by device, so that the host changes the
  // device once for all of them.
  void pass() {
    const std::size_t end = std::min(passed_ + kTurns, pieces_.size());
    for (std::size_t i = 1; i < stops_.size(); ++i)
      for (std::size_t each = passed_; each < end; ++each) pass(each, i);
    passed_ = end;
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
  void add_stop(Device device, std::size_t place, std::map<Device, std::size_t>& used) {
    Stop& stop = stops_.emplace_back();
    stop.place = place;
    stop.stream = current_stream(device);
    for (std::size_t each = 0; each < streams_; ++each) stop.copies[each] = lane_copies_of(stop.stream, used[device]++);
  }

  // Brings piece k to the stop i, which adds its own.
  void pass(std::size_t k, std::size_t i) {
    const auto [begin, length] = pieces_[k];
    const std::size_t turn = k % kTurns;
    const std::int64_t in_room = static_cast<std::int64_t>(turn) * longest_;
    Stop &from = stops_[i - 1], &to = stops_[i];
    const bool last = i + 1 == stops_.size();
    const Stream& copies = to.copies[k % streams_];
    const Tensor here =
        from.place == kPassesOn ? from.room.narrow(0, in_room, length) : (*parts_)[from.place].narrow(0, begin, length);
    const Tensor there = last ? sum_.narrow(0, begin, length) : to.room.narrow(0, in_room, length);
    if (i > 1) LOCKSTEP_EDGE(copies.wait(from.there[turn]));
    if (to.place == kPassesOn) LOCKSTEP_EDGE(copies.wait(to.passed_on[turn]));
    copy_on(copies, {.destination = there.view().data,
                     .destination_device = there.device(),
                     .source = here.data(),
                     .source_device = here.device(),
                     .bytes = here.bytes()});
    if (from.place == kPassesOn) LOCKSTEP_EDGE(from.passed_on[turn].record(copies));
    if (last) return;
    if (to.place != kPassesOn) {
      LOCKSTEP_EDGE_SCOPE(StreamScope, adding, copies);
      const Tensor own = (*parts_)[to.place].narrow(0, begin, length);
      add_in_order({there, own}, own);
    }
    LOCKSTEP_EDGE(to.there[turn].record(copies));
  }

  std::size_t streams_;
  std::vector<Stop> stops_;
  std::vector<Piece> pieces_;
  std::size_t passed_ = 0;               // of the pieces
  std::int64_t load_ = 0, longest_ = 0;  // elements
  const std::vector<Tensor>* parts_ = nullptr;
  Tensor sum_;
};

// By which third devices pieces go where the straight way is slow, and on how many lanes; empty for straight ways.
std::vector<HopLane> ways(const std::vector<Device>& devices, Device home) {
  std::vector<std::size_t> stops(devices.size());
  for (std::size_t i = 0; i < stops.size(); ++i) stops[i] = i;
  if (devices[0] == home) stops.push_back(0);
  std::vector<HopLane> found = hop_lanes(topology(devices)->links, stops);
  for (HopLane& lane : found) lane.over.resize(devices.size());
  return found;
}

class ChainSum final : public SectionSum {
 public:
  ChainSum(const std::vector<Device>& devices, Device home, DType dtype, std::int64_t count) {
    std::map<Device, std::size_t> streams;
    const bool at_once = current_stream(home).synchronous();
    if (at_once) {
      lanes_.emplace_back(devices, home, nullptr, kTurns, streams);
    } else {
      const std::vector<HopLane> all = ways(devices, home);
      for (const HopLane& lane : all) lanes_.emplace_back(devices, home, &lane, all.size() > 1 ? 1 : kTurns, streams);
    }
    std::size_t hops = 1;
    for (const SumLane& lane : lanes_) hops = std::max(hops, lane.hops());
    const std::size_t most = std::max<std::size_t>(1, kMostCopies / hops);
    // A line of a pair's own is slow beside the host: shorter pieces start soon enough.
    const std::size_t all_bytes = static_cast<std::size_t>(count) * size_of(dtype);
    const std::size_t bytes =
        at_once ? kCachedPieceBytes : piece_of(chain_piece_bytes(all_bytes / lanes_.size(), hops, most), lanes_.size());
    length_ = static_cast<std::int64_t>(std::max<std::size_t>(1, bytes / size_of(dtype)));
    const std::int64_t pieces = (count + length_ - 1) / length_, lanes = static_cast<std::int64_t>(lanes_.size());
    for (SumLane& lane : lanes_)
      lane.begin(dtype, std::min(length_, count), static_cast<std::size_t>((pieces + lanes - 1) / lanes));
  }

  void add(const std::vector<Tensor>& parts, const Tensor& sum, const std::vector<const Event*>& ready) override {
    for (std::int64_t begin = 0; begin < sum.count(); begin += length_)
      std::min_element(lanes_.begin(), lanes_.end(), [](const SumLane& a, const SumLane& b) {
        return a.load() < b.load();
      })->take({begin, std::min(length_, sum.count() - begin)});
    for (SumLane& lane : lanes_) lane.section(parts, sum, ready);
    while (std::any_of(lanes_.begin(), lanes_.end(), [](const SumLane& lane) { return lane.waiting() > 0; }))
      for (SumLane& lane : lanes_) lane.pass();
  }

  void end() override {
    for (SumLane& lane : lanes_) lane.end();
  }

  void settle() noexcept override {
    for (const SumLane& lane : lanes_) lane.settle_all();
  }

 private:
  std::vector<SumLane> lanes_;
  std::int64_t length_ = 0;  // of a piece
};

}  // namespace

bool sums_along_chain(const std::vector<Tensor>& parts, Device home) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Device next = i + 1 < parts.size() ? parts[i + 1].device() : home;
    if (!chainable(parts[i].device(), next)) return false;
  }
  return parts.size() > 1;
}

std::unique_ptr<SectionSum> chain_sum(const std::vector<Device>& devices, Device home, DType dtype,
                                      std::int64_t count) {
  return std::make_unique<ChainSum>(devices, home, dtype, count);
}

void sum_along_chain(const std::vector<Tensor>& parts, const Tensor& sum) {
  NoGrad off;
  const KeepDevice turns;
  std::vector<Device> devices;
  for (const Tensor& part : parts) devices.push_back(part.device());
  ChainSum by(devices, sum.device(), sum.dtype(), sum.count());
  sum_one(by, parts, sum);
}

}  // namespace lockstep::detail
