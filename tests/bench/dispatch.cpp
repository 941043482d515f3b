// What it costs to hand work to device threads, to get memory, and to order streams.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <thread>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "subcommand.h"

namespace lockstep::dispatch_bench {

std::string device_list;
int rounds = 2000;

void post_and_join(const std::vector<Device>& devices) {
  auto join = std::make_shared<Join>(static_cast<int>(devices.size()));
  for (const Device& device : devices) {
    device_thread(device).post([join] { join->done(); });
  }
  if (!join->wait(Deadline::after(kDefaultTimeout))) throw Error("[dispatch] expected the tasks to finish");
}

// Threads that have had nothing to do for a while sleep.
bench::Samples microseconds_when_asleep(const std::vector<Device>& devices, int count) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto begin = bench::Clock::now();
    post_and_join(devices);
    times.push_back(bench::seconds_since(begin) * 1e6);
  }
  return bench::Samples(std::move(times));
}

void measure_threads(const std::vector<Device>& devices, bench::Session& session) {
  bench::Table table("post_and_join", "post and join an empty task per device thread (microseconds)",
                     {"threads", "state", "microseconds"}, 2);
  for (std::size_t count = 1; count <= devices.size();
       count = count < devices.size() ? std::min(2 * count, devices.size()) : count + 1) {
    const std::vector<Device> first(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count));
    if (session.wants("post_and_join", cat(count, " spinning")))
      table.add({count, "spinning", session.nanoseconds_per_call(rounds, [&] { post_and_join(first); }).times(1e-3)});
    if (session.wants("post_and_join", cat(count, " asleep")))
      table.add({count, "asleep", microseconds_when_asleep(first, 300)});
  }
  session.add(std::move(table));
}

void measure_resources(Device device, bench::Session& session) {
  bench::Table table("resources", "resources (nanoseconds)", {"operation", "ns"});
  const Stream stream = default_stream(device);
  Stream other(device);
  constexpr int kCalls = 200'000;
  auto add = [&](const char* name, auto body) {
    if (session.wants("resources", name)) table.add({name, session.nanoseconds_per_call(kCalls, body)});
  };

  add("allocate + release, 1 KiB", [&] { release(allocate(stream, 1024)); });
  add("allocate + release, 8 MiB", [&] { release(allocate(stream, std::size_t{8} << 20)); });
  add("allocate 16 + release 16", [&] {
    MemoryBlock* blocks[16];
    for (std::size_t i = 0; i < 16; ++i) blocks[i] = allocate(stream, (i + 1) * 3000);
    for (MemoryBlock* block : blocks) release(block);
  });
  Event event;
  add("event record + wait, kept event", [&] {
    event.record(stream);
    other.wait(event);
  });
  add("event record + wait, new event", [&] { other.wait_for(stream); });
  volatile std::uintptr_t sink = 0;
  add("current_stream, no scope", [&] { sink = reinterpret_cast<std::uintptr_t>(&current_stream(device).body()); });
  StreamScope scope(other);
  add("current_stream, in a scope", [&] { sink = reinterpret_cast<std::uintptr_t>(&current_stream(device).body()); });
  volatile int number = 0;
  add("ordinal", [&] { number = ordinal(device); });
  session.add(std::move(table));
}

void run(bench::Session& session) {
  const std::vector<Device> devices = device_list.empty() ? accelerators() : parse_devices(device_list);
  measure_threads(devices, session);
  measure_resources(devices.front(), session);
}

void options(CLI::App& app) {
  app.add_option("--devices", device_list, "Device list; default: the accelerators");
  app.add_option("--rounds", rounds, "Rounds per run")->check(CLI::PositiveNumber)->capture_default_str();
}

const bench::Subcommand command("dispatch", "Cost of device threads, allocation, events", options, run);

}  // namespace lockstep::dispatch_bench
