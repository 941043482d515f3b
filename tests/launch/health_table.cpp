// health_table <case>: what --health says of nodes that are not there. Prints the table, then the JSON.
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/health_report.h"

using namespace lockstep::launch;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

NodeHealth good(int node) {
  NodeHealth health{.node = node, .ranks = 4, .host = node == 0 ? "first" : "second", .build = "Lockstep 1"};
  health.device_type = "cuda";
  health.devices = "4 x GPU (80 GiB)";
  health.device_count = 4;
  health.memory_bytes = 64 * kGiB;
  health.memory_free_bytes = 60 * kGiB;
  health.logs = {"/logs", 10 * kGiB, ""};
  health.shared = {"/dev/shm", kGiB, ""};
  health.latency_us = 50;
  health.megabytes_per_second = 1000;
  return health;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  std::vector<NodeHealth> nodes{good(0), good(1)};
  NodeHealth& second = nodes[1];
  if (what == "build") second.build = "Lockstep 2";
  if (what == "devices") second.devices = "4 x GPU (40 GiB)";
  if (what == "few") nodes[0].ranks = second.ranks = 8;
  if (what == "none") second.device_error = "none";
  if (what == "ranks") second.ranks = 2;
  if (what == "memory") second.memory_free_bytes = 1 << 20;
  if (what == "logs") second.logs.free_bytes = 0;
  if (what == "unwritable") second.logs.error = "Permission denied";
  if (what == "shared") second.shared.free_bytes = 4096;
  if (what == "ahead") second.clock_ms = 2500;
  if (what == "behind") second.clock_ms = -2500;
  if (what == "unsure") second.clock_ms = 2500, second.clock_error_ms = 1600;
  if (what == "silent") second = {.node = 1, .silent = "did not come within 3 s"};
  if (what == "bytes") second.host = "\xff\xfe";
  if (what == "other version") second = parse_health("{\"node\": 1}", 1);
  for (NodeHealth& node : nodes) node = parse_health(to_text(node), node.node);  // as it comes through the store
  const Health health = judge({.ranks = 4, .nodes = 2}, nodes);
  std::printf("%s%s", table(health).c_str(), json(health).c_str());
  return health.unfit.empty() ? 0 : 1;
}
