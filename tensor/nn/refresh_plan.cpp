#include "lockstep/tensor/nn/refresh_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lockstep/runtime/copy/chain.h"

namespace lockstep {
namespace {

// More pieces cost the host more than they gain. A piece is a few calls for each mirror, which go on while the pieces
// before it are copied: of 1 GB to seven mirrors over NVLink a piece takes 51 us, and its calls 42.
constexpr std::size_t kMostPieces = 54;

}  // namespace

RefreshPlan::RefreshPlan(const SlabSet& set, std::span<const SlabSet::Mirror> mirrors) : set_(set), mirrors_(mirrors) {
  // By entry and mirror: is it lacking there?
  const std::size_t width = mirrors.size();
  std::vector<char> lacking(set.entries.size() * width);
  for (std::size_t m = 0; m < width; ++m)
    for (const int entry : mirrors[m].stale) lacking[static_cast<std::size_t>(entry) * width + m] = 1;
  const auto row = [&](int entry) { return lacking.data() + static_cast<std::size_t>(entry) * width; };
  const auto same = [&](int a, int b) { return std::equal(row(a), row(a) + width, row(b)); };
  const auto none = [&](int entry) { return std::find(row(entry), row(entry) + width, 1) == row(entry) + width; };

  std::vector<Run> runs;
  std::vector<std::size_t> bytes(width);
  for (std::size_t s = 0; s < set.slabs.size(); ++s) {
    const std::vector<int>& order = set.slabs[s].entries;
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      while (end < order.size() && same(order[begin], order[end])) ++end;
      if (none(order[begin])) continue;
      const SlabSet::Entry& last = entry(s, end - 1);
      Run& run =
          runs.emplace_back(Run{s, begin, end, entry(s, begin).offset_bytes, last.offset_bytes + last.bytes, {}});
      for (std::size_t m = 0; m < width; ++m) {
        if (!row(order[begin])[m]) continue;
        run.mirrors.push_back(m);
        bytes[m] += run.to_bytes - run.from_bytes;
      }
    }
  }
  // One length for all runs: the chain fills once. As for two mirrors at least, since the first layers of a lone one
  // need not wait for the last ones either.
  const auto longest = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
  const std::size_t piece_bytes = detail::chain_piece_bytes(static_cast<std::size_t>(longest * largest_share()),
                                                            std::max<std::size_t>(width, 2), kMostPieces);
  for (const Run& run : runs) add(run, piece_bytes);
  order_copies();
}

void RefreshPlan::order_copies() {
  // Buffers first, which are small and which home is about to write, and then in the order in which parameters are
  // listed, whatever slabs they are in: so does a forward need them.
  std::vector<std::size_t> order(pieces_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const SlabSet::Slab &in_a = set_.slabs[pieces_[a].slab], &in_b = set_.slabs[pieces_[b].slab];
    if (in_a.buffers != in_b.buffers) return in_a.buffers;
    return in_a.entries[pieces_[a].first] < in_b.entries[pieces_[b].first];
  });
  struct Timed {
    bool blocks;
    std::size_t turn;
    Copy copy;
  };
  std::vector<LaneTurns> lane_turns;
  for (const Way& way : ways_) lane_turns.emplace_back(way.lanes);
  std::vector<Timed> timed;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Way& way = ways_[way_of_[order[i]]];
    const std::size_t lane = lane_turns[way_of_[order[i]]].next(pieces_[order[i]].bytes);
    // So many pieces leave home, on all lanes, while this one passes a hop.
    const auto meanwhile = static_cast<std::size_t>(std::lround(1 / way.lanes[lane].share));
    for (const Hop& hop : way.routes[lane])
      timed.push_back({mirrors_[hop.to].at_once, i + hop.depth * meanwhile, {order[i], hop.from, hop.to, 0, lane}});
  }
  std::stable_sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) {
    return std::pair(a.blocks, a.turn) < std::pair(b.blocks, b.turn);
  });
  const std::size_t width = mirrors_.size();
  std::vector<std::size_t> got(width), after(pieces_.size() * width);
  for (const auto& [blocks, turn, copy] : timed) {
    copies_.push_back(copy);
    if (copy.from != kHome) copies_.back().after = after[copy.piece * width + copy.from];
    after[copy.piece * width + copy.to] = ++got[copy.to];
  }
}

