#include "lockstep/parallel/ddp/bucket_cap.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "lockstep/parallel/comm/recorded/recorded_communicator.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::detail {
namespace {

constexpr double kMicro = 1e-6, kGiga = 1e9;

// Start-up of a collective and of each step within a host, seconds; bytes per second on the bus, as nccl-tests counts.
struct Class {
  double base, step, rate;
};
Class class_of(HostLink link) {
  switch (link) {
    case HostLink::memory:
      // docs/benchmarks.md, "Ranks": 64 KiB take 4 us, 16 MiB 1.8 ms.
      return {4 * kMicro, 1 * kMicro, 9 * kGiga};
    case HostLink::pcie:
      // Latencies of both: NCCL's src/graph/tuning.cc (2.30), trees, protocol Simple. Rate:
      // docs/machines/4xl40s-p2p.json and 4xl40s-no-p2p.json have 20 and 10.
      return {8.4 * kMicro, 4.0 * kMicro, 15 * kGiga};
    case HostLink::nvlink:
      // docs/machines/dgx-a100.json, which is between those of V100 (120) and of H200 (365, and 473 with NVLS).
      return {8.4 * kMicro, 4.0 * kMicro, 232 * kGiga};
  }
  return {};
}
// A step between hosts: NCCL's, as above, with 2 us of the network as in docs/machines/128x4-p100-25gb.json.
constexpr double kNetworkStep = 18 * kMicro;
// What a network carries of its rate: 46 to 48 of 50 GB/s (docs/machines/8x8-h200-400gb.json).
constexpr double kNetworkEfficiency = 0.94;
// Of the device, that a collective takes: 16 of 132 multiprocessors (docs/machines/8xh200-nvswitch.json).
constexpr double kShare = 16.0 / 132;
constexpr double kSlowNetwork = 25;  // Gb/s, where nobody says

constexpr std::uint64_t kUnit = 64 << 10, kLeast = 1 << 20, kMost = 256 << 20;

// The number at the beginning of a file; 0: there is none.
double number_in(const std::filesystem::path& path) {
  double number = 0;
  return std::ifstream(path) >> number ? number : 0;
}

std::string text_in(const std::filesystem::path& path) {
  std::string text;
  std::getline(std::ifstream(path), text);
  return text;
}

// The paths in a folder; none where it cannot be read.
std::vector<std::filesystem::path> entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> all;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    all.push_back(at->path());
  return all;
}

HostLink host_link_of(Device device) {
  const std::string_view said = environment("LOCKSTEP_HOST_LINK");
  if (said == "memory") return HostLink::memory;
  if (said == "pcie") return HostLink::pcie;
  if (said == "nvlink") return HostLink::nvlink;
  LOCKSTEP_CHECK(said.empty(), "LOCKSTEP_HOST_LINK: expected memory, pcie or nvlink, got '", std::string(said), "'");
  if (device.type() == DeviceType::host) return is_recorded(device) ? HostLink::nvlink : HostLink::memory;
  std::vector<Device> all = all_devices();
  std::erase_if(all, [&](Device each) { return each.type() != device.type(); });
  return host_link(topology(all)->links);
}

}  // namespace

HostLink host_link(const Links& links) {
  std::vector<std::size_t> reached{0};
  std::vector<bool> is_reached(links.places());
  is_reached[0] = true;
  for (std::size_t i = 0; i < reached.size(); ++i)
    for (std::size_t to = 0; to < links.places(); ++to) {
      const DeviceLink& link = links.at(reached[i], to);
      if (is_reached[to] || link.shared || link.speed <= 0) continue;
      is_reached[to] = true;
      reached.push_back(to);
    }
  return reached.size() < links.places() ? HostLink::pcie : HostLink::nvlink;
}

double network_gbits(const std::string& folder) {
  double sum = 0, fastest = 0;
  for (const std::filesystem::path& device : entries(std::filesystem::path(folder) / "infiniband"))
    for (const std::filesystem::path& port : entries(device / "ports"))
      if (text_in(port / "state").find("ACTIVE") != std::string::npos) sum += number_in(port / "rate");
  if (sum > 0) return sum;
  for (const std::filesystem::path& interface : entries(std::filesystem::path(folder) / "net"))
    fastest = std::max(fastest, number_in(interface / "speed") * 1e-3);  // Mb/s; -1 where there is none
  return fastest > 0 ? fastest : kSlowNetwork;
}

RankLinks links_of(Device device) {
  const std::string_view said = environment("LOCKSTEP_NETWORK_GBITS");
  double gbits = 0;
  if (said.empty()) {
    gbits = network_gbits();
  } else {
    const auto [end, error] = std::from_chars(said.data(), said.data() + said.size(), gbits);
    LOCKSTEP_CHECK(error == std::errc() && end == said.data() + said.size() && gbits > 0 && std::isfinite(gbits),
                   "LOCKSTEP_NETWORK_GBITS: expected a positive number of Gb/s, got '", std::string(said), "'");
  }
  return {host_link_of(device), gbits};
}

std::size_t choose_bucket_cap(const BucketCapFacts& facts) {
  LOCKSTEP_CHECK(facts.ranks >= 1 && facts.hosts >= 1 && facts.hosts <= facts.ranks,
                 "[bucket cap] expected from one host to one for each rank, got ", facts.hosts, " hosts and ",
                 facts.ranks, " ranks");
  const Class within = class_of(facts.links.within);
  const int local = (facts.ranks + facts.hosts - 1) / facts.hosts;
  const auto levels = static_cast<int>(std::bit_width(static_cast<unsigned>(facts.hosts))) - 1;  // of a tree of hosts
  const double start = within.base + 2 * ((local - 1) * within.step + levels * kNetworkStep);
  double bus = within.rate;
  if (facts.hosts > 1) bus = std::min(bus, facts.links.network_gbits / 8 * kGiga * kNetworkEfficiency);
  const double rate = facts.ranks == 1 ? bus : bus * facts.ranks / (2.0 * (facts.ranks - 1));
  const double best = std::sqrt(kShare * start * rate * static_cast<double>(facts.bytes));
  const double units = std::clamp(std::round(best / kUnit), 1.0 * kLeast / kUnit, 1.0 * kMost / kUnit);
  return static_cast<std::size_t>(units) * kUnit;
}

}  // namespace lockstep::detail
