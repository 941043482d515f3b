// How long the parameters of a replicated module take to its mirrors, and their gradients back home, against one copy
// of as many bytes: what the engine makes of the links between the devices.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "slowed_machine.h"
#include "subcommand.h"

namespace lockstep::transfers_bench {

std::string device_list, machine_file;
double scale = 1000;
std::uint64_t bytes = std::uint64_t{64} << 20;

struct Weights : Module<Weights> {
  std::vector<Parameter> all;
  Weights() {
    const auto element_count = static_cast<std::int64_t>(bytes / 4 / 16);
    for (int i = 0; i < 16; ++i) all.emplace_back(zeros({element_count}));
  }
  void members(Members& m) override { m("all", all); }
};

void finish(const std::vector<Device>& devices) {
  for (const Device device : devices) synchronize(device);
}

void measure(const std::vector<Device>& devices, bench::Session& session, bench::Table& table) {
  Weights net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  finish(devices);
  const auto mirrors = static_cast<std::int64_t>(devices.size()) - 1;
  const auto wants = [&](const char* what) { return session.wants("transfers", cat(mirrors, ' ', what)); };
  double copy = 0;
  const auto add = [&](const char* what, const bench::Samples& nanoseconds) {
    if (copy == 0) copy = nanoseconds.median();
    table.add({mirrors, what, nanoseconds.times(1e-6), nanoseconds.median() / copy});
  };
  {
    const Tensor source = zeros({static_cast<std::int64_t>(bytes / 4)}, {.device = devices[0]});
    finish(devices);
    const bench::Samples one = session.nanoseconds_per_call(1, [&] {
      const Tensor there = source.to(devices[1]);
      finish(devices);
    });
    if (wants("one copy")) add("one copy", one);
    copy = one.median();
  }
  if (wants("refresh"))
    add("refresh", session.nanoseconds_per_call(1, [&] {
      for (const Parameter& parameter : net.all) parameter.tensor().mark_changed();
      slots.refresh(devices);
      finish(devices);
    }));
  if (wants("gradients home")) {
    // The backward of a sum writes one element everywhere, which is short beside what a link takes.
    add("gradients home", session.nanoseconds_per_call(1, [&] {
      Tensor total;
      for (const Device device : devices)
        for (const Parameter& parameter : net.all) {
          const Tensor part = parameter.on(device).narrow(0, 0, 1).sum().to(devices[0]);
          total = total.defined() ? total + part : part;
        }
      total.backward();
      finish(devices);
      net.zero_grad();
    }));
  }
}

void run(bench::Session& session) {
  if (!machine_file.empty()) return bench::compare_with_simulated(session, machine_file, scale, bytes);
  const std::vector<Device> devices = device_list.empty() ? accelerators() : parse_devices(device_list);
  bench::Table table("transfers", cat("between home and its mirrors, ", bytes_to_string(bytes), " of f32"),
                     {"mirrors", "what", "milliseconds", "copies"}, 2);
  for (std::size_t count = 2; count <= devices.size();
       count = count < devices.size() ? std::min(2 * count, devices.size()) : count + 1)
    measure({devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count)}, session, table);
  session.add(std::move(table));
}

void options(CLI::App& app) {
  app.add_option("--devices", device_list, "Device list; default: all accelerators");
  app.add_option("--bytes", bytes, "Bytes of the parameters, e.g. 64MB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--machine", machine_file, "A machine file: copies over its links, slowed, measured and simulated");
  app.add_option("--scale", scale, "How many times slower than the machine")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

const bench::Subcommand command("transfers", "Parameters to the mirrors and gradients home, in times of one copy",
                                options, run);

}  // namespace lockstep::transfers_bench
