// Machines with round figures, for results that can be worked out by hand.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::simulate::tests {

constexpr double kMicro = 1e-6;
constexpr std::int64_t kByteRate = 1'000'000'000;  // of a port: a byte a nanosecond
constexpr Nanoseconds kStart = 7'000;              // of a copy

// A switch that does not block, a port out and a port in for each device. Calls cost nothing, edges take no time, a
// kernel without bytes takes 10 us, a collective 1 us a step.
inline Machine ideal(int devices) {
  Machine machine;
  machine.name = "ideal";
  GpuType type;
  type.name = "gpu";
  type.multiprocessors = 100;
  type.memory_bytes_per_second = 1e12;
  type.flops = {{"f32", 1e13}};
  type.kernel_floor = 10 * kMicro;
  machine.gpu_types.push_back(type);
  machine.devices.resize(static_cast<std::size_t>(devices));
  for (int i = 0; i < devices; ++i) {
    machine.links.push_back({"device" + std::to_string(i) + ".out", kByteRate});
    machine.links.push_back({"device" + std::to_string(i) + ".in", kByteRate});
  }
  machine.links.push_back({"host", 4 * kByteRate});
  const int host = 2 * devices;
  for (int i = Machine::kHost; i < devices; ++i)
    for (int j = Machine::kHost; j < devices; ++j) {
      const double start = static_cast<double>(kStart) * 1e-9;
      if (i == j)
        machine.routes.push_back({RouteKind::local, {}, 0, 0});
      else if (i == Machine::kHost)
        machine.routes.push_back({RouteKind::h2d, {host, 2 * j + 1}, start, 0});
      else if (j == Machine::kHost)
        machine.routes.push_back({RouteKind::d2h, {2 * i, host}, start, 0});
      else
        machine.routes.push_back({RouteKind::p2p, {2 * i, 2 * j + 1}, start, 0});
    }
  machine.collectives.model = CollectiveModel::textbook;
  machine.collectives.ring_bytes_per_second = kByteRate;
  machine.collectives.latency = kMicro;
  return machine;
}

// A recording with one thread, and `per_device` streams on each device: stream s is on device s / per_device.
inline Recording empty(int devices, int per_device = 1, int threads = 1) {
  Recording recording;
  recording.file = "made";
  for (int s = 0; s < devices * per_device; ++s) recording.streams.push_back({s / per_device, "stream"});
  for (int t = 0; t < threads; ++t) recording.threads.push_back({"thread" + std::to_string(t), {}});
  return recording;
}

inline EntryRef record(Recording& recording, int stream, int thread = 0) {
  return recording.add(thread, {.kind = Kind::record, .stream = stream});
}
inline EntryRef wait(Recording& recording, int stream, EntryRef event, int thread = 0) {
  return recording.add(thread, {.kind = Kind::wait, .stream = stream, .other = event});
}
inline EntryRef mark(Recording& recording, const char* name = "step", int thread = 0) {
  return recording.add(thread, {.kind = Kind::mark, .name = name});
}
inline EntryRef kernel(Recording& recording, int stream, int thread = 0) {
  return recording.add_kernel(thread, stream, {.name = "add", .dtype = "f32"});
}

}  // namespace lockstep::simulate::tests
