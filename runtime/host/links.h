// How long copies between virtual devices take. Without figures they take what the machine takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/host/host_options.h"

namespace lockstep::detail {

class HostLinks {
 public:
  HostLinks(const HostOptions& options, int devices);

  // When a copy that starts now over the link is through: each link carries one copy at a time, links are independent
  // of each other. Now for copies within one memory and where no figures are set. What links share is left out.
  Clock::time_point finish_time(Device source, Device destination, std::size_t bytes);
  // As finish_time, piece by piece, so that the copies that are under way share what they share: blocks until no more
  // than the end of the last piece is left, which is returned.
  Clock::time_point carry(Device source, Device destination, std::size_t bytes);
  // What the options say of the link, without times: its rate against the fastest one that they name, and how many
  // links share something with it. Its own where they describe links and nobody shares it.
  DeviceLink described(Device source, Device destination) const;
  // When one piece of a copy, which may start at `from`, is through, without the latency. For carry and its test.
  Clock::time_point pass(Device source, Device destination, std::size_t bytes, Clock::time_point from);

 private:
  struct Line {
    double seconds_per_byte = 0;
    Clock::time_point free_at;
    int users = 0;  // of what is shared: how many links pass it
    Clock::time_point pass(std::size_t bytes, Clock::time_point from);
  };
  struct Link {
    Line line;
    double latency_seconds = 0;
    std::vector<std::size_t> shared;  // places in shared_
  };
  const Link& link(Device source, Device destination) const {
    return links_[place(source) * places_ + place(destination)];
  }
  double rate(const Link& link) const;
  static int times(const Link& link, std::size_t shared) {
    return static_cast<int>(std::count(link.shared.begin(), link.shared.end(), shared));
  }
  Link& link(Device source, Device destination) { return links_[place(source) * places_ + place(destination)]; }
  std::size_t place(Device device) const { return device.is_cpu() ? 0 : static_cast<std::size_t>(device.index()) + 1; }

  std::size_t places_;  // plain memory, then the devices
  bool timed_ = false, described_ = false;
  double fastest_ = 0;           // bytes per second; 0: none is named
  std::size_t piece_bytes_ = 0;  // of copies over links that share something
  std::mutex mutex_;
  std::vector<Link> links_;
  std::vector<Line> shared_;
};

}  // namespace lockstep::detail
