#include "lockstep/runtime/host/links.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

constexpr double kPieceSeconds = 4e-3;  // on the slowest of what is shared: long beside a wake-up, short beside a copy

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

HostLinks::HostLinks(const HostOptions& options, int devices)
    : places_(static_cast<std::size_t>(devices) + 1),
      described_(!options.links.empty() || !options.shared.empty()),
      links_(places_ * places_) {
  const auto check = [devices](Device device) {
    LOCKSTEP_CHECK(
        device.is_cpu() || (device.type() == DeviceType::host && device.index() >= 0 && device.index() < devices),
        "[configure_host] expected links between cpu and ", devices, " host devices, got one of ", device);
  };
  const auto set = [this](Link& link, std::size_t bytes_per_second, int latency_microseconds) {
    link.line.seconds_per_byte = bytes_per_second > 0 ? 1.0 / static_cast<double>(bytes_per_second) : 0;
    link.latency_seconds = latency_microseconds * 1e-6;
    timed_ = timed_ || link.line.seconds_per_byte > 0 || link.latency_seconds > 0;
  };
  for (Link& link : links_) set(link, options.bandwidth_bytes_per_second, options.latency_microseconds);
  for (const HostLink& each : options.links) {
    for (const Device device : {each.source, each.destination}) check(device);
    set(link(each.source, each.destination), each.bandwidth_bytes_per_second, each.latency_microseconds);
  }
  for (const HostShared& each : options.shared) {
    LOCKSTEP_CHECK(each.bandwidth_bytes_per_second > 0,
                   "[configure_host] expected a bandwidth above 0 of what links share, got 0");
    const double rate = static_cast<double>(each.bandwidth_bytes_per_second);
    const auto piece = static_cast<std::size_t>(std::max(1.0, rate * kPieceSeconds));
    piece_bytes_ = shared_.empty() ? piece : std::min(piece_bytes_, piece);
    for (const auto& [source, destination] : each.links) {
      for (const Device device : {source, destination}) check(device);
      link(source, destination).shared.push_back(shared_.size());
    }
    shared_.push_back({1 / rate, {}, static_cast<int>(each.links.size())});
    timed_ = true;
  }
  for (const Link& each : links_)
    if (std::isfinite(rate(each))) fastest_ = std::max(fastest_, rate(each));
}

double HostLinks::rate(const Link& link) const {
  double seconds = link.line.seconds_per_byte;
  for (const std::size_t each : link.shared)
    seconds = std::max(seconds, shared_[each].seconds_per_byte * times(link, each));
  return seconds > 0 ? 1 / seconds : INFINITY;
}

DeviceLink HostLinks::described(Device source, Device destination) const {
  const Link& over = link(source, destination);
  DeviceLink described{.distance = std::max(1, static_cast<int>(over.shared.size())), .own = described_};
  if (const double its = rate(over); std::isfinite(its)) described.speed = its / fastest_;
  for (const std::size_t each : over.shared) described.own = described.own && shared_[each].users == times(over, each);
  return described;
}

Clock::time_point HostLinks::Line::pass(std::size_t bytes, Clock::time_point from) {
  free_at = std::max(from, free_at) + to_duration(static_cast<double>(bytes) * seconds_per_byte);
  return free_at;
}

Clock::time_point HostLinks::pass(Device source, Device destination, std::size_t bytes, Clock::time_point from) {
  std::lock_guard lock(mutex_);
  Link& over = link(source, destination);
  Clock::time_point through = over.line.pass(bytes, from);
  // Each is passed as if the others did not hold the piece up: what waits for one port leaves another one free.
  for (const std::size_t each : over.shared) through = std::max(through, shared_[each].pass(bytes, from));
  return through;
}

Clock::time_point HostLinks::finish_time(Device source, Device destination, std::size_t bytes) {
  const Clock::time_point now = Clock::now();
  if (!timed_ || source == destination) return now;
  std::lock_guard lock(mutex_);
  Link& over = link(source, destination);
  return over.line.pass(bytes, now) + to_duration(over.latency_seconds);
}

Clock::time_point HostLinks::carry(Device source, Device destination, std::size_t bytes) {
  if (!timed_ || source == destination || link(source, destination).shared.empty())
    return finish_time(source, destination, bytes);
  // One piece waits in line behind the one that passes, so that a late wake-up leaves no gap.
  Clock::time_point before = Clock::now(), through = before;
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, piece_bytes_);
    const Clock::time_point next = pass(source, destination, piece, before);
    before = std::exchange(through, next);
    std::this_thread::sleep_until(before);
    bytes -= piece;
  }
  return through + to_duration(link(source, destination).latency_seconds);
}

}  // namespace lockstep::detail
