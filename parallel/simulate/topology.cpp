#include "lockstep/parallel/simulate/topology.h"

#include <algorithm>
#include <map>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::simulate {
namespace {

constexpr double kGiga = 1e9, kMicro = 1e-6;

struct Rate {
  double bytes_per_second, copy_engine, kernel;
};

Rate read_rate(Fields& fields, const char* key = "gb_per_s") {
  return {fields.positive(key, kGiga), fields.share_or("copy_engine_efficiency", 1),
          fields.share_or("kernel_efficiency",
                          fields.has("copy_engine_efficiency") ? fields.share_or("copy_engine_efficiency", 1) : 1)};
}

std::string place_name(int place) { return place == Machine::kHost ? "host" : cat("device ", place); }

}  // namespace

Topology::Topology(Machine& machine)
    : machine_(machine), routes_((machine.devices.size() + 1) * (machine.devices.size() + 1)) {}

std::optional<Route>& Topology::at(int source, int destination) {
  return routes_[machine_.place(source) * (machine_.devices.size() + 1) + machine_.place(destination)];
}

void Topology::propose(int source, int destination, Route route) {
  std::optional<Route>& there = at(source, destination);
  if (!there) there = std::move(route);
}

int Topology::link(const std::string& name, double bytes_per_second, double copy_engine, double kernel) {
  for (const Link& each : machine_.links)
    LOCKSTEP_CHECK(each.name != name, "[machine] links: expected names that differ, got '", name, "' twice");
  machine_.links.push_back({name, bytes_per_second, copy_engine, kernel});
  return static_cast<int>(machine_.links.size()) - 1;
}

int Topology::find_link(const std::string& name, const std::string& field) const {
  for (std::size_t i = 0; i < machine_.links.size(); ++i)
    if (machine_.links[i].name == name) return static_cast<int>(i);
  std::string names;
  for (const Link& each : machine_.links) names += (names.empty() ? "" : ", ") + each.name;
  throw InvalidArgument(cat("[machine] ", field, ": expected a link out of ", names, ", got '", name, "'"));
}

int Topology::place_of(const nlohmann::json& json, const std::string& field) const {
  if (json == "host") return Machine::kHost;
  const int count = machine_.device_count();
  if (!json.is_number_unsigned() || json.get<unsigned>() >= static_cast<unsigned>(count))
    throw InvalidArgument(
        cat("[machine] ", field, ": expected \"host\" or a device from 0 to ", count - 1, ", got ", json.dump()));
  return json.get<int>();
}

void Topology::add_link(Fields& fields) {
  const std::string name = fields.text("name");
  const Rate rate = read_rate(fields);
  link(name, rate.bytes_per_second, rate.copy_engine, rate.kernel);
}

void Topology::add_route(Fields& fields) {
  const int source = place_of(fields.any("from"), fields.name_of("from"));
  const int destination = place_of(fields.any("to"), fields.name_of("to"));
  LOCKSTEP_CHECK(source != destination, "[machine] ", fields.name_of("to"), ": expected another place than from, got ",
                 place_name(source), " twice");
  const std::vector<std::string> kinds{"p2p", "h2d", "d2h", "staged"};
  Route route;
  const int kind = fields.choice("kind", kinds);
  const int fitting = source == Machine::kHost ? 1 : destination == Machine::kHost ? 2 : kind == 3 ? 3 : 0;
  if (kind != fitting)
    fields.fail(
        "kind",
        cat(kinds[static_cast<std::size_t>(fitting)], " from ", place_name(source), " to ", place_name(destination)),
        kinds[static_cast<std::size_t>(kind)]);
  route.kind = static_cast<RouteKind>(kind);
  const nlohmann::json& path = fields.any("path");
  if (!path.is_array() || path.empty()) fields.fail("path", "a list of names of links", path.dump());
  for (const nlohmann::json& each : path) {
    if (!each.is_string()) fields.fail("path", "a list of names of links", path.dump());
    route.path.push_back(find_link(each.get<std::string>(), fields.name_of("path")));
  }
  route.start = fields.number_or("start_us", 0, kMicro);
  route.chunk = fields.number_or("chunk", 0);
  if (!written_.emplace(source, destination).second)
    throw InvalidArgument(cat("[machine] ", fields.name_of("to"), ": expected one route from ", place_name(source),
                              " to ", place_name(destination), ", got two"));
  at(source, destination) = std::move(route);
}

