// Which devices there are, which of them reach each other, and how fast copies between them are.
#include <CLI/CLI.hpp>

#include "bench.h"
#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/copy.h"
#include "lockstep/runtime/error.h"

namespace {

using namespace lockstep;

std::string device_list;
std::uint64_t bytes = std::uint64_t{16} << 20;
int runs = 9;

bench::Table describe(const std::vector<Device>& devices) {
  bench::Table table("devices", {"device", "name", "memory", "multiprocessors", "synchronous", "stages pageable"});
  for (const Device& device : devices) {
    const DeviceProperties& properties = lockstep::properties(device);
    table.add({to_string(device), properties.name, bytes_to_string(properties.total_memory_bytes),
               properties.multiprocessors, properties.synchronous ? "yes" : "no",
               properties.stages_pageable ? "yes" : "no"});
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
    backend(device).fill_bytes(block_->data, 1, size, block_->stream->handle());  // pages exist from here on
    synchronize(*block_->stream);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(block_); }
  void* data() const { return block_->data; }

 private:
  MemoryBlock* block_;
};

double copy_seconds(Device from, Device to, std::size_t size, int calls) {
  const Buffer source(from, size), destination(to, size);
  const CopyArgs args{.destination = destination.data(),
                      .destination_device = to,
                      .source = source.data(),
                      .source_device = from,
                      .bytes = size};
  return 1e-9 * bench::nanoseconds_per_call(runs, calls, [&] {
           copy_bytes(args, default_stream(from), default_stream(to));
           synchronize(default_stream(to));
         });
}

template <class Cell>
bench::Table matrix(const std::string& title, const std::vector<Device>& devices, Cell cell) {
  std::vector<std::string> columns{"from"};
  for (const Device& device : devices) columns.push_back(to_string(device));
  bench::Table table(title, columns);
  for (const Device& from : devices) {
    std::vector<bench::Table::Cell> row{to_string(from)};
    for (const Device& to : devices) row.push_back(cell(from, to));
    table.add(std::move(row));
  }
  return table;
}

void run(bench::Report& report) {
  const std::vector<Device> devices = device_list.empty() ? all_devices() : parse_devices(device_list);
  report.add(describe(devices));
  report.add(matrix("peer access (rows: from, columns: to)", devices,
                    [](Device from, Device to) { return peer_access(from, to); }));
  const std::string size = bytes_to_string(bytes);
  report.add(matrix(cat("copy of ", size, ", GB/s"), devices, [](Device from, Device to) {
    return static_cast<double>(bytes) / copy_seconds(from, to, bytes, 1) / 1e9;
  }));
  report.add(matrix("copy of 8 bytes, microseconds", devices,
                    [](Device from, Device to) { return copy_seconds(from, to, 8, 1000) * 1e6; }));
}

void options(CLI::App& app) {
  app.add_option("--devices", device_list, "Device list; default: all devices");
  app.add_option("--bytes", bytes, "Bytes per copy, e.g. 64KB or 1GB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--runs", runs, "Runs of which the median is shown")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

const bench::Subcommand list(
    "devices", "Devices alone", [](CLI::App&) {}, [](bench::Report& report) { report.add(describe(all_devices())); });
const bench::Subcommand command("topology", "Devices, their links, and copy speed between them", options, run);

}  // namespace
