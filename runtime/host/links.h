// How long copies between virtual devices take. Without figures they take what the machine takes.
#pragma once

#include <mutex>
#include <vector>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/host/host_options.h"

namespace lockstep::detail {

class HostLinks {
 public:
  HostLinks(const HostOptions& options, int devices);

  // When a copy that starts now over the link is through: each link carries one copy at a time, links are independent
  // of each other. Now for copies within one memory and where no figures are set.
  Clock::time_point finish_time(Device source, Device destination, std::size_t bytes);

 private:
  struct Link {
    double seconds_per_byte = 0, latency_seconds = 0;
    Clock::time_point free_at;
  };
  std::size_t place(Device device) const { return device.is_cpu() ? 0 : static_cast<std::size_t>(device.index()) + 1; }

  std::size_t places_;  // plain memory, then the devices
  bool timed_ = false;
  std::mutex mutex_;
  std::vector<Link> links_;
};

}  // namespace lockstep::detail
