// What a machine file may say, and what each mistake is told.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/parallel/simulate/machine.h"
#include "lockstep/runtime/error.h"
#include "support/catch.h"

using namespace lockstep::simulate;
using Json = nlohmann::json;

namespace {

const std::string kFolder = LOCKSTEP_MACHINES_FOLDER;

std::vector<std::string> machine_files() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  return paths;
}

Json read(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
}

std::string error_of(const Json& file) {
  try {
    parse_machine(file.dump());
  } catch (const lockstep::Error& error) {
    return error.what();
  }
  return "";
}

// Whether a field with this name, or one that contains it, has a source.
void check_sources(const Json& json, const std::string& name, const Json& sources) {
  for (std::string part = name; !part.empty(); part.resize(part.rfind('.') == std::string::npos ? 0 : part.rfind('.')))
    if (sources.contains(part)) return;
  if (json.is_object() && !json.empty()) {
    for (const auto& [key, value] : json.items())
      if (!(name.empty() && (key == "name" || key == "sources")))
        check_sources(value, name.empty() ? key : name + "." + key, sources);
    return;
  }
  if (json.is_boolean()) return;  // a choice
  FAIL_CHECK("no source for " << name);
}

}  // namespace

TEST_CASE("every machine file is read, and each of its figures has a source") {
  REQUIRE(machine_files().size() >= 10);
  for (const std::string& path : machine_files()) {
    INFO(path);
    const Machine machine = load_machine(path);
    CHECK(!machine.name.empty());
    for (int i = Machine::kHost; i < machine.device_count(); ++i)
      for (int j = Machine::kHost; j < machine.device_count(); ++j) {
        const Route& route = machine.route(i, j);
        CHECK(route.path.empty() == (i == j));
        CHECK((route.kind == RouteKind::h2d) == (i == Machine::kHost && j != i));
      }
    const Json json = read(path);
    check_sources(json, "", json["sources"]);
  }
}

TEST_CASE("structures of a machine file stand for links and routes") {
  const Machine hopper = load_machine(kFolder + "/8xh200-nvswitch.json");
  CHECK(hopper.device_count() == 8);
  const Route& peers = hopper.route(2, 5);
  REQUIRE(peers.path.size() == 2);
  CHECK(hopper.links[static_cast<std::size_t>(peers.path[0])].name == "device2.out");
  CHECK(hopper.links[static_cast<std::size_t>(peers.path[1])].name == "device5.in");
  CHECK(hopper.links[static_cast<std::size_t>(peers.path[0])].bytes_per_second == Approx(450e9));
  CHECK(peers.start == Approx(5e-6));

  // The mesh of a DGX-1V: two lines from 0 to 3, one to 1, none to 5, which is on the other socket.
  const Machine mesh = load_machine(kFolder + "/dgx-1v.json");
  const auto rate = [&](int from, int to) {
    return mesh.links[static_cast<std::size_t>(mesh.route(from, to).path.at(0))].bytes_per_second;
  };
  CHECK(mesh.route(0, 3).path.size() == 1);
  CHECK(rate(0, 3) == Approx(50e9));
  CHECK(rate(0, 1) == Approx(25e9));
  CHECK(mesh.route(0, 5).kind == RouteKind::staged);
  std::vector<std::string> passed;
  for (const int link : mesh.route(0, 5).path) passed.push_back(mesh.links[static_cast<std::size_t>(link)].name);
  CHECK(passed == std::vector<std::string>{"slot0.up", "switch0.up", "memory0", "memory0", "socket0-1", "switch2.down",
                                           "slot5.down"});
  // Each device has its six lines.
  std::vector<double> lines(8);
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j)
      if (i != j && mesh.route(i, j).path.size() == 1) lines[static_cast<std::size_t>(i)] += rate(i, j) / 25e9;
  CHECK(lines == std::vector<double>(8, 6));

  // Both ways at once carry less than twice one way: a third link, which both ways pass.
  const Machine staged = load_machine(kFolder + "/4xl40s-no-p2p.json");
  const auto shares = [&](int from, int to, const char* name) {
    for (const int link : staged.route(from, to).path)
      if (staged.links[static_cast<std::size_t>(link)].name == name) return true;
    return false;
  };
  CHECK((shares(0, Machine::kHost, "slot0.both") && shares(Machine::kHost, 0, "slot0.both")));
  CHECK(staged.route(0, 1).chunk == 4194304);
  CHECK(load_machine(kFolder + "/4xl40s-p2p.json").route(0, 1).kind == RouteKind::p2p);
  CHECK(load_machine(kFolder + "/128x4-p100-25gb.json").rank_count() == 512);
}

