// Which devices there are, which of them reach each other, and how fast copies between them are.
#include <CLI/CLI.hpp>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "subcommand.h"

namespace lockstep::topology_bench {

std::string device_list;
std::uint64_t bytes = std::uint64_t{16} << 20;

bench::Table describe(const std::vector<Device>& devices) {
  bench::Table table("devices", "devices",
                     {"device", "name", "memory", "multiprocessors", "synchronous", "stages pageable"});
  for (const Device& device : devices) {
    const DeviceProperties& properties = lockstep::properties(device);
    table.add({to_string(device), properties.name, bench::Table::Cell::bytes(properties.total_memory_bytes),
               properties.multiprocessors, properties.synchronous, properties.stages_pageable});
  }
  return table;
}

std::string peer_access(Device from, Device to) {
  if (from == to) return "self";
  if (from.type() != to.type() || from.is_cpu()) return "-";
  return backend(from).can_access_peer(from.index(), to.index()) ? "yes" : "no";
}

// Memory on a device for as long as it lives.
class Buffer {
 public:
  Buffer(Device device, std::size_t size) : block_(allocate(default_stream(device), size)) {
    backend(device).fill_bytes(block_->data, 1, size, block_->stream->handle);  // pages exist from here on
    synchronize(*block_->stream);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(block_); }
  void* data() const { return block_->data; }

 private:
  MemoryBlock* block_;
};

bench::Samples copy_nanoseconds(const bench::Session& session, Device from, Device to, std::size_t size, int calls) {
  const Buffer source(from, size), destination(to, size);
  const CopyArgs args{.destination = destination.data(),
                      .destination_device = to,
                      .source = source.data(),
                      .source_device = from,
                      .bytes = size};
  return session.nanoseconds_per_call(calls, [&] {
    copy_bytes(args, default_stream(from), default_stream(to));
    synchronize(default_stream(to));
  });
}

// A row for each device that is copied from, a column for each that is copied to.
template <class Cell>
bench::Table matrix(std::string id, std::string title, const std::vector<Device>& devices, Cell cell) {
  std::vector<std::string> columns{"from"};
  for (const Device& device : devices) columns.push_back(to_string(device));
  bench::Table table(std::move(id), std::move(title), columns, 1, bench::Table::Style::matrix);
  for (const Device& from : devices) {
    std::vector<bench::Table::Cell> row{to_string(from)};
    bool any = false;
    for (const Device& to : devices) {
      row.push_back(cell(from, to));
      any = any || row.back().text() != "";
    }
    if (any) table.add(std::move(row));
  }
  return table;
}

void run(bench::Session& session) {
  const std::vector<Device> devices = device_list.empty() ? all_devices() : parse_devices(device_list);
  const auto name = [](Device from, Device to) { return cat(from, " to ", to); };
  session.add(describe(devices));
  session.add(matrix("peer_access", "peer access (rows: from, columns: to)", devices, peer_access));
  session.add(matrix("copy_gb_per_second", cat("copy of ", bytes_to_string(bytes), ", GB/s"), devices,
                     [&](Device from, Device to) -> bench::Table::Cell {
                       if (!session.wants("copy_gb_per_second", name(from, to))) return "";
                       return copy_nanoseconds(session, from, to, bytes, 1).into(static_cast<double>(bytes));
                     }));
  session.add(matrix("copy_of_8_bytes", "copy of 8 bytes, microseconds", devices,
                     [&](Device from, Device to) -> bench::Table::Cell {
                       if (!session.wants("copy_of_8_bytes", name(from, to))) return "";
                       return copy_nanoseconds(session, from, to, 8, 1000).times(1e-3);
                     }));
}

void options(CLI::App& app) {
  app.add_option("--devices", device_list, "Device list; default: all devices");
  app.add_option("--bytes", bytes, "Bytes per copy, e.g. 64KB or 1GB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

const bench::Subcommand list(
    "devices", "Devices alone", [](CLI::App&) {},
    [](bench::Session& session) { session.add(describe(all_devices())); });
const bench::Subcommand command("topology", "Devices, their links, and copy speed between them", options, run);

}  // namespace lockstep::topology_bench
