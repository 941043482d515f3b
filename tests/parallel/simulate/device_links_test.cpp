// The links of machine files, as the library chooses ways by them.
#include "lockstep/parallel/simulate/device_links.h"

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/topology.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

simulate::Machine machine(const std::string& name) {
  return simulate::load_machine(std::string(LOCKSTEP_MACHINES_FOLDER "/") + name + ".json");
}

Links links_of(const std::string& name, int devices) {
  const std::vector<DeviceLink> all = simulate::device_links(machine(name), devices);
  Links links(static_cast<std::size_t>(devices));
  for (std::size_t i = 0; i < links.places(); ++i)
    for (std::size_t j = 0; j < links.places(); ++j) links.at(i, j) = all[i * links.places() + j];
  return links;
}

}  // namespace

TEST_CASE("devices on a switch, or in slots of their own, are linked alike") {
  for (const auto& [name, devices] :
       {std::pair("8xh200-nvswitch", 8), std::pair("4xl40s-p2p", 4), std::pair("4xl40s-no-p2p", 4),
        std::pair("dgx-2", 16), std::pair("8xh200-nvswitch", 3)}) {
    CAPTURE(name);
    CHECK(alike(links_of(name, devices)));
    CHECK(lanes(links_of(name, devices)).size() == 1);
  }
  CHECK(links_of("4xl40s-p2p", 4).at(2, 1).shared);  // a slot, which carries less both ways than twice one way
  CHECK(links_of("8xh200-nvswitch", 8).at(0, 1) == DeviceLink{.speed = 1, .distance = 2, .own = false});
}

TEST_CASE("a mesh has lines of their own, and what goes through the host's memory has none") {
  const Links links = links_of("dgx-1v", 8);
  CHECK(links.at(0, 3) == DeviceLink{.speed = 1, .distance = 1, .own = true});
  CHECK(links.at(0, 1).speed == Approx(0.5));
  CHECK(links.at(0, 1).own);
  CHECK(links.at(3, 4).speed == 0);
  CHECK_FALSE(links.at(3, 4).own);
  CHECK(lanes(links).size() == 4);
}

TEST_CASE("a mesh of devices that carry one copy at a time is one chain") {
  const Links links = links_of("dgx-1-p100", 8);
  CHECK(links.at(0, 1) == DeviceLink{.speed = 1, .distance = 1, .own = false});
  REQUIRE(lanes(links).size() == 1);
  for (std::size_t place = 1; place < 8; ++place) CHECK(links.at(lanes(links)[0].from[place], place).speed == 1);
}

TEST_CASE("links of fewer devices than are recorded are refused") {
  CHECK_THROWS_WITH(simulate::device_links(machine("4xl40s-p2p"), 5),
                    "[machine] expected at least the 5 devices that are recorded, got the 4 of 4x L40S, PCIe 4, P2P");
}
