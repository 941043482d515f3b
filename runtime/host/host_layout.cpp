// How many virtual devices there are, with how much memory, in which mode.
#include <algorithm>
#include <thread>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/async_backend.h"
#include "lockstep/runtime/host/checked_cpu_backend.h"
#include "lockstep/runtime/host/compute_threads.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/host/inline_backend.h"
#include "lockstep/runtime/host/instruction_set.h"
#include "lockstep/runtime/host/record_backend.h"
#include "lockstep/runtime/machine_memory.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep::detail {
namespace {

// Of a device that is not there: more than any has.
constexpr std::size_t kRecordedMemory = std::size_t{1} << 40;

int default_device_count() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8); }

std::vector<std::size_t> parse_bytes_list(const char* name, std::string_view text) {
  std::vector<std::size_t> list;
  while (!text.empty()) {
    const auto comma = text.find(',');
    list.push_back(parse_bytes(name, trim(text.substr(0, comma))));
    text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
  }
  return list;
}

HostMode find_mode(HostMode wanted) {
  if (wanted != HostMode::automatic) return wanted;
  const std::string_view mode = environment("LOCKSTEP_HOST_MODE");
  if (mode.empty() || mode == "inline") return HostMode::inlined;
  if (mode == "async") return HostMode::async;
  if (mode == "strict") return HostMode::strict;
  if (mode == "record") return HostMode::record;
  throw InvalidArgument(cat("[LOCKSTEP_HOST_MODE] expected inline, async, strict or record, got \"", mode, "\""));
}

// Fills in what the environment says about timing, order and faults.
HostOptions complete(HostOptions options, HostMode mode, int devices) {
  constexpr int kMost = 1 << 30;
  if (const std::string_view text = environment("LOCKSTEP_HOST_SEED"); options.seed == 0 && !text.empty()) {
    options.seed = static_cast<std::uint64_t>(parse_count("LOCKSTEP_HOST_SEED", text, 0, kMost));
  }
  if (options.seed == 0 && mode == HostMode::strict) options.seed = 1;
  if (const std::string_view text = environment("LOCKSTEP_HOST_BANDWIDTH");
      options.bandwidth_bytes_per_second == 0 && !text.empty()) {
    options.bandwidth_bytes_per_second = parse_bytes("LOCKSTEP_HOST_BANDWIDTH", text);
  }
  if (const std::string_view text = environment("LOCKSTEP_HOST_LATENCY");
      options.latency_microseconds == 0 && !text.empty()) {
    options.latency_microseconds = parse_count("LOCKSTEP_HOST_LATENCY", text, 0, kMost);
  }
  host_faults().inject(options.faults.empty() ? environment("LOCKSTEP_HOST_FAULTS") : options.faults, devices);
  return options;
}

template <class T>
T at_or_last(const std::vector<T>& list, int index) {
  return list[std::min(static_cast<std::size_t>(index), list.size() - 1)];
}

}  // namespace

Backend* make_host_backend(const HostOptions& options) {
  choose_instruction_set(options);  // throws now, and not at the first kernel
  check_compute_threads();
  const HostMode mode = find_mode(options.mode);
  int devices = options.devices;
  if (devices == 0) {
    const std::string_view text = environment("LOCKSTEP_HOST_DEVICES");
    devices = text.empty() ? default_device_count() : parse_count("LOCKSTEP_HOST_DEVICES", text, 1, kMaxDevices);
  }
  std::vector<std::size_t> memory_bytes = options.memory_bytes;
  if (memory_bytes.empty()) {
    memory_bytes = parse_bytes_list("LOCKSTEP_HOST_MEMORY", environment("LOCKSTEP_HOST_MEMORY"));
  }
  if (memory_bytes.empty() && mode == HostMode::record) memory_bytes.push_back(kRecordedMemory);
  if (memory_bytes.empty()) memory_bytes.push_back(machine_memory().total_bytes / static_cast<std::size_t>(devices));

  std::vector<HostBackend::DeviceLayout> layout;
  for (int i = 0; i < devices; ++i) {
    layout.push_back({.memory_bytes = at_or_last(memory_bytes, i),
                      .multiprocessors = options.multiprocessors.empty() ? 1 : at_or_last(options.multiprocessors, i)});
  }
  const HostOptions complete_options = complete(options, mode, devices);
  if (mode == HostMode::inlined) return new InlineBackend(DeviceType::host, layout);
  if (mode == HostMode::record) return new RecordBackend(layout, Recorder::start());
  AsyncOptions async{.seed = complete_options.seed};
  if (mode == HostMode::strict) async.checker = &OrderChecker::start();
  return new AsyncBackend(layout, complete_options, async);
}

Backend* make_cpu_backend() {
  const std::vector<HostBackend::DeviceLayout> layout{
      {.memory_bytes = machine_memory().total_bytes, .multiprocessors = 1}};
  // Whatever kind of device the checker watches: what they copy from and to is this memory.
  if (OrderChecker* checker = OrderChecker::active()) return new CheckedCpuBackend(layout, *checker);
  return new InlineBackend(DeviceType::cpu, layout);
}

}  // namespace lockstep::detail
