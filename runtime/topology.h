// How devices are linked, and which ways what goes from one of them to all others takes. Functions of what the backends
// say (Backend::link) and of the order of a list alone, never of a timing: a program chooses the same in every run.
// Private to the library.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/backend.h"

namespace lockstep {

// What is known of every way between the devices of a list, by their places in it. At first all are alike.
class Links {
 public:
  explicit Links(std::size_t places) : places_(places), links_(places * places) {}
  std::size_t places() const { return places_; }
  DeviceLink& at(std::size_t from, std::size_t to) { return links_[from * places_ + to]; }
  const DeviceLink& at(std::size_t from, std::size_t to) const { return links_[from * places_ + to]; }

 private:
  std::size_t places_;
  std::vector<DeviceLink> links_;
};

// Between devices of different kinds: none but through host memory.
LOCKSTEP_API Links links_between(std::span<const Device> devices);

// True where every way is as any other: on a switch, and where nothing is known.
LOCKSTEP_API bool alike(const Links& links);

// The order in which a chain that begins at place 0 visits all places: that of which the slowest hop is the fastest,
// among those the one with the fastest hops altogether, then with the shortest ways, then the first by the order of the
// list. So on a tree of PCIe switches the devices of one switch come one after the other. The best there is for up to
// 13 places; beyond, each place is followed by the best of those that are left.
LOCKSTEP_API std::vector<std::size_t> chain_order(const Links& links);

// A tree that reaches all places, and which share of the bytes it carries beside the others.
struct Lane {
  std::vector<std::size_t> order;  // place 0 first, and each after the one it has its bytes from
  std::vector<std::size_t> from;   // by place: who that is; 0 of place 0
  double share = 1;
};

// The trees that together carry the most from place 0 to all others: chains wherever these are as fast. Several only
// where all hops are lines of their own (DeviceLink::own): each takes what lines the ones before have left over. Shares
// are in proportion to their slowest hops and sum to 1. Where all ways are alike it is one chain, since what limits
// them may be a port that all lines of a device pass.
LOCKSTEP_API std::vector<Lane> lanes(const Links& links);

// The place through which bytes get from `from` to `to` faster than on the straight way, if there is one: with the
// fastest slower half of its two, the first of these.
LOCKSTEP_API std::optional<std::size_t> relay(const Links& links, std::size_t from, std::size_t to);

// One of the ways for what visits places one after the other: by hop straight, or over a third place.
struct HopLane {
  std::vector<std::optional<std::size_t>> over;
};

// The ways on which pieces go side by side from each of `stops` to the next. Several where lines are a pair's own
// (DeviceLink::own): each has a line's worth of every hop, straight while there is some left, else over the first third
// place that has as much. Otherwise one, straight but where that is through host memory and there is a relay.
LOCKSTEP_API std::vector<HopLane> hop_lanes(const Links& links, std::span<const std::size_t> stops);

// Puts pieces on lanes: each on the one where it is first at its last place, behind those that are on it already. So a
// lane that takes long to fill has its last piece no later than the others. A function of the sizes in their order.
class LaneTurns {
 public:
  explicit LaneTurns(const std::vector<Lane>& lanes);
  std::size_t next(std::size_t bytes);

 private:
  struct Load {
    double share, hops;  // on the longest way
    double bytes = 0;
  };
  std::vector<Load> loads_;
};

// All of that for a list of devices, of which the first one is home.
struct Topology {
  explicit Topology(Links all) : links(std::move(all)), alike(lockstep::alike(links)), lanes(lockstep::lanes(links)) {}
  Links links;
  bool alike;
  std::vector<Lane> lanes;
};

// Made at the first question about a list, found later. Thread-safe; throws what Backend::link throws.
LOCKSTEP_API std::shared_ptr<const Topology> topology(std::span<const Device> devices);

namespace detail {
// Forgets what was made. For those who change what a backend says.
LOCKSTEP_API void forget_topologies();
// The links of a list until they are forgotten, whatever the backends say. For tests.
LOCKSTEP_API void pretend_links(std::span<const Device> devices, Links links);
}  // namespace detail

}  // namespace lockstep
