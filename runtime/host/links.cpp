#include "lockstep/runtime/host/links.h"

#include <algorithm>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

HostLinks::HostLinks(const HostOptions& options, int devices)
    : places_(static_cast<std::size_t>(devices) + 1), links_(places_ * places_) {
  const auto set = [this](Link& link, std::size_t bytes_per_second, int latency_microseconds) {
    link.seconds_per_byte = bytes_per_second > 0 ? 1.0 / static_cast<double>(bytes_per_second) : 0;
    link.latency_seconds = latency_microseconds * 1e-6;
    timed_ = timed_ || link.seconds_per_byte > 0 || link.latency_seconds > 0;
  };
  for (Link& link : links_) set(link, options.bandwidth_bytes_per_second, options.latency_microseconds);
  for (const HostLink& each : options.links) {
    for (const Device device : {each.source, each.destination}) {
      LOCKSTEP_CHECK(
          device.is_cpu() || (device.type() == DeviceType::host && device.index() >= 0 && device.index() < devices),
          "[configure_host] expected links between cpu and ", devices, " host devices, got one of ", device);
    }
    set(links_[place(each.source) * places_ + place(each.destination)], each.bandwidth_bytes_per_second,
        each.latency_microseconds);
  }
}

Clock::time_point HostLinks::finish_time(Device source, Device destination, std::size_t bytes) {
  const Clock::time_point now = Clock::now();
  if (!timed_ || source == destination) return now;
  std::lock_guard lock(mutex_);
  Link& link = links_[place(source) * places_ + place(destination)];
  const std::chrono::duration<double> busy(static_cast<double>(bytes) * link.seconds_per_byte);
  const std::chrono::duration<double> latency(link.latency_seconds);
  link.free_at = std::max(now, link.free_at) + std::chrono::duration_cast<Clock::duration>(busy);
  return link.free_at + std::chrono::duration_cast<Clock::duration>(latency);
}

}  // namespace lockstep::detail
