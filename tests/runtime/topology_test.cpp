// Which ways what goes from one device to all others takes, on machines that people have.
#include "lockstep/runtime/topology.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "lockstep/runtime/strings.h"
#include "runtime/text.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

using Order = std::vector<std::size_t>;

// The pairs of V100s of a DGX-1V with how many lines of NVLink they have; others go over the sockets.
constexpr std::array<std::array<int, 3>, 16> kHybridMesh{{{0, 3, 2},
                                                          {0, 4, 2},
                                                          {1, 2, 2},
                                                          {1, 5, 2},
                                                          {2, 3, 2},
                                                          {4, 7, 2},
                                                          {5, 6, 2},
                                                          {6, 7, 2},
                                                          {0, 1, 1},
                                                          {0, 2, 1},
                                                          {1, 3, 1},
                                                          {4, 5, 1},
                                                          {4, 6, 1},
                                                          {5, 7, 1},
                                                          {2, 6, 1},
                                                          {3, 7, 1}}};

// Of the devices in `order`, of which the first one is home.
Links hybrid_mesh(const std::vector<int>& order) {
  Links links(order.size());
  const auto place = [&order](int device) {
    return static_cast<std::size_t>(std::find(order.begin(), order.end(), device) - order.begin());
  };
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = 0; j < order.size(); ++j) links.at(i, j) = {.speed = 0, .distance = 6};
  for (const auto& [a, b, lines] : kHybridMesh)
    if (place(a) < order.size() && place(b) < order.size())
      links.at(place(a), place(b)) = links.at(place(b), place(a)) = {.speed = lines / 2.0, .own = true};
  return links;
}

std::vector<int> first(int count) {
  std::vector<int> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// Switches of PCIe, two devices on each, two switches on each socket. By bandwidth alone, all ways within a socket are
// alike.
Links pcie_tree(const std::vector<int>& order) {
  Links links(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = 0; j < order.size(); ++j) {
      const int a = order[i], b = order[j];
      links.at(i, j) = {.speed = a / 4 == b / 4 ? 1 : 0.4, .distance = a / 2 == b / 2 ? 2 : 4};
    }
  return links;
}

std::vector<int> devices_of(const std::vector<int>& list, const Order& order) {
  std::vector<int> devices;
  for (const std::size_t place : order) devices.push_back(list[place]);
  return devices;
}

// What the order promises, by trying all: the slowest hop, then the sum of the hops, then of the distances.
struct Worth {
  double slowest = 1, sum = 0;
  int distance = 0;
  explicit Worth(const Links& links, const Order& order) {
    for (std::size_t i = 1; i < order.size(); ++i) {
      const DeviceLink& hop = links.at(order[i - 1], order[i]);
      slowest = std::min(slowest, hop.speed);
      sum += hop.speed;
      distance -= hop.distance;
    }
  }
  friend auto operator<=>(const Worth&, const Worth&) = default;
};

// Every place has its bytes from one that has them before, and no line carries more than it can.
void check_lanes(const Links& links, const std::vector<Lane>& all, double lines_out_of_home) {
  double total = 0, slowest = INFINITY;
  for (const Lane& lane : all) total += lane.share;
  CHECK(std::abs(total - 1) < 1e-9);
  Links load(links.places());
  for (std::size_t i = 0; i < links.places(); ++i)
    for (std::size_t j = 0; j < links.places(); ++j) load.at(i, j).speed = 0;
  for (const Lane& lane : all) {
    REQUIRE(lane.order.size() == links.places());
    REQUIRE(lane.order[0] == 0);
    for (std::size_t i = 1; i < lane.order.size(); ++i) {
      const std::size_t place = lane.order[i], from = lane.from[place];
      CHECK(std::find(lane.order.begin(), lane.order.begin() + static_cast<std::ptrdiff_t>(i), from) !=
            lane.order.begin() + static_cast<std::ptrdiff_t>(i));
      load.at(from, place).speed += lane.share;
    }
  }
  for (std::size_t i = 0; i < links.places(); ++i)
    for (std::size_t j = 0; j < links.places(); ++j)
      if (load.at(i, j).speed > 0) slowest = std::min(slowest, links.at(i, j).speed / load.at(i, j).speed);
  CHECK(slowest > lines_out_of_home * 0.999);  // what all lanes together carry
}

}  // namespace

TEST_CASE("a chain over ways that are alike goes by the list") {
  for (std::size_t places = 1; places <= 20; ++places) {
    CAPTURE(places);
    const Links links(places);
    Order expected(places);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(alike(links));
    CHECK(chain_order(links) == expected);
    REQUIRE(lanes(links).size() == 1);
    CHECK(lanes(links)[0].order == expected);
    CHECK(lanes(links)[0].share == 1);
    for (std::size_t place = 1; place < places; ++place) CHECK(lanes(links)[0].from[place] == place - 1);
  }
  CHECK(chain_order(Links(0)).empty());
  CHECK(lanes(Links(0)).empty());
}

