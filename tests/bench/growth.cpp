// What a parameter costs in small models and in models of very many parameters: it is to cost the same.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "subcommand.h"

namespace lockstep::growth_bench {

std::vector<std::int64_t> sizes{500, 5'000, 20'000, 100'000};
std::vector<int> workers{2, 4};
std::int64_t elements = 4;
bool wall = false;

// Processor time of all threads unless --wall says otherwise: what runs beside the benchmark is not to look like
// growth.
double now() {
  timespec time;
  clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// As deep as it has parameters, each of which is used by one operation.
struct Chain : Module<Chain> {
  std::vector<Parameter> weights;

  explicit Chain(std::int64_t count, Device device = accelerators()[0]) {
    for (std::int64_t i = 0; i < count; ++i) weights.emplace_back(ones({1, elements}, {.device = device}));
  }
  Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const Parameter& weight : weights) y = y * weight.on(x.device());
    return y;
  }
  // One operation that uses all of them.
  Tensor joined() const {
    std::vector<Tensor> all;
    for (const Parameter& weight : weights) all.push_back(weight.on(weight.device()));
    return cat(all, 0);
  }
  void members(Members& m) override { m("weights", weights); }
};

// The table, and how to measure its rows.
class Growth {
 public:
  explicit Growth(bench::Session& session) : session_(session) {}

  bool wants(const std::string& what, std::int64_t count) { return session_.wants("cost", cat(what, ", ", count)); }

  // What `before` makes is given to `body`, which alone is timed.
  template <class Before, class Body>
  void measure(const std::string& what, std::int64_t count, Before before, Body body) {
    if (!wants(what, count)) return;
    const auto run = [&](std::int64_t calls) {
      double seconds = 0;
      for (std::int64_t i = 0; i < calls; ++i) {
        auto prepared = before();
        const double begin = now();
        body(prepared);
        seconds += now() - begin;
      }
      return seconds;
    };
    run(1);
    add(what, count, session_.seconds_per_call(run, kSampleSeconds));
  }
  template <class Body>
  void measure(const std::string& what, std::int64_t count, Body body) {
    measure(
        what, count, [] { return 0; }, [&](int) { body(); });
  }

  // Seconds of a call that deals with `count` parameters.
  void add(const std::string& what, std::int64_t count, const bench::Samples& seconds) {
    const bench::Samples each = seconds.times(1e6 / static_cast<double>(count));
    const double first = smallest_.emplace(what, each.min()).first->second;
    rows_[what].push_back({what, count, each, each.min() / first});
    if (std::find(order_.begin(), order_.end(), what) == order_.end()) order_.push_back(what);
  }

