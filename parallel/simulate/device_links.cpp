#include "lockstep/parallel/simulate/device_links.h"

#include <algorithm>
#include <limits>

#include "lockstep/runtime/error.h"

namespace lockstep::simulate {
namespace {

double bytes_per_second(const Machine& machine, const Route& route) {
  if (route.kind == RouteKind::staged) return 0;
  double rate = std::numeric_limits<double>::max();
  for (const int each : route.path) {
    const Link& link = machine.links[static_cast<std::size_t>(each)];
    const auto times = std::count(route.path.begin(), route.path.end(), each);
    rate = std::min(rate, link.bytes_per_second * link.copy_engine_efficiency / static_cast<double>(times));
  }
  return rate;
}

// By link: how many routes pass it.
std::vector<int> users(const Machine& machine) {
  std::vector<int> count(machine.links.size());
  for (const Route& route : machine.routes) {
    std::vector<int> path = route.path;
    std::sort(path.begin(), path.end());
    path.erase(std::unique(path.begin(), path.end()), path.end());
    for (const int each : path) ++count[static_cast<std::size_t>(each)];
  }
  return count;
}

}  // namespace

std::vector<DeviceLink> device_links(const Machine& machine, int devices) {
  LOCKSTEP_CHECK(devices <= machine.device_count(), "[machine] expected at least the ", devices,
                 " devices that are recorded, got the ", machine.device_count(), " of ", machine.name);
  double fastest = 0;
  for (int i = 0; i < machine.device_count(); ++i)
    for (int j = 0; j < machine.device_count(); ++j)
      if (i != j) fastest = std::max(fastest, bytes_per_second(machine, machine.route(i, j)));
  const std::vector<int> used_by = users(machine);
  std::vector<DeviceLink> links;
  for (int i = 0; i < devices; ++i)
    for (int j = 0; j < devices; ++j) {
      DeviceLink& link = links.emplace_back();
      if (i == j) continue;
      const Route& route = machine.route(i, j);
      const double rate = bytes_per_second(machine, route);
      link.speed = rate > 0 ? rate / fastest : 0;
      link.distance = static_cast<int>(route.path.size());
      const std::vector<int>& back = machine.route(j, i).path;
      link.shared = std::any_of(route.path.begin(), route.path.end(),
                                [&back](int each) { return std::find(back.begin(), back.end(), each) != back.end(); });
      link.own = rate > 0 && machine.type_of(j).peer_engines > 1 &&
                 std::all_of(route.path.begin(), route.path.end(),
                             [&used_by](int each) { return used_by[static_cast<std::size_t>(each)] == 1; });
    }
  return links;
}

}  // namespace lockstep::simulate
