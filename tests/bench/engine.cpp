// What a DataParallel call costs beside the module's own time.
#include <CLI/CLI.hpp>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"
#include "subcommand.h"

namespace lockstep::engine_bench {

std::string device_list;
int calls = 2000;
std::int64_t batch = 256;
std::int64_t width = 64;

// Costs nothing itself: what is measured is the call around it.
struct Identity : Module<Identity> {
  Parameter weight{zeros({16})};
  Tensor forward(const Tensor& x) const { return x; }
  void members(Members& m) override { m("weight", weight); }
};

struct Mlp : Module<Mlp> {
  Linear first{width, width}, second{width, width}, head{width, 10};
  Tensor forward(const Tensor& x) const { return head(relu(second(relu(first(x))))); }
  void members(Members& m) override {
    m("first", first);
    m("second", second);
    m("head", head);
  }
};

// 1, 2, 4, … devices, and all of them.
std::vector<std::vector<Device>> device_counts(const std::vector<Device>& devices) {
  std::vector<std::vector<Device>> sets;
  for (std::size_t count = 1;; count *= 2) {
    count = std::min(count, devices.size());
    sets.emplace_back(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count));
    if (count == devices.size()) return sets;
  }
}

// Each call after a pause in which the device threads have fallen asleep.
template <class Body>
bench::Samples microseconds_when_asleep(int count, Body body) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto begin = bench::Clock::now();
    body();
    times.push_back(bench::seconds_since(begin) * 1e6);
  }
  return bench::Samples(std::move(times));
}

void measure_empty_call(const std::vector<Device>& devices, bench::Session& session) {
  bench::Table table("empty_call", "an empty call, on top of the module's own time (microseconds)",
                     {"devices", "state", "microseconds"}, 2);
  bench::Table phases("phases", "its phases, spinning (microseconds, means)",
                      {"devices", "scatter", "replicate", "apply", "gather"});
  const NoGrad off;
  for (const auto& set : device_counts(devices)) {
    const auto net = DataParallel(Identity{}, {.devices = set});
    const auto count = static_cast<std::int64_t>(set.size());
    const Tensor x = zeros({count, 1}, {.device = set[0]});
    const auto wants = [&](const char* state) { return session.wants("empty_call", cat(count, ' ', state)); };
    const auto beside = [&](const bench::Samples& microseconds) {
      const double module = session.nanoseconds_per_call(calls, [&] { net.module()(x); }).median() / 1e3;
      std::vector<double> own = microseconds.values();
      for (double& value : own) value -= module;
      return bench::Samples(std::move(own));
    };
    if (wants("spinning")) {
      const DataParallelStats before = net.stats();
      const bench::Samples spinning = session.nanoseconds_per_call(calls, [&] { net(x); }).times(1e-3);
      const DataParallelStats after = net.stats();
      const auto phase = [&](PhaseStats CallStats::*which) {
        return static_cast<double>((after.total.*which).nanoseconds - (before.total.*which).nanoseconds) / 1e3 /
               static_cast<double>(after.calls - before.calls);
      };
      table.add({count, "spinning", beside(spinning)});
      phases.add({count, phase(&CallStats::scatter), phase(&CallStats::replicate), phase(&CallStats::apply),
                  phase(&CallStats::gather)});
    }
    if (wants("asleep")) table.add({count, "asleep", beside(microseconds_when_asleep(300, [&] { net(x); }))});
    if (wants("spinning, with a graph")) {
      const GradMode on(true);
      Tensor leaf = x.clone();
      leaf.set_requires_grad();
      table.add({count, "spinning, with a graph",
                 beside(session.nanoseconds_per_call(calls, [&] { net(leaf); }).times(1e-3))});
    }
  }
  session.add(std::move(table));
  session.add(std::move(phases));
}

void measure_mlp(const std::vector<Device>& devices, bench::Session& session) {
  bench::Table table("mlp", cat("an MLP of three layers ", width, " wide, batch ", batch, " (microseconds)"),
                     {"devices", "what", "width", "batch", "microseconds", "replicated bytes"}, 2);
  const int fewer_calls = std::max(1, calls / 20);
  for (const auto& set : device_counts(devices)) {
    auto net = DataParallel(Mlp{}, {.devices = set});
    SGD optimizer(net.parameters(), {.lr = 1e-3, .momentum = 0.9});
    const Tensor x = randn({batch, width}, {.device = set[0]});
    const Tensor labels = randint(0, 10, {batch}, {.device = set[0]});
    const auto add = [&](const char* what, auto body) {
      const auto count = static_cast<std::int64_t>(set.size());
      if (!session.wants("mlp", cat(count, ' ', what))) return;
      const bench::Samples microseconds = session.nanoseconds_per_call(fewer_calls, body).times(1e-3);
      table.add({count, what, width, batch, microseconds, net.stats().last.replicate.bytes});
    };
    add("inference", [&] {
      const NoGrad off;
      net(x);
    });
    add("training step", [&] {
      optimizer.zero_grad();
      cross_entropy(net(x), labels).backward();
      optimizer.step();
    });
    add("module alone", [&] {
      const NoGrad off;
      net.module()(x);
    });
  }
  session.add(std::move(table));
}

void run(bench::Session& session) {
  std::vector<Device> devices = device_list.empty() ? accelerators() : parse_devices(device_list);
  if (device_list.empty() && devices.size() > 4) devices.resize(4);
  measure_empty_call(devices, session);
  measure_mlp(devices, session);
}

void options(CLI::App& app) {
  app.add_option("--devices", device_list, "Device list; default: the first four accelerators");
  app.add_option("--calls", calls, "Calls per run")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", batch, "Rows of the MLP's batch")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--width", width, "Width of the MLP")->check(CLI::PositiveNumber)->capture_default_str();
}

const bench::Subcommand command("engine", "Cost of a DataParallel call", options, run);

}  // namespace lockstep::engine_bench