TEST_CASE("the chain of a hybrid mesh takes double lines alone") {
  const std::vector<std::vector<int>> expected{{0},
                                               {0, 1},
                                               {0, 1, 2},
                                               {0, 3, 2, 1},
                                               {0, 3, 2, 1, 4},
                                               {0, 3, 2, 1, 5, 4},
                                               {0, 3, 1, 2, 6, 5, 4},
                                               {0, 3, 2, 1, 5, 6, 7, 4}};
  for (int count : {1, 2, 4, 8}) {
    CAPTURE(count);
    CHECK(devices_of(first(count), chain_order(hybrid_mesh(first(count)))) ==
          expected[static_cast<std::size_t>(count) - 1]);
  }
  CHECK(devices_of({3, 4, 0, 7, 1, 2, 6, 5}, chain_order(hybrid_mesh({3, 4, 0, 7, 1, 2, 6, 5}))) ==
        std::vector<int>{3, 0, 4, 7, 6, 5, 1, 2});
}

TEST_CASE("the lanes of a hybrid mesh use all six lines out of home") {
  const std::vector<Lane> found = lanes(hybrid_mesh(first(8)));
  REQUIRE(found.size() == 4);
  CHECK(found[0].order == Order{0, 3, 2, 1, 5, 6, 7, 4});
  CHECK(found[1].order == Order{0, 4, 7, 6, 5, 1, 2, 3});
  CHECK(found[2].order == Order{0, 1, 3, 7, 5, 4, 6, 2});
  CHECK(found[3].order == Order{0, 2, 6, 4, 5, 7, 3, 1});
  CHECK(found[0].share == Approx(1.0 / 3));
  CHECK(found[3].share == Approx(1.0 / 6));
  for (int home = 0; home < 8; ++home) {
    CAPTURE(home);
    std::vector<int> order = first(8);
    std::rotate(order.begin(), order.begin() + home, order.end());
    check_lanes(hybrid_mesh(order), lanes(hybrid_mesh(order)), 3);  // in double lines
  }
}

TEST_CASE("a device with one line is the end of a branch") {
  // Of the first five, device 4 is a neighbour of home alone.
  const std::vector<Lane> found = lanes(hybrid_mesh(first(5)));
  REQUIRE(found.size() == 1);
  CHECK(found[0].from == Order{0, 2, 3, 0, 0});
  check_lanes(hybrid_mesh(first(5)), found, 1);
}

TEST_CASE("lines between all pairs are used where they differ, and taken for a switch where they do not") {
  Links links(4);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j) links.at(i, j).own = true;
  CHECK(lanes(links).size() == 1);
  links.at(0, 1).speed = 0.5;
  CHECK(lanes(links).size() > 1);
  check_lanes(links, lanes(links), 2);
}

TEST_CASE("the chain of a PCIe tree visits the devices of a switch one after the other") {
  CHECK(chain_order(pcie_tree(first(8))) == Order{0, 1, 2, 3, 4, 5, 6, 7});
  const std::vector<int> shuffled{5, 0, 3, 6, 1, 4, 2, 7};
  const std::vector<int> order = devices_of(shuffled, chain_order(pcie_tree(shuffled)));
  CHECK(order == std::vector<int>{5, 4, 6, 7, 0, 1, 3, 2});
  CHECK(lanes(pcie_tree(shuffled)).size() == 1);
  // 16 places: each is followed by the best that is left.
  const std::vector<int> many{9, 0, 12, 3, 6, 13, 1, 8, 4, 2, 15, 7, 11, 5, 14, 10};
  CHECK(devices_of(many, chain_order(pcie_tree(many))) ==
        std::vector<int>{9, 8, 11, 10, 0, 1, 3, 2, 12, 13, 15, 14, 6, 7, 4, 5});
}

TEST_CASE("the order of a chain is the best there is") {
  std::uint32_t state = 1;
  const auto random = [&state](std::uint32_t below) { return (state = state * 1664525 + 1013904223) / 65536 % below; };
  for (std::size_t places = 2; places <= 7; ++places)
    for (int round = 0; round < 8; ++round) {
      Links links(places);
      for (std::size_t i = 0; i < places; ++i)
        for (std::size_t j = 0; j < places; ++j)
          links.at(i, j) = {.speed = static_cast<double>(random(4)) / 4, .distance = static_cast<int>(random(3)) + 1};
      Order order(places);
      std::iota(order.begin(), order.end(), 0);
      Order best = order;
      while (std::next_permutation(order.begin() + 1, order.end()))
        if (Worth(links, order) > Worth(links, best)) best = order;
      CAPTURE(places, round);
      CHECK(chain_order(links) == best);  // the first of them by the order of the list
    }
}