std::vector<Lane> RefreshPlan::lanes_to(const std::vector<std::size_t>& mirrors) const {
  std::vector<Device> devices{set_.home()};
  for (const std::size_t m : mirrors) devices.push_back(mirrors_[m].device);
  return topology(devices)->lanes;
}

double RefreshPlan::largest_share() const {
  std::vector<std::size_t> all(mirrors_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  double largest = 0;
  for (const Lane& lane : lanes_to(all)) largest = std::max(largest, lane.share);
  return largest;
}

std::size_t RefreshPlan::way_to(std::vector<std::size_t> mirrors, bool straight) {
  for (std::size_t w = 0; w < ways_.size(); ++w)
    if (ways_[w].straight == straight && ways_[w].mirrors == mirrors) return w;
  Way way{std::move(mirrors), straight, {}, {}};
  if (straight) {
    way.lanes.emplace_back();
    Route& route = way.routes.emplace_back();
    for (const std::size_t m : way.mirrors) route.push_back({.from = kHome, .to = m, .depth = 0});
  } else {
    way.lanes = lanes_to(way.mirrors);
  }
  std::vector<std::size_t> depth(way.mirrors.size() + 1);  // by place in the topology's list, which begins with home
  for (std::size_t l = 0; !straight && l < way.lanes.size(); ++l) {
    Route& route = way.routes.emplace_back();
    for (const std::size_t place : way.lanes[l].order) {
      if (place == 0) continue;
      Hop hop{.from = kHome, .to = way.mirrors[place - 1], .depth = 0};
      const std::size_t before = way.lanes[l].from[place];
      if (before != 0 && detail::chainable(mirrors_[way.mirrors[before - 1]].device, mirrors_[hop.to].device)) {
        hop.from = way.mirrors[before - 1];
        hop.depth = depth[before] + 1;
      }
      depth[place] = hop.depth;
      route.push_back(hop);
    }
  }
  lanes_ = std::max(lanes_, way.lanes.size());
  ways_.push_back(std::move(way));
  return ways_.size() - 1;
}

void RefreshPlan::add(const Run& run, std::size_t piece_bytes) {
  runs_ += run.mirrors.size();
  constexpr auto kWhole = static_cast<std::size_t>(-1);
  std::vector<std::size_t> on_their_own;
  for (const std::size_t m : run.mirrors) {
    if (mirrors_[m].at_once)  // there is no link to spare, and home is in the cache
      cut(run, kWhole, way_to({m}, true));
    else
      on_their_own.push_back(m);
  }
  if (on_their_own.empty()) return;
  const bool lone = on_their_own.size() == 1 && !detail::chainable(set_.home(), mirrors_[on_their_own.front()].device);
  // Replicas of other threads may write their buffers by now: those come from home.
  const std::size_t way = way_to(std::move(on_their_own), set_.slabs[run.slab].buffers);
  cut(run, lone ? kWhole : piece_bytes, way);
}

// Into pieces of nearly the same length, whole units of the slab.
void RefreshPlan::cut(const Run& run, std::size_t most_bytes, std::size_t way) {
  if (run.from_bytes == run.to_bytes) return;
  const std::size_t bytes = run.to_bytes - run.from_bytes,
                    length = detail::piece_of(bytes, 1 + (bytes - 1) / most_bytes);
  const auto end_of = [&](std::size_t place) {
    return entry(run.slab, place).offset_bytes + entry(run.slab, place).bytes;
  };
  std::size_t first = run.begin;
  for (std::size_t at = run.from_bytes; at < run.to_bytes; at += length) {
    const std::size_t stop = std::min(at + length, run.to_bytes);
    while (end_of(first) <= at) ++first;
    std::size_t end = first + 1;
    while (end < run.end && entry(run.slab, end).offset_bytes < stop) ++end;
    pieces_.push_back({run.slab, at, stop - at, first, end});
    way_of_.push_back(way);
  }
}

}  // namespace lockstep