  int repetitions() const { return session_.repetitions(kRepetitions); }
  // As often as makes a sample long enough, without asking the clock: all ranks must agree.
  static int calls(std::int64_t count) { return static_cast<int>(std::max<std::int64_t>(1, 10'000 / count)); }

  void finish() {
    bench::Table table("cost",
                       cat("What a parameter costs, microseconds ", wall ? "by the clock" : "of the processors",
                           " (growth: of the minima, to the smallest model's)"),
                       {"what", "parameters", "microseconds", "growth"});
    for (const std::string& what : order_)
      for (auto& row : rows_[what]) table.add(row);
    session_.add(std::move(table));
  }

 private:
  static constexpr double kSampleSeconds = 0.02;
  static constexpr int kRepetitions = 9;
  bench::Session& session_;
  std::vector<std::string> order_;
  std::map<std::string, double> smallest_;
  std::map<std::string, std::vector<std::vector<bench::Table::Cell>>> rows_;
};

void measure_module(std::int64_t count, Growth& growth) {
  growth.measure("construct a module", count, [&] { const Chain net(count); });
  Chain net(count);
  growth.measure("list its parameters", count, [&] { net.parameters(); });
  growth.measure("state_dict", count, [&] { net.state_dict(); });
  growth.measure(
      "load_state_dict", count, [&] { return deep_copy(net).state_dict(); },
      [&](const std::vector<NamedTensor>& state) { net.load_state_dict(state); });
  growth.measure("deep_copy", count, [&] { deep_copy(net); });
  growth.measure(
      "move to another device", count, [&] { return Chain(count, Device::cpu()); },
      [&](Chain& moved) { moved.to(accelerators()[0]); });
}

void measure_graph(std::int64_t count, Growth& growth) {
  const Device device = accelerators()[0];
  const Tensor x = ones({1, elements}, {.device = device});
  Chain net(count);
  Tensor y;
  growth.measure(
      "forward of a chain", count, [&] { return y = Tensor(), 0; }, [&](int) { y = net(x); });
  growth.measure(
      "backward of a chain", count, [&] { return sum(net(x)); }, [](const Tensor& loss) { loss.backward(); });
  growth.measure(
      "end of its graph", count, [&] { return sum(net(x)); }, [](Tensor& loss) { loss = Tensor(); });
  growth.measure(
      "grad of a chain", count,
      [&] {
        std::vector<Tensor> inputs;
        for (const Parameter& weight : net.weights) inputs.push_back(weight.tensor());
        return std::pair(sum(net(x)), inputs);
      },
      [](const auto& graph) { grad(std::span(&graph.first, 1), graph.second); });
  growth.measure(
      "backward of one operation", count, [&] { return sum(net.joined()); },
      [](const Tensor& loss) { loss.backward(); });
  // Elements given to a parameter alone, as a file is read.
  const Tensor value = ones({1, elements});
  Chain filled(count);
  growth.measure("assign one by one", count, [&] {
    for (const Parameter& weight : filled.weights) weight.assign(value);
  });
  growth.measure(
      "forward after that", count, [&] { return y = Tensor(), 0; }, [&](int) { y = filled(x); });
}

void measure_optimizers(std::int64_t count, Growth& growth) {
  const Device device = accelerators()[0];
  Chain net(count);
  sum(net(ones({1, elements}, {.device = device}))).backward();
  growth.measure("construct an optimizer", count, [&] { SGD(net.parameters(), {.lr = 1e-9, .momentum = 0.9}); });
  SGD sgd(net.parameters(), {.lr = 1e-9, .momentum = 0.9});
  growth.measure("step of SGD", count, [&] { sgd.step(); });
  Adam adam(net.parameters(), {.lr = 1e-9});
  growth.measure("step of Adam", count, [&] { adam.step(); });
  growth.measure("clip_grad_norm", count, [&] { clip_grad_norm(net.parameters(), 1e9); });
  growth.measure("zero_grad", count, [&] { sgd.zero_grad(); });
}

// A replica that runs a backward of its own.
struct Training {
  Replica<Chain> replica;
  Device device() const { return replica.device(); }
  void operator()(const Tensor& x) const { sum(replica(x)).backward(); }
};

void measure_data_parallel(std::int64_t count, Growth& growth) {
  for (const int devices : workers) {
    const auto what = [&](const char* phase) { return cat(phase, " on ", devices, " devices"); };
    const std::vector<Device> all = accelerators();
    if (static_cast<std::size_t>(devices) > all.size()) continue;
    const std::vector<Device> set(all.begin(), all.begin() + devices);
    growth.measure(
        what("first call"), count, [&] { return DataParallel(Chain(count), {.devices = set}); },
        [&](const auto& net) {
          const NoGrad off;
          net(ones({devices, elements}, {.device = set[0]}));
        });
    const auto net = DataParallel(Chain(count), {.devices = set});
    const Tensor x = ones({devices, elements}, {.device = set[0]});
    const auto call = [&] { return sum(net(x)); };
    const auto change = [&] {
      const NoGrad off;
      for (const Parameter& weight : net.module().weights) weight.tensor().mark_changed();
      return 0;
    };
    growth.measure(what("replicate"), count, change, [&](int) { replicate(net.module(), set); });
    growth.measure(what("forward and backward"), count, change, [&](int) { call().backward(); });
    growth.measure(what("backward"), count, call, [](const Tensor& loss) { loss.backward(); });
    std::vector<Training> trainings;
    for (const Replica<Chain>& replica : replicate(net.module(), set)) trainings.push_back({replica});
    std::vector<Tensor> inputs;
    for (const Device device : set) inputs.push_back(ones({1, elements}, {.device = device}));
    growth.measure(what("backward in the replicas"), count, [&] { parallel_apply(trainings, inputs); });
  }
}

void measure_ddp(std::int64_t count, Growth& growth) {
  for (const int ranks : workers) {
    const auto what = [&](const char* phase) { return cat(phase, " of ", ranks, " DDP ranks"); };
    // By turns, so that no rank is in the next call while another is in this one.
    const auto measure = [&](const std::string& name, const auto& make) {
      if (!growth.wants(name, count)) return;
      const auto seconds = run_ranks(ranks, [&](Communicator& communicator) {
        const auto call = make(communicator);
        std::vector<double> times;
        for (int round = -1; round < growth.repetitions(); ++round) {
          communicator.barrier();
          const double begin = now();
          for (int i = 0; i < Growth::calls(count); ++i) call();
          synchronize(current_stream(communicator.device()));
          communicator.barrier();
          if (round >= 0) times.push_back((now() - begin) / Growth::calls(count));
        }
        return times;
      });
      growth.add(name, count, bench::Samples(seconds[0]));
    };
    measure(what("construction"), [&](Communicator& communicator) {
      return [&communicator, count] {
        DistributedDataParallel<Chain> net(Chain(count, communicator.device()), communicator);
      };
    });
    const auto steps = [&](DistributedDataParallelOptions options) {
      return [&, options](Communicator& communicator) {
        auto net = std::make_shared<DistributedDataParallel<Chain>>(Chain(count, communicator.device()), communicator,
                                                                    options);
        const Tensor x = ones({1, elements}, {.device = communicator.device()});
        return [net, x] { sum((*net)(x)).backward(); };
      };
    };
    measure(what("forward and backward"), steps({}));
    measure(what("forward and backward, looking for unused ones,"), steps({.find_unused_parameters = true}));
  }
}

void run(bench::Session& session) {
  std::sort(sizes.begin(), sizes.end());
  if (!session.settings().list) configure_host({.devices = *std::max_element(workers.begin(), workers.end())});
  Growth growth(session);
  for (const std::int64_t count : sizes) {
    measure_module(count, growth);
    measure_graph(count, growth);
    measure_optimizers(count, growth);
    measure_data_parallel(count, growth);
    measure_ddp(count, growth);
  }
  growth.finish();
}

void options(CLI::App& app) {
  app.add_option("--sizes", sizes, "Numbers of parameters")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--elements", elements, "Of each parameter")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--wall", wall, "Time by the clock on the wall, and not of the processors");
  app.add_option("--workers", workers, "Numbers of devices of DataParallel, and of ranks that are threads")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

const bench::Subcommand command("growth", "What a parameter costs, in small models and in large ones", options, run);

}  // namespace lockstep::growth_bench
