#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lockstep/parallel/simulate/fields.h"
#include "lockstep/parallel/simulate/machine.h"
#include "lockstep/parallel/simulate/topology.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::simulate {
namespace {

using Json = nlohmann::json;

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;

void read_gpu_type(GpuType& type, Fields& fields) {
  type.multiprocessors = fields.count("multiprocessors");
  if (type.multiprocessors == 0) fields.fail("multiprocessors", "at least 1", "0");
  type.memory_bytes_per_second = fields.positive("memory_gb_per_s", kGiga);
  type.memory_efficiency = fields.share_or("memory_efficiency", type.memory_efficiency);
  fields.numbers(
      "tflops", [&](const std::string& dtype, double rate) { type.flops[dtype] = rate; }, kTera);
  if (type.flops.count("f32") == 0 || type.flops["f32"] == 0) fields.fail("tflops.f32", "a number above 0", "none");
  type.tf32 = fields.flag_or("tf32", false);
  if (type.tf32 && type.flops.count("tf32") == 0) fields.fail("tflops.tf32", "a number, since tf32 is true", "none");
  fields.object("gemm", [&](Fields& gemm) {
    type.gemm.efficiency = gemm.share_or("efficiency", type.gemm.efficiency);
    type.gemm.tile_m = gemm.count_or("tile_m", type.gemm.tile_m);
    type.gemm.tile_n = gemm.count_or("tile_n", type.gemm.tile_n);
    if (type.gemm.tile_m == 0 || type.gemm.tile_n == 0) gemm.fail("tile_m", "tiles of at least 1 x 1", "0");
    type.gemm.half_k = gemm.number_or("half_k", type.gemm.half_k);
    type.gemm.convolution = gemm.share_or("convolution", type.gemm.convolution);
  });
  type.kernel_floor = fields.number_or("kernel_floor_us", 0, kMicro);
  type.kernel_gap = fields.number_or("kernel_gap_us", 0, kMicro);
  fields.object("copy_engines", [&](Fields& engines) {
    for (auto [key, count] : {std::pair("h2d", &type.h2d_engines), std::pair("d2h", &type.d2h_engines),
                              std::pair("peer", &type.peer_engines)}) {
      *count = engines.count_or(key, *count);
      if (*count == 0) engines.fail(key, "at least 1", "0");
    }
  });
}

void read_devices(Machine& machine, Fields& file) {
  std::vector<std::string> types;
  for (const GpuType& type : machine.gpu_types) types.push_back(type.name);
  file.list("devices", [&](Fields& fields) {
    MachineDevice device;
    device.type = fields.choice("type", types);
    device.numa = fields.count_or("numa", 0);
    device.speed = fields.has("speed") ? fields.positive("speed") : 1;
    const int repeats = fields.count_or("count", 1);
    for (int i = 0; i < repeats; ++i) machine.devices.push_back(device);
  });
  if (machine.devices.empty() || machine.devices.size() > 64)
    file.fail("devices", "from 1 to 64 of them", cat(machine.devices.size()));
}

void read_host(HostCosts& host, Fields& fields) {
  host.factor = fields.number_or("factor", 1);
  host.kernel = fields.number("kernel_us", kMicro);
  host.copy = fields.number("copy_us", kMicro);
  host.fill = fields.number("fill_us", kMicro);
  host.record = fields.number("record_us", kMicro);
  host.wait = fields.number("wait_us", kMicro);
  host.collective = fields.number("collective_us", kMicro);
  host.task = fields.number("task_us", kMicro);
  host.synchronize = fields.number("synchronize_us", kMicro);
  host.item = fields.number_or("item_us", 0, kMicro);
  host.other_call = fields.number("other_call_us", kMicro);
  fields.numbers(
      "calls_us", [&](const std::string& name, double seconds) { host.calls[name] = seconds; }, kMicro);
  host.framework_kernel = fields.number_or("framework_kernel_us", 0, kMicro);
  host.framework_step = fields.number_or("framework_step_us", 0, kMicro);
}

void read_edges(EdgeLatencies& edges, Fields& fields) {
  edges.start = fields.number("start_us", kMicro);
  edges.same_device = fields.number("same_device_us", kMicro);
  edges.cross_device = fields.number("cross_device_us", kMicro);
  edges.host = fields.number("host_us", kMicro);
}

void read_table(const Machine& machine, std::vector<CollectiveTable>& tables, Fields& fields) {
  CollectiveTable table;
  table.op = fields.text("op");
  table.ranks = fields.count("ranks");
  if (table.ranks < 1 || table.ranks > machine.rank_count())
    fields.fail("ranks", cat("from 1 to ", machine.rank_count()), cat(table.ranks));
  for (const std::vector<double>& row : fields.rows("points_us", 2)) {
    if (row[0] == 0 || row[1] == 0) fields.fail("points_us", "bytes and microseconds above 0", "0");
    if (!table.points.empty() && row[0] <= table.points.back().first)
      fields.fail("points_us", "bytes that ascend",
                  cat(number_to_string(row[0]), " after ", number_to_string(table.points.back().first)));
    table.points.emplace_back(row[0], row[1] * kMicro);
  }
  if (table.points.size() < 2) fields.fail("points_us", "at least two points", cat(table.points.size()));
  tables.push_back(std::move(table));
}

void read_collectives(Machine& machine, Fields& fields) {
  Collectives& made = machine.collectives;
  made.model = static_cast<CollectiveModel>(fields.choice("model", {"nccl", "textbook"}));
  made.generation =
      static_cast<Generation>(fields.choice("generation", {"pascal", "volta", "ampere", "hopper", "blackwell"}));
  made.nvlink = fields.flag_or("nvlink", true);
  made.ring_bytes_per_second = fields.positive("ring_gb_per_s", kGiga);
  for (const auto& [key, rates] : {std::pair("ring_gb_per_s_by_ranks", &made.ring_by_ranks),
                                   std::pair("nvls_gb_per_s_by_ranks", &made.nvls_by_ranks)})
    fields.numbers(
        key,
        [&, name = key, into = rates](const std::string& ranks, double rate) {
          const int count = std::atoi(ranks.c_str());
          if (count < 2 || rate == 0) fields.fail(name, "numbers of ranks from 2, and rates above 0", ranks);
          (*into)[count] = rate;
        },
        kGiga);
  made.nvls_from = fields.count_or("nvls_from", 0);
  made.channels = fields.count_or("channels", made.channels);
  if (made.channels == 0) fields.fail("channels", "at least 1", "0");
  made.latency = fields.number_or("latency_us", 0, kMicro);
  made.host_latency = fields.number_or("host_latency_us", 0, kMicro);
  made.ctas = fields.count_or("ctas", made.channels);
  made.kernel_slowdown = fields.number_or("kernel_slowdown", 0);
  fields.list("tables", [&](Fields& table) { read_table(machine, made.tables, table); });
}

void read_network(Network& network, Fields& fields) {
  network.hosts = fields.count_or("hosts", 1);
  if (network.hosts < 1) fields.fail("hosts", "at least 1", cat(network.hosts));
  if (network.hosts == 1 && !fields.has("nics")) return;
  network.nics = fields.count("nics");
  if (network.nics < 1) fields.fail("nics", "at least 1", cat(network.nics));
  network.bytes_per_second = fields.positive("gb_per_s", kGiga);
  network.efficiency = fields.share_or("efficiency", 1);
  network.latency = fields.number_or("latency_us", 0, kMicro);
  network.oversubscription = fields.number_or("oversubscription", 1);
  if (network.oversubscription < 1)
    fields.fail("oversubscription", "at least 1", number_to_string(network.oversubscription));
}

// A source names a field that is there, or a part of the file that contains it.
void read_sources(Machine& machine, const Json& json, Fields& file) {
  file.texts("sources", [&](const std::string& name, const std::string& source) {
    const Json* at = &json;
    std::size_t begin = 0;
    while (begin <= name.size()) {
      const std::size_t end = std::min(name.find('.', begin), name.size());
      const std::string key = name.substr(begin, end - begin);
      if (!at->is_object() || !at->contains(key))
        file.fail("sources", "names of fields of this file", cat("'", name, "'"));
      at = &(*at)[key];
      begin = end + 1;
    }
    machine.sources[name] = source;
  });
}

}  // namespace