void Topology::add_structure(Fields& fields) {
  switch (fields.choice("kind", {"nvswitch", "mesh", "pcie"})) {
    case 0:
      return add_switch(fields);
    case 1:
      return add_mesh(fields);
    default:
      return add_pcie(fields);
  }
}

// A port out and a port in for each device, and a switch that does not block.
void Topology::add_switch(Fields& fields) {
  const Rate rate = read_rate(fields, "port_gb_per_s");
  const double start = fields.number("start_us", kMicro);
  std::vector<int> out, in;
  for (int i = 0; i < machine_.device_count(); ++i) {
    out.push_back(link(cat("device", i, ".out"), rate.bytes_per_second, rate.copy_engine, rate.kernel));
    in.push_back(link(cat("device", i, ".in"), rate.bytes_per_second, rate.copy_engine, rate.kernel));
  }
  for (int i = 0; i < machine_.device_count(); ++i)
    for (int j = 0; j < machine_.device_count(); ++j)
      if (i != j)
        propose(i, j, {RouteKind::p2p, {out[static_cast<std::size_t>(i)], in[static_cast<std::size_t>(j)]}, start});
}

// Lines between neighbours; others have no route through it.
void Topology::add_mesh(Fields& fields) {
  const Rate rate = read_rate(fields);
  const double start = fields.number("start_us", kMicro);
  for (const std::vector<double>& row : fields.rows("lines", 3)) {
    const int a = place_of(nlohmann::json(static_cast<unsigned>(row[0])), fields.name_of("lines"));
    const int b = place_of(nlohmann::json(static_cast<unsigned>(row[1])), fields.name_of("lines"));
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)})
      propose(from, to,
              {RouteKind::p2p,
               {link(cat("line", from, "-", to), row[2] * rate.bytes_per_second, rate.copy_engine, rate.kernel)},
               start});
  }
}

