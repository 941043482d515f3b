#include "slowed_machine.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/parallel/simulate/simulation.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::bench {
namespace {

using simulate::Machine;

Device place(int device) { return device == Machine::kHost ? Device::cpu() : Device::host(device); }

HostOptions slowed(const Machine& machine, double scale, std::size_t bytes) {
  HostOptions options{.devices = machine.device_count(), .mode = HostMode::async};
  const auto rate = [&](int link) {
    const simulate::Link& each = machine.links[static_cast<std::size_t>(link)];
    return each.bytes_per_second * each.copy_engine_efficiency / scale;
  };
  for (std::size_t link = 0; link < machine.links.size(); ++link)
    options.shared.push_back({static_cast<std::size_t>(rate(static_cast<int>(link))), {}});
  for (int i = Machine::kHost; i < machine.device_count(); ++i)
    for (int j = Machine::kHost; j < machine.device_count(); ++j) {
      if (i == j) continue;
      const simulate::Route& route = machine.route(i, j);
      double latency = route.start * scale, slowest = INFINITY;
      for (const int link : route.path) {
        options.shared[static_cast<std::size_t>(link)].links.emplace_back(place(i), place(j));
        slowest = std::min(slowest, rate(link));
      }
      if (route.chunk > 0) latency += std::min(route.chunk, static_cast<double>(bytes)) / slowest;
      options.links.push_back({place(i), place(j), 0, static_cast<int>(std::lround(latency * 1e6))});
    }
  return options;
}

struct Pattern {
  const char* name;
  std::vector<simulate::Copy> copies;  // all at once
};

std::vector<Pattern> patterns(const Machine& machine, std::int64_t bytes) {
  const int devices = machine.device_count();
  const auto straight = [&](int from, int to) { return machine.route(from, to).kind == simulate::RouteKind::p2p; };
  std::vector<Pattern> all{{"one copy", {{0, 1, bytes}}}, {"both ways", {{0, 1, bytes}, {1, 0, bytes}}}};
  Pattern ring{"ring", {}}, from{"from one", {}}, to{"to one", {}}, host{"to the host", {}}, mixed{"unlike", {}};
  for (int i = 0; i < devices; ++i) {
    ring.copies.push_back({i, (i + 1) % devices, bytes});
    host.copies.push_back({i, simulate::kHostMemory, bytes});
    if (i == 0) continue;
    from.copies.push_back({0, i, bytes});
    to.copies.push_back({i, 0, bytes});
    if (i + 1 < devices && straight(0, i)) mixed.copies.push_back({0, i, bytes / i});  // different lengths
  }
  if (devices > 2 && straight(devices - 1, 1)) mixed.copies.push_back({devices - 1, 1, bytes});
  for (Pattern* each : {&ring, &from, &to, &host, &mixed})
    if (each->copies.size() > 1) all.push_back(std::move(*each));
  return all;
}

// Which stream a copy is on. Ways between peers take the engine of the stream's device: the end that no other copy has.
// Staged ones take the engine of the end that others have too, and hold it: all of them are on its one stream, since
// the host devices have no engines.
struct Lane {
  int device;
  bool shared;
};

Lane lane(const Machine& machine, const Pattern& pattern, const simulate::Copy& copy) {
  if (copy.source == simulate::kHostMemory) return {copy.destination, false};
  if (copy.destination == simulate::kHostMemory) return {copy.source, false};
  const auto into = std::count_if(pattern.copies.begin(), pattern.copies.end(),
                                  [&](const simulate::Copy& each) { return each.destination == copy.destination; });
  const bool staged = machine.route(copy.source, copy.destination).kind == simulate::RouteKind::staged;
  return {(into > 1) != staged ? copy.source : copy.destination, staged};
}

// By number, for each copy; and the devices of the streams.
std::pair<std::vector<std::size_t>, std::vector<int>> streams_of(const Machine& machine, const Pattern& pattern) {
  std::vector<std::size_t> numbers;
  std::vector<int> devices;
  std::map<int, std::size_t> shared;  // streams, by device
  for (const simulate::Copy& copy : pattern.copies) {
    const Lane its = lane(machine, pattern, copy);
    const auto found = shared.find(its.device);
    if (its.shared && found != shared.end()) {
      numbers.push_back(found->second);
      continue;
    }
    numbers.push_back(devices.size());
    if (its.shared) shared[its.device] = devices.size();
    devices.push_back(its.device);
  }
  return {numbers, devices};
}

std::vector<double> simulated_seconds(const Machine& machine, const Pattern& pattern, double scale) {
  Machine bare = machine;  // links alone: calls and edges are those of this machine here
  bare.host = {};
  bare.edges = {};
  simulate::Recording recording{.file = pattern.name};
  recording.threads.push_back({"host", {}});
  const auto [numbers, devices] = streams_of(machine, pattern);
  for (const int device : devices) recording.streams.push_back({device, "copies"});
  for (std::size_t i = 0; i < pattern.copies.size(); ++i)
    recording.add_copy(0, static_cast<int>(numbers[i]), pattern.copies[i]);
  const simulate::Result result = simulate::simulate(recording, bare);
  std::vector<double> seconds;
  for (const simulate::Step& step : result.entries)
    seconds.push_back(static_cast<double>(step.work_end) * 1e-9 * scale);
  return seconds;
}

std::vector<double> measured_seconds(const Machine& machine, const Pattern& pattern) {
  const auto [numbers, devices] = streams_of(machine, pattern);
  std::vector<Stream> streams;
  for (const int device : devices) streams.emplace_back(Device::host(device));
  struct Running {
    Stream stream;
    void *source, *destination;
    Device from, to;
    std::size_t bytes;
  };
  std::vector<Running> all;
  for (const simulate::Copy& copy : pattern.copies) {
    const auto memory = [&](int device) {
      const auto size = static_cast<std::size_t>(copy.bytes);
      void* made = device == Machine::kHost ? backend(Device::host(0)).allocate_pinned(size)
                                            : backend(place(device)).allocate(device, size);
      LOCKSTEP_CHECK(made != nullptr, "expected ", size, " bytes of memory on ", place(device), ", got none");
      std::fill_n(static_cast<char*>(made), size, '\1');  // its pages exist from here on
      return made;
    };
    all.push_back({streams[numbers[all.size()]], memory(copy.source), memory(copy.destination), place(copy.source),
                   place(copy.destination), static_cast<std::size_t>(copy.bytes)});
  }
  std::vector<double> seconds(all.size());
  std::vector<Clock::time_point> ends(all.size());
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Running& each = all[i];
    each.stream.backend().copy({each.destination, each.to, each.source, each.from, each.bytes}, each.stream.handle());
    each.stream.enqueue([&ends, i] { ends[i] = Clock::now(); });
  }
  for (const Running& each : all) synchronize(each.stream);
  for (std::size_t i = 0; i < all.size(); ++i) seconds[i] = std::chrono::duration<double>(ends[i] - begin).count();
  for (const Running& each : all)
    for (const auto& [memory, device] : {std::pair(each.source, each.from), std::pair(each.destination, each.to)}) {
      if (device.is_cpu())
        backend(Device::host(0)).free_pinned(memory);
      else
        backend(device).free(device.index(), memory);
    }
  return seconds;
}

}  // namespace