Machine parse_machine(std::string_view text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw InvalidArgument(cat("[machine] the file: expected JSON, got ", error.what()));
  }
  Fields file(json, "");
  Machine machine;
  machine.name = file.text("name");
  file.objects("gpu_types", [&](const std::string& name, Fields& fields) {
    machine.gpu_types.emplace_back().name = name;
    read_gpu_type(machine.gpu_types.back(), fields);
  });
  read_devices(machine, file);
  Topology topology(machine);
  file.list("links", [&](Fields& fields) { topology.add_link(fields); });
  file.list("topology", [&](Fields& fields) { topology.add_structure(fields); });
  file.list("routes", [&](Fields& fields) { topology.add_route(fields); });
  topology.finish();
  file.object("host", [&](Fields& fields) { read_host(machine.host, fields); });
  file.object("edges", [&](Fields& fields) { read_edges(machine.edges, fields); });
  file.object("network", [&](Fields& fields) { read_network(machine.network, fields); });
  file.object("collectives", [&](Fields& fields) { read_collectives(machine, fields); });
  read_sources(machine, json, file);
  file.check_all_read();
  return machine;
}

Machine load_machine(const std::string& path) {
  try {
    return parse_machine(detail::read_all(path));
  } catch (const detail::FileError& error) {
    detail::fail<InvalidArgument>("[machine] expected a file that can be read, got '", path,
                                  "': ", std::strerror(error.code));
  } catch (const Error& error) {
    throw InvalidArgument(cat(error.what(), " (in '", path, "')"));
  }
}

}  // namespace lockstep::simulate
