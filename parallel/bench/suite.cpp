#include <algorithm>

#include "lockstep/parallel/bench/bench.h"
#include "lockstep/parallel/bench/command_line.h"
#include "lockstep/runtime/error.h"

namespace lockstep::bench {

void Run::measure_calls(const std::function<double(std::int64_t)>& run) {
  LOCKSTEP_CHECK(seconds_.count() == 0, "[measure] expected one call in each benchmark, got another one");
  seconds_ = session_.seconds_per_call(run, 0.05);
}

void Suite::add(std::string name, std::function<void(Run&)> benchmark) {
  LOCKSTEP_CHECK(benchmark, "[Suite] expected a function for '", name, "', got an empty one");
  LOCKSTEP_CHECK(
      std::none_of(benchmarks_.begin(), benchmarks_.end(), [&](const auto& each) { return each.first == name; }),
      "[Suite] expected names that differ, got '", name, "' twice");
  benchmarks_.emplace_back(std::move(name), std::move(benchmark));
}

void Suite::measure(Session& session, Device device) const {
  Table table("benchmarks", cat(description_, ", on ", device), {"benchmark", "microseconds", "rate", "per second"});
  for (const auto& [name, benchmark] : benchmarks_) {
    if (!session.wants("benchmarks", name)) continue;
    Run run(session, device);
    benchmark(run);
    LOCKSTEP_CHECK(run.seconds_.count() > 0, "[Suite] expected '", name, "' to call measure(), but it did not");
    const bool rate = run.work_ > 0;
    table.add({name, run.seconds_.times(1e6), rate ? Table::Cell(run.work_ / run.seconds_.median()) : Table::Cell(""),
               run.unit_});
  }
  session.add(std::move(table));
}

int Suite::main(int argc, char** argv) {
  CLI::App app(description_, name_);
  Settings settings;
  std::string device;
  declare(app, settings);
  app.add_option("--device", device, "Device; default: the first accelerator");
  return run_program(app, argc, argv, settings, [&](Session& session) {
    measure(session, device.empty() ? accelerators().front() : Device::parse(device));
  });
}

}  // namespace lockstep::bench