TEST_CASE("a route that is written out wins over a structure's") {
  Json file = read(kFolder + "/4xl40s-p2p.json");
  file["links"] = {{{"name", "bridge"}, {"gb_per_s", 56}}};
  file["routes"] = {{{"from", 0}, {"to", 1}, {"kind", "p2p"}, {"path", {"bridge", "slot1.down"}}, {"start_us", 3}}};
  const Machine machine = parse_machine(file.dump());
  CHECK(machine.links[static_cast<std::size_t>(machine.route(0, 1).path.at(0))].name == "bridge");
  CHECK(machine.links[static_cast<std::size_t>(machine.route(1, 0).path.at(0))].name == "slot1.up");
}

TEST_CASE("mistakes in a machine file are told by the name of the field") {
  const Json good = read(kFolder + "/4xl40s-p2p.json");
  REQUIRE(error_of(good).empty());
  const auto with = [&](const char* pointer, const Json& value) {
    Json file = good;
    file[Json::json_pointer(pointer)] = value;
    return error_of(file);
  };
  const auto without = [&](const char* within, const char* key) {
    Json file = good;
    file[Json::json_pointer(within)].erase(key);
    return error_of(file);
  };
  CHECK(with("/devices/0/type", "h201") == "[machine] devices[0].type: expected one of l40s, got \"h201\"");
  CHECK(with("/host/kernel_us", -1) == "[machine] host.kernel_us: expected a number of at least 0, got -1");
  CHECK(with("/host/kernel_us", "3") == "[machine] host.kernel_us: expected a number, got \"3\"");
  CHECK(without("/host", "copy_us") == "[machine] host.copy_us: expected a number, got nothing");
  CHECK(with("/edges/start_ms", 1) ==
        "[machine] edges.start_ms: expected one of cross_device_us, host_us, same_device_us, start_us, got a field of "
        "another name");
  CHECK(with("/gpu_types/l40s/memory_efficiency", 1.2) ==
        "[machine] gpu_types.l40s.memory_efficiency: expected a share of at most 1, got 1.2");
  CHECK(with("/gpu_types/l40s/memory_gb_per_s", 0) ==
        "[machine] gpu_types.l40s.memory_gb_per_s: expected a number above 0, got 0");
  CHECK(with("/topology", Json::array()) == "[machine] routes: expected one from host to device 0, got none");
  CHECK(with("/topology/0/both_ways", 3) == "[machine] topology[0].both_ways: expected a number from 1 to 2, got 3");
  CHECK(with("/devices", {{{"type", "l40s"}, {"numa", 0}, {"count", 65}}}) ==
        "[machine] devices: expected from 1 to 64 of them, got 65");
  CHECK(with("/sources/hosts", "a guess") == "[machine] sources: expected names of fields of this file, got 'hosts'");
  CHECK(with("/collectives/model", "magic") ==
        "[machine] collectives.model: expected one of nccl, textbook, got \"magic\"");
  CHECK(with("/collectives/tables", {{{"op", "all_reduce"}, {"ranks", 4}, {"points_us", {{8, 1}, {4, 2}}}}}) ==
        "[machine] collectives.tables[0].points_us: expected bytes that ascend, got 4 after 8");
  CHECK(with("/network", {{"hosts", 2}}) == "[machine] network.nics: expected a number, got nothing");

  const Json route{{"from", 0}, {"to", 1}, {"kind", "p2p"}, {"path", {"slot0.up", "slot9.down"}}};
  CHECK(with("/routes", Json::array({route})).find("[machine] routes[0].path: expected a link out of ") == 0);
  CHECK(with("/routes", Json::array({route})).find(", got 'slot9.down'") != std::string::npos);
  Json other = route;
  other["path"] = {"slot0.up"};
  other["kind"] = "h2d";
  CHECK(with("/routes", Json::array({other})) ==
        "[machine] routes[0].kind: expected p2p from device 0 to device 1, got h2d");
  other["kind"] = "p2p";
  CHECK(with("/routes", Json::array({other, other})) ==
        "[machine] routes[1].to: expected one route from device 0 to device 1, got two");
  other["to"] = 4;
  CHECK(with("/routes", Json::array({other})) ==
        "[machine] routes[0].to: expected \"host\" or a device from 0 to 3, got 4");

  CHECK_THROWS_WITH(parse_machine("{"), Catch::Contains("[machine] the file: expected JSON, got "));
  CHECK_THROWS_WITH(parse_machine("[]"), Catch::Contains("[machine] the file: expected an object, got []"));
  CHECK_THROWS_WITH(load_machine("/no/machine.json"),
                    Catch::Contains("[machine] expected a file that can be read, got '/no/machine.json'"));
  CHECK_THROWS_WITH(load_machine("/"), Catch::Contains("got '/': Is a directory"));
}