void compare_with_simulated(Session& session, const std::string& machine_file, double scale, std::size_t bytes) {
  const Machine machine = simulate::load_machine(machine_file);
  if (!session.settings().list) configure_host(slowed(machine, scale, bytes));
  Table table("slowed", cat("copies of ", bytes_to_string(bytes), ", ", machine.name, " slowed ", scale, " times"),
              {"pattern", "copies", "measured ms", "simulated ms", "of simulated", "furthest copy"}, 3);
  for (const Pattern& pattern : patterns(machine, static_cast<std::int64_t>(bytes))) {
    if (!session.wants("slowed", pattern.name)) continue;
    const std::vector<double> measured = measured_seconds(machine, pattern);
    const std::vector<double> simulated = simulated_seconds(machine, pattern, scale);
    double furthest = 1;
    for (std::size_t i = 0; i < measured.size(); ++i) {
      const double ratio = measured[i] / simulated[i];
      if (std::abs(std::log(ratio)) > std::abs(std::log(furthest))) furthest = ratio;
    }
    const double last = *std::max_element(measured.begin(), measured.end());
    const double expected = *std::max_element(simulated.begin(), simulated.end());
    table.add({pattern.name, static_cast<std::int64_t>(measured.size()), last * 1e3, expected * 1e3, last / expected,
               furthest});
  }
  session.add(std::move(table));
}

}  // namespace lockstep::bench
