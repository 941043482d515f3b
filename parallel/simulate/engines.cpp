// What does one thing at a time: devices with their kernels, and copy engines.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/parallel/simulate/replay.h"

namespace lockstep::simulate {

void Replay::serve(Server& server, int e, void (Replay::*start)(int)) {
  if (server.running == server.servers) return server.waiting.push_back(e);
  ++server.running;
  (this->*start)(e);
}

void Replay::leave(Server& server, int e, void (Replay::*start)(int)) {
  --server.running;
  server.last = work_node(e);
  if (server.waiting.empty()) return;
  const int next = server.waiting.front();
  server.waiting.pop_front();
  if (step(next).work_begin < now_) step(next).work_cause = server.last;
  step(next).work_begin = now_;
  ++server.running;
  (this->*start)(next);
}

Nanoseconds Replay::kernel_time(int e) const {
  const int device = device_of(e) % machine_.device_count();
  const Entry& it = entry(e);
  KernelWork work{.name = "copy", .dtype = "u8"};
  if (it.kind == Kind::kernel) {
    const Kernel& kernel = recording_.kernels[static_cast<std::size_t>(it.detail)];
    work = {kernel.name,
            kernel.dtype,
            static_cast<double>(kernel.bytes_read),
            static_cast<double>(kernel.bytes_written),
            static_cast<double>(kernel.flops),
            kernel.shapes};
  } else if (it.kind == Kind::fill) {
    work.bytes_written = static_cast<double>(it.bytes);
  } else {
    work.bytes_read = static_cast<double>(recording_.copies[static_cast<std::size_t>(it.detail)].bytes);
    work.bytes_written = work.bytes_read;
  }
  const MachineDevice& on = machine_.devices[static_cast<std::size_t>(device)];
  return to_nanoseconds(kernel_seconds(machine_.type_of(device), work, options_.speed) / on.speed);
}

void Replay::start_kernel(int e) {
  Device& device = devices_[static_cast<std::size_t>(device_of(e))];
  device.kernel = e;
  device.left = kernel_time(e) * kFull;
  device.rate = 0;
  device.since = now_;
  set_rate(device_of(e));
}

void Replay::set_rate(int d) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  if (device.kernel < 0) return;
  const std::int64_t rate = device.collectives == 0
                                ? kFull
                                : std::llround(static_cast<double>(kFull) / (1 + machine_.collectives.kernel_slowdown));
  if (rate == device.rate) return;
  device.left -= std::min(device.left, device.rate * (now_ - device.since));
  device.since = now_;
  device.rate = rate;
  at(now_ + (device.left + rate - 1) / rate, What::kernel_done, d, ++device.version);
}

const Route& Replay::route(int e) const {
  const Copy& copy = recording_.copies[static_cast<std::size_t>(entry(e).detail)];
  const auto within = [&](int device) {
    return device == kHostMemory ? Machine::kHost : device % machine_.device_count();
  };
  return machine_.route(within(copy.source), within(copy.destination));
}

// A copy through the host takes the engine down of its source first and the engine up of its destination second: as
// everyone does, in this order, so that no two wait for each other.
Replay::Server* Replay::engine(int e, bool second) {
  const Copy& copy = recording_.copies[static_cast<std::size_t>(entry(e).detail)];
  switch (route(e).kind) {
    case RouteKind::h2d:
      return second ? nullptr : &devices_[static_cast<std::size_t>(copy.destination)].engines[0];
    case RouteKind::d2h:
      return second ? nullptr : &devices_[static_cast<std::size_t>(copy.source)].engines[1];
    case RouteKind::staged:
      return second ? &devices_[static_cast<std::size_t>(copy.destination)].engines[0]
                    : &devices_[static_cast<std::size_t>(copy.source)].engines[1];
    default:
      return second ? nullptr : &devices_[static_cast<std::size_t>(device_of(e))].engines[2];
  }
}

void Replay::take_second_engine(int e) {
  if (Server* const second = engine(e, true)) return serve(*second, e, &Replay::start_copy);
  start_copy(e);
}

void Replay::start_copy(int e) { at(now_ + to_nanoseconds(route(e).start), What::flow_begins, e); }

void Replay::end_flow(int e) {
  const Route& way = route(e);
  if (way.kind != RouteKind::staged || way.chunk == 0) return end_copy(e);
  // The second way of the last piece, at the rate of the slowest link.
  double rate = std::numeric_limits<double>::max();
  for (const int each : way.path) {
    const Link& link = machine_.links[static_cast<std::size_t>(each)];
    rate = std::min(rate, link.bytes_per_second * link.copy_engine_efficiency);
  }
  const Copy& copy = recording_.copies[static_cast<std::size_t>(entry(e).detail)];
  at(now_ + to_nanoseconds(std::min(way.chunk, static_cast<double>(copy.bytes)) / rate), What::copy_done, e);
}

void Replay::end_copy(int e) {
  if (Server* const second = engine(e, true)) leave(*second, e, &Replay::start_copy);
  leave(*engine(e, false), e, &Replay::take_second_engine);
  finish(e);
}

}  // namespace lockstep::simulate
