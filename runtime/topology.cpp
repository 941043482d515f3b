#include "lockstep/runtime/topology.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

namespace lockstep {
namespace {

constexpr std::size_t kExactPlaces = 13;
// Beside lanes that carry much, one that carries little costs more copies than it gains.
constexpr double kLeastShare = 1.0 / 16;
constexpr std::size_t kMostLanes = 8;

// How good a hop is beside others that are fast enough: whole numbers, so that sums do not depend on their order.
std::int64_t merit(const DeviceLink& link) {
  constexpr double kSpeedUnits = 1e6;
  constexpr std::int64_t kDistances = 1 << 12, kLongest = 255;
  return std::llround(link.speed * kSpeedUnits) * kDistances - std::min<std::int64_t>(link.distance, kLongest);
}

// The best ways from a place through all of a set, for all places and sets.
class Search {
 public:
  Search(const Links& links, double least_speed)
      : links_(links), least_(least_speed), best_(links.places() << links.places(), kNone) {
    const std::size_t all = (std::size_t{1} << links.places()) - 1;
    for (std::size_t place = 0; place < links.places(); ++place) best(all, place) = 0;
    for (std::size_t visited = all; visited-- > 1;)
      for (std::size_t last = 0; last < links.places(); ++last)
        if (visited >> last & 1)
          for (std::size_t next = 0; next < links.places(); ++next)
            best(visited, last) = std::max(best(visited, last), through(visited, last, next));
  }

  bool found() const { return best(1, 0) != kNone; }
  // The first of the best, by the order of the places.
  std::vector<std::size_t> order() const {
    std::vector<std::size_t> order{0};
    std::size_t visited = 1;
    while (order.size() < links_.places()) {
      std::size_t next = 0;
      while (through(visited, order.back(), next) != best(visited, order.back())) ++next;
      order.push_back(next);
      visited |= std::size_t{1} << next;
    }
    return order;
  }

 private:
  static constexpr std::int64_t kNone = INT64_MIN;
  std::int64_t& best(std::size_t visited, std::size_t last) { return best_[visited * links_.places() + last]; }
  std::int64_t best(std::size_t visited, std::size_t last) const { return best_[visited * links_.places() + last]; }
  std::int64_t through(std::size_t visited, std::size_t last, std::size_t next) const {
    if (visited >> next & 1 || links_.at(last, next).speed < least_) return kNone;
    const std::int64_t rest = best(visited | std::size_t{1} << next, next);
    return rest == kNone ? kNone : rest + merit(links_.at(last, next));
  }

  const Links& links_;
  const double least_;
  std::vector<std::int64_t> best_;
};

std::vector<std::size_t> exact_order(const Links& links) {
  std::vector<double> speeds;
  for (std::size_t i = 0; i < links.places(); ++i)
    for (std::size_t j = 0; j < links.places(); ++j)
      if (i != j) speeds.push_back(links.at(i, j).speed);
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  speeds.erase(std::unique(speeds.begin(), speeds.end()), speeds.end());
  for (const double least : speeds)
    if (const Search search(links, least); search.found()) return search.order();
  return {0};
}

std::vector<std::size_t> nearest_order(const Links& links) {
  std::vector<std::size_t> order{0}, left(links.places() - 1);
  std::iota(left.begin(), left.end(), 1);
  while (!left.empty()) {
    const auto next = std::max_element(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
      return merit(links.at(order.back(), a)) < merit(links.at(order.back(), b));
    });
    order.push_back(*next);
    left.erase(next);
  }
  return order;
}

double slowest(const Links& links, const Lane& lane) {
  double speed = INFINITY;
  for (std::size_t place = 1; place < lane.from.size(); ++place)
    speed = std::min(speed, links.at(lane.from[place], place).speed);
  return speed;
}

Lane chain(const Links& links) {
  Lane lane{chain_order(links), std::vector<std::size_t>(links.places()), 1};
  for (std::size_t i = 1; i < lane.order.size(); ++i) lane.from[lane.order[i]] = lane.order[i - 1];
  return lane;
}

// Of lines alone: each place hangs on the fastest one out of those before it, the first by order of the list.
Lane widest_tree(const Links& links) {
  Lane lane{{0}, std::vector<std::size_t>(links.places()), 1};
  const auto speed = [&](std::size_t from, std::size_t to) {
    return links.at(from, to).own ? links.at(from, to).speed : 0;
  };
  std::vector<std::size_t> left(links.places() - 1);
  std::iota(left.begin(), left.end(), 1);
  while (!left.empty()) {
    const auto next = std::max_element(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
      return speed(lane.from[a], a) < speed(lane.from[b], b);
    });
    const std::size_t added = *next;
    left.erase(next);
    lane.order.push_back(added);
    for (const std::size_t place : left)
      if (speed(added, place) > speed(lane.from[place], place)) lane.from[place] = added;
  }
  return lane;
}

bool all_own(const Links& links, const Lane& lane) {
  for (std::size_t place = 1; place < lane.from.size(); ++place)
    if (!links.at(lane.from[place], place).own) return false;
  return true;
}

struct Known {
  std::mutex mutex;
  std::map<std::vector<Device>, std::shared_ptr<const Topology>> by_devices;
};
Known& known() {
  static auto* const all = new Known;  // threads may still ask while the process ends
  return *all;
}

}  // namespace

