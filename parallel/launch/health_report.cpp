#include "lockstep/parallel/launch/health_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/runtime/strings.h"

namespace lockstep::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeHealth::Space, path, free_bytes, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeHealth, node, ranks, host, build, device_type, devices, device_count,
                                   device_error, memory_bytes, memory_free_bytes, logs, shared, clock_ms,
                                   clock_error_ms, latency_us, megabytes_per_second, silent)

namespace {

using Json = nlohmann::json;

// Ranks' ends on several machines are ordered by their clocks.
constexpr double kMostClockMs = 1'000;

std::string dump(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

std::string rounded(double value, int digits) {
  const double scale = std::pow(10, digits);
  return number_to_string(std::round(value * scale) / scale);
}

std::string name_of(const NodeHealth& node) { return cat("node ", node.node, " (", node.host, ')'); }

void check_space(const NodeHealth& node, const NodeHealth::Space& space, const Options& options,
                 std::vector<std::string>& unfit) {
  if (space.path.empty()) return;
  if (!space.error.empty())
    unfit.push_back(cat(name_of(node), ": cannot write in ", space.path, ": ", space.error));
  else if (space.free_bytes < static_cast<std::uint64_t>(options.min_free_bytes))
    unfit.push_back(cat(name_of(node), ": expected ",
                        bytes_to_string(static_cast<std::uint64_t>(options.min_free_bytes)), " free in ", space.path,
                        ", got ", bytes_to_string(space.free_bytes)));
}

// What a node lacks by itself.
void check_alone(const NodeHealth& node, const Options& options, std::vector<std::string>& unfit) {
  if (!node.device_error.empty())
    unfit.push_back(cat(name_of(node), ": expected devices, got ", node.device_error));
  else if (node.device_type == "cuda" && node.device_count < node.ranks)
    unfit.push_back(cat(name_of(node), ": expected a GPU for each of ", node.ranks, " ranks, got ", node.devices));
  check_space(node, {"memory", node.memory_free_bytes, ""}, options, unfit);
  check_space(node, node.logs, options, unfit);
  check_space(node, node.shared, options, unfit);
}

void check_against(const NodeHealth& first, const NodeHealth& node, std::vector<std::string>& unfit) {
  const auto differs = [&](const char* what, const std::string& expected, const std::string& got) {
    if (expected != got)
      unfit.push_back(cat(name_of(node), ": expected ", what, " of node ", first.node, ", ", expected, ", got ", got));
  };
  differs("the ranks", cat(first.ranks), cat(node.ranks));
  differs("the build", first.build, node.build);
  if (first.device_error.empty() && node.device_error.empty()) differs("the devices", first.devices, node.devices);
  if (std::abs(node.clock_ms) - node.clock_error_ms > kMostClockMs)
    unfit.push_back(cat(name_of(node), ": expected the clock of node ", first.node, ", got one that is ",
                        rounded(std::abs(node.clock_ms) / 1e3, 3), " s ", node.clock_ms > 0 ? "ahead" : "behind"));
}

std::string free_space(const NodeHealth::Space& space) {
  if (space.path.empty()) return "-";
  return space.error.empty() ? bytes_to_string(space.free_bytes) : "none";
}

// A sign or letter may be several bytes wide; columns of other scripts come out uneven, and that is all.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string to_text(const NodeHealth& node) { return dump(Json(node), -1); }

NodeHealth parse_health(const std::string& text, int node) {
  try {
    NodeHealth health = Json::parse(text).get<NodeHealth>();
    health.node = node;
    return health;
  } catch (const nlohmann::json::exception&) {
    return {.node = node, .silent = "it runs a lockstep-run of another version"};
  }
}

Health judge(const Options& options, std::vector<NodeHealth> nodes) {
  Health health{std::move(nodes), {}};
  for (const NodeHealth& node : health.nodes) {
    if (!node.silent.empty()) {
      health.unfit.push_back(cat("node ", node.node, ": ", node.silent));
      continue;
    }
    check_alone(node, options, health.unfit);
    if (&node != &health.nodes[0]) check_against(health.nodes[0], node, health.unfit);
  }
  return health;
}

std::string table(const Health& health) {
  using Row = std::array<std::string, 9>;
  std::vector<Row> rows = {
      {"node", "host", "devices", "free memory", "logs", "/dev/shm", "clock", "latency", "bandwidth"}};
  for (const NodeHealth& node : health.nodes) {
    if (!node.silent.empty()) {
      rows.push_back({cat(node.node), node.host, "?", "?", "?", "?", "?", "?", "?"});
      continue;
    }
    const std::string clock = cat(node.clock_ms < 0 ? "" : "+", rounded(node.clock_ms, 1), " ms");
    rows.push_back({cat(node.node), node.host, node.device_error.empty() ? node.devices : "none",
                    cat(bytes_to_string(node.memory_free_bytes), " of ", bytes_to_string(node.memory_bytes)),
                    free_space(node.logs), free_space(node.shared), node.node == 0 ? "-" : clock,
                    cat(rounded(node.latency_us, 0), " us"), cat(rounded(node.megabytes_per_second, 0), " MB/s")});
  }
  std::array<std::size_t, std::tuple_size_v<Row>> widths{};
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += row[i] + (i + 1 < row.size() ? std::string(widths[i] + 2 - width(row[i]), ' ') : "\n");
  }
  if (health.nodes[0].silent.empty()) text += cat("node 0: ", health.nodes[0].build, '\n');
  for (const std::string& each : health.unfit) text += cat("unfit: ", each, '\n');
  if (health.unfit.empty()) text += health.nodes.size() == 1 ? "the node is fit\n" : "all nodes are fit\n";
  return text;
}

std::string json(const Health& health) {
  const Json all = {{"fit", health.unfit.empty()}, {"unfit", health.unfit}, {"nodes", health.nodes}};
  return dump(all, 2) + '\n';
}

}  // namespace lockstep::launch