// A slot for each device, the host's memory, switches that share a way up, and a link between the processors.
void Topology::add_pcie(Fields& fields) {
  const Rate slot = read_rate(fields);
  const double start = fields.number("start_us", kMicro);
  const double both_ways = fields.number_or("both_ways", 2);
  const double memory = fields.positive("memory_gb_per_s", kGiga);
  const int per_switch = fields.count_or("devices_per_switch", 1);
  const double socket = fields.number_or("socket_gb_per_s", 0, kGiga);
  const int peers = fields.choice("peers", {"p2p", "p2p_within_socket", "staged"});
  const double staged_start = fields.number_or("staged_start_us", start / kMicro, kMicro);
  const double chunk = fields.number_or("staged_chunk", 0);
  const double staged_share = fields.share_or("staged_efficiency", 1);
  if (both_ways < 1 || both_ways > 2) fields.fail("both_ways", "a number from 1 to 2", number_to_string(both_ways));
  if (per_switch == 0) fields.fail("devices_per_switch", "at least 1", "0");

  std::map<int, int> memories;                 // by memory node
  std::map<std::pair<int, int>, int> sockets;  // by both nodes, one way
  for (const MachineDevice& device : machine_.devices)
    if (memories.count(device.numa) == 0) memories[device.numa] = link(cat("memory", device.numa), memory, 1, 1);
  for (const auto& [a, unused] : memories)
    for (const auto& [b, unused_too] : memories)
      if (a != b) {
        if (socket == 0) fields.fail("socket_gb_per_s", "a number above 0 between several memory nodes", "nothing");
        sockets[{a, b}] = link(cat("socket", a, "-", b), socket, 1, 1);
      }

  struct Way {
    std::vector<int> slot, beyond;  // the slot's links, those from the switch to the processor
  };
  std::vector<Way> up, down;
  const auto pair = [&](const std::string& name, std::vector<int>& out, std::vector<int>& in) {
    out.push_back(link(cat(name, ".up"), slot.bytes_per_second, slot.copy_engine, slot.kernel));
    in.push_back(link(cat(name, ".down"), slot.bytes_per_second, slot.copy_engine, slot.kernel));
    if (both_ways < 2) {
      const int shared = link(cat(name, ".both"), both_ways * slot.bytes_per_second, slot.copy_engine, slot.kernel);
      out.push_back(shared);
      in.push_back(shared);
    }
  };
  for (int i = 0; i < machine_.device_count(); ++i) {
    up.emplace_back();
    down.emplace_back();
    pair(cat("slot", i), up.back().slot, down.back().slot);
    if (per_switch == 1) continue;
    if (i % per_switch == 0) {
      pair(cat("switch", i / per_switch), up.back().beyond, down.back().beyond);
    } else {
      up.back().beyond = up[static_cast<std::size_t>(i) - 1].beyond;
      down.back().beyond = down[static_cast<std::size_t>(i) - 1].beyond;
    }
  }

  const auto append = [](std::vector<int>& path, const std::vector<int>& more) {
    path.insert(path.end(), more.begin(), more.end());
  };
  const auto upward = [&](int i) {
    std::vector<int> path = up[static_cast<std::size_t>(i)].slot;
    append(path, up[static_cast<std::size_t>(i)].beyond);
    return path;
  };
  const auto downward = [&](int i) {
    std::vector<int> path = down[static_cast<std::size_t>(i)].beyond;
    append(path, down[static_cast<std::size_t>(i)].slot);
    return path;
  };
  for (int i = 0; i < machine_.device_count(); ++i) {
    const int node = machine_.devices[static_cast<std::size_t>(i)].numa;
    std::vector<int> out = upward(i), in = downward(i);
    out.push_back(memories[node]);
    in.insert(in.begin(), memories[node]);
    propose(i, Machine::kHost, {RouteKind::d2h, out, start});
    propose(Machine::kHost, i, {RouteKind::h2d, in, start});
    for (int j = 0; j < machine_.device_count(); ++j) {
      if (i == j) continue;
      const int other = machine_.devices[static_cast<std::size_t>(j)].numa;
      Route route;
      const bool staged = peers == 2 || (peers == 1 && node != other);
      const bool same_switch = per_switch > 1 && i / per_switch == j / per_switch;
      route.path = staged || !same_switch ? upward(i) : up[static_cast<std::size_t>(i)].slot;
      if (staged) route.path.insert(route.path.end(), {memories[node], memories[node]});  // written and read
      if (node != other) route.path.push_back(sockets[{node, other}]);
      append(route.path, staged || !same_switch ? downward(j) : down[static_cast<std::size_t>(j)].slot);
      route.kind = staged ? RouteKind::staged : RouteKind::p2p;
      route.start = staged ? staged_start : start;
      route.chunk = staged ? chunk : 0;
      if (staged && staged_share < 1) {
        route.path.push_back(link(cat("staged", i, "-", j), staged_share * slot.bytes_per_second, 1, 1));
      }
      propose(i, j, std::move(route));
    }
  }
}

void Topology::finish() {
  const int count = machine_.device_count();
  machine_.routes.clear();
  for (int i = Machine::kHost; i < count; ++i)
    for (int j = Machine::kHost; j < count; ++j) {
      if (i == j) {
        machine_.routes.push_back({RouteKind::local, {}, 0, 0});
        continue;
      }
      LOCKSTEP_CHECK(at(i, j), "[machine] routes: expected one from ", place_name(i), " to ", place_name(j),
                     ", got none");
      machine_.routes.push_back(std::move(*at(i, j)));
    }
}

}  // namespace lockstep::simulate
