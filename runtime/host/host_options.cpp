#include "lockstep/runtime/host/host_options.h"

#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/compute_threads.h"
#include "lockstep/runtime/host/host_backend.h"

namespace lockstep {
namespace {

HostOptions& configured() {
  static HostOptions* const options = new HostOptions;
  return *options;
}

}  // namespace

const HostOptions& detail::configured_host() { return configured(); }

void configure_host(const HostOptions& options) {
  LOCKSTEP_CHECK(options.devices >= 0 && options.devices <= kMaxDevices, "[configure_host] expected from 1 to ",
                 kMaxDevices, " devices, or 0 for the default, got ", options.devices);
  for (const std::size_t bytes : options.memory_bytes) {
    LOCKSTEP_CHECK(bytes > 0, "[configure_host] expected a positive number of bytes per device, got ", bytes);
  }
  for (const int count : options.multiprocessors) {
    LOCKSTEP_CHECK(count > 0, "[configure_host] expected a positive number of multiprocessors, got ", count);
  }
  LOCKSTEP_CHECK(options.threads >= 0 && options.threads <= detail::kMostThreads,
                 "[configure_host] expected from 1 to ", detail::kMostThreads, " threads, or 0 for the default, got ",
                 options.threads);
  const auto lock = detail::before_first_use("configure_host");
  configured() = options;
}

}  // namespace lockstep