Links links_between(std::span<const Device> devices) {
  Links links(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t j = 0; j < devices.size(); ++j) {
      if (i == j || devices[i] == devices[j]) continue;
      if (devices[i].type() != devices[j].type())
        links.at(i, j).speed = 0;
      else
        links.at(i, j) = backend(devices[i]).link(devices[i].index(), devices[j].index());
    }
  return links;
}

bool alike(const Links& links) {
  for (std::size_t i = 0; i < links.places(); ++i)
    for (std::size_t j = 0; j < links.places(); ++j)
      if (i != j && links.at(i, j) != links.at(0, 1)) return false;
  return true;
}

std::vector<std::size_t> chain_order(const Links& links) {
  if (links.places() == 0) return {};
  return links.places() <= kExactPlaces ? exact_order(links) : nearest_order(links);
}

std::vector<Lane> lanes(const Links& links) {
  if (links.places() == 0) return {};
  Lane first = chain(links);
  if (links.places() < 3 || alike(links)) return {std::move(first)};
  std::vector<Lane> found;
  double total = 0;
  for (Links left = links; found.size() < kMostLanes;) {
    Lane lane = chain(left);
    // A device that has a line to one other alone ends every chain; a tree may have several ends.
    if (Lane tree = widest_tree(left); all_own(left, tree) && slowest(left, tree) > slowest(left, lane))
      lane = std::move(tree);
    lane.share = slowest(left, lane);
    if (!all_own(left, lane) || lane.share <= total * kLeastShare) break;
    for (std::size_t place = 1; place < lane.from.size(); ++place) left.at(lane.from[place], place).speed -= lane.share;
    total += lane.share;
    found.push_back(std::move(lane));
  }
  if (found.empty()) return {std::move(first)};
  for (Lane& lane : found) lane.share /= total;
  return found;
}

std::optional<std::size_t> relay(const Links& links, std::size_t from, std::size_t to) {
  std::optional<std::size_t> found;
  double best = links.at(from, to).speed;
  for (std::size_t over = 0; over < links.places(); ++over) {
    if (over == from || over == to) continue;
    const double speed = std::min(links.at(from, over).speed, links.at(over, to).speed);
    if (speed <= best) continue;
    best = speed;
    found = over;
  }
  return found;
}

std::vector<HopLane> hop_lanes(const Links& links, std::span<const std::size_t> stops) {
  double line = INFINITY;  // the slowest one
  for (std::size_t i = 0; i < links.places(); ++i)
    for (std::size_t j = 0; j < links.places(); ++j)
      if (links.at(i, j).own && links.at(i, j).speed > 0) line = std::min(line, links.at(i, j).speed);
  Links left = links;
  const auto room = [&left](std::size_t from, std::size_t to) {
    return from != to && left.at(from, to).own ? left.at(from, to).speed : 0;
  };
  std::vector<HopLane> found;
  while (!alike(links) && line < INFINITY && found.size() < kMostLanes) {
    HopLane lane;
    for (std::size_t i = 0; i + 1 < stops.size(); ++i) {
      const std::size_t from = stops[i], to = stops[i + 1];
      std::optional<std::size_t> over;
      double best = room(from, to);
      for (std::size_t place = 0; best < line && place < links.places(); ++place)
        if (const double speed = std::min(room(from, place), room(place, to)); speed >= line)
          best = speed, over = place;
      if (best < line) break;
      left.at(from, over.value_or(to)).speed -= line;
      if (over) left.at(*over, to).speed -= line;
      lane.over.push_back(over);
    }
    if (lane.over.size() + 1 < stops.size()) break;
    found.push_back(std::move(lane));
  }
  if (!found.empty()) return found;
  HopLane lane;
  for (std::size_t i = 0; i + 1 < stops.size(); ++i)
    lane.over.push_back(links.at(stops[i], stops[i + 1]).speed > 0 ? std::nullopt
                                                                   : relay(links, stops[i], stops[i + 1]));
  return {std::move(lane)};
}

LaneTurns::LaneTurns(const std::vector<Lane>& lanes) {
  for (const Lane& lane : lanes) {
    std::vector<int> depth(lane.order.size());
    for (std::size_t i = 1; i < lane.order.size(); ++i) depth[lane.order[i]] = depth[lane.from[lane.order[i]]] + 1;
    loads_.push_back({lane.share, depth.empty() ? 0.0 : *std::max_element(depth.begin(), depth.end())});
  }
}

std::size_t LaneTurns::next(std::size_t bytes) {
  const auto piece = static_cast<double>(bytes);
  const auto end = [piece](const Load& load) { return (load.bytes + load.hops * piece) / load.share; };
  const auto first =
      std::min_element(loads_.begin(), loads_.end(), [&end](const Load& a, const Load& b) { return end(a) < end(b); });
  first->bytes += piece;
  return static_cast<std::size_t>(first - loads_.begin());
}

std::shared_ptr<const Topology> topology(std::span<const Device> devices) {
  Known& all = known();
  std::lock_guard lock(all.mutex);
  std::shared_ptr<const Topology>& found = all.by_devices[{devices.begin(), devices.end()}];
  if (!found) found = std::make_shared<const Topology>(links_between(devices));
  return found;
}

void detail::forget_topologies() {
  std::lock_guard lock(known().mutex);
  known().by_devices.clear();
}

void detail::pretend_links(std::span<const Device> devices, Links links) {
  auto pretended = std::make_shared<const Topology>(std::move(links));
  std::lock_guard lock(known().mutex);
  known().by_devices[{devices.begin(), devices.end()}] = std::move(pretended);
}

}  // namespace lockstep