TEST_CASE("a way through a third device is taken where it is faster") {
  const Links links = hybrid_mesh(first(8));
  CHECK(relay(links, 3, 4) == std::size_t{0});  // two lines each; over 7 the first half has one
  CHECK(relay(links, 0, 5) == std::size_t{1});  // as fast as over 4: the first
  CHECK(relay(links, 0, 3) == std::nullopt);
  CHECK(relay(links, 0, 1) == std::nullopt);  // over 3 the second half is as slow
  CHECK(relay(Links(4), 0, 1) == std::nullopt);
}

TEST_CASE("what visits the devices of a hybrid mesh in their order takes two lines of every hop") {
  const Links links = hybrid_mesh(first(8));
  const Order ring{0, 1, 2, 3, 4, 5, 6, 7, 0};
  const std::vector<HopLane> found = hop_lanes(links, ring);
  REQUIRE(found.size() == 2);
  const auto straight = std::nullopt;
  CHECK(found[0].over ==
        std::vector<std::optional<std::size_t>>{straight, straight, straight, 0, straight, straight, straight, 3});
  CHECK(found[1].over == std::vector<std::optional<std::size_t>>{2, straight, straight, 7, 6, straight, straight, 4});
  Links left = links;  // no line has more than it carries
  const auto pass = [&left](std::size_t from, std::size_t to) {
    CAPTURE(from, to);
    CHECK(left.at(from, to).own);
    CHECK((left.at(from, to).speed -= 0.5) >= 0);
  };
  for (const HopLane& lane : found)
    for (std::size_t hop = 0; hop + 1 < ring.size(); ++hop) {
      if (lane.over[hop]) pass(ring[hop], *lane.over[hop]);
      pass(lane.over[hop].value_or(ring[hop]), ring[hop + 1]);
    }
}

TEST_CASE("what visits devices goes straight on one lane where lines are alike or nobody's own") {
  Links links(4);
  const Order ring{0, 1, 2, 3, 0};
  const std::vector<std::optional<std::size_t>> straight(4);
  const auto only = [&] {
    const std::vector<HopLane> found = hop_lanes(links, ring);
    REQUIRE(found.size() == 1);
    return found[0].over;
  };
  CHECK(only() == straight);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j) links.at(i, j).own = true;
  CHECK(only() == straight);  // perhaps a switch
  links.at(1, 2) = {.speed = 0.5};
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j) links.at(i, j).own = false;
  CHECK(only() == straight);  // slower, but straight
  links.at(1, 2).speed = 0;
  CHECK(only() == std::vector<std::optional<std::size_t>>{{}, 0, {}, {}});
  CHECK(hop_lanes(links, Order{2}).at(0).over.empty());
}

TEST_CASE("pieces go on the lane where they arrive first") {
  const std::vector<Lane> all = lanes(hybrid_mesh(first(8)));
  LaneTurns turns(all);
  std::vector<std::size_t> pieces(all.size());
  Order order;
  for (int i = 0; i < 606; ++i) {
    order.push_back(turns.next(1 << 20));
    ++pieces[order.back()];
  }
  // At half the rate, over seven hops, the first piece is as late as the eighth on a faster lane.
  CHECK(pieces == std::vector<std::size_t>{204, 204, 99, 99});
  CHECK(Order(order.begin(), order.begin() + 4) == Order{0, 1, 0, 1});
  CHECK(std::find(order.begin(), order.end(), 2) - order.begin() == 16);
  LaneTurns unlike(all);
  CHECK(unlike.next(100) == 0);
  CHECK(unlike.next(20) == 1);
  CHECK(unlike.next(20) == 1);
  const std::vector<Lane> one{{{0, 1}, {0, 0}, 1}};
  LaneTurns alone(one);
  for (int i = 0; i < 3; ++i) CHECK(alone.next(0) == 0);
}

TEST_CASE("devices of different kinds are linked through host memory alone") {
  const std::vector<Device> mixed{support::first_devices(1)[0], Device::cpu(), support::first_devices(2)[1]};
  const Links links = links_between(mixed);
  CHECK(links.at(0, 1).speed == 0);
  CHECK(links.at(1, 2).speed == 0);
  CHECK(links.at(0, 2).speed == 1);
  CHECK(chain_order(links) == Order{0, 2, 1});
}

TEST_CASE("a list's topology is made once") {
  const std::vector<Device> devices = support::first_devices(3);
  const auto found = topology(devices);
  CHECK(found->alike);
  CHECK(found->lanes[0].order == Order{0, 1, 2});
  CHECK(topology(devices) == found);
  detail::forget_topologies();
  CHECK(topology(devices) != found);
}
