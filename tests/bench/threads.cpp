// How much of a network's time is divided among the threads of a device, and how much is not.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "networks.h"
#include "subcommand.h"

namespace lockstep::threads_bench {

using namespace bench::networks;

int images = 32;
std::vector<int> cores{2, 4, 8, 16};

// The pieces of kernels, computed one after another and timed: what is not among them no other thread could have
// done. One thread computes all.
struct Divided {
  double seconds = 0;
  std::int64_t calls = 0;

  void operator()(std::int64_t count, const std::function<void(std::int64_t)>& piece) {
    const auto begin = bench::Clock::now();
    for (std::int64_t i = 0; i < count; ++i) piece(i);
    seconds += bench::seconds_since(begin);
    ++calls;
  }
};
Divided divided;

// Steps of one network, ready to be taken.
struct Work {
  std::string network, what;
  std::function<std::function<void()>()> make;
};

template <class Net>
void add_works(std::vector<Work>& works, const std::string& name, std::function<Net()> make, std::function<Tensor()> x,
               std::function<Tensor()> targets) {
  works.push_back({name, "training", [=]() -> std::function<void()> {
                     const auto net = std::make_shared<Net>(make());
                     net->to(Device::host(0));
                     const auto optimizer =
                         std::make_shared<SGD>(net->parameters(), SgdOptions{.lr = 1e-3, .momentum = 0.9});
                     return [net, optimizer, images = x(), targets = targets()] {
                       optimizer->zero_grad();
                       loss_of((*net)(images), targets).backward();
                       optimizer->step();
                     };
                   }});
  works.push_back({name, "inference", [=]() -> std::function<void()> {
                     Net net = make();
                     net.to(Device::host(0));
                     net.eval();
                     return [fast = prepare(net), images = x()] {
                       const InferenceMode inside;
                       fast(images);
                     };
                   }});
}

std::vector<Work> all_works() {
  const Device device = Device::host(0);
  const auto normal = [device](Shape shape) { return [=] { return randn(shape, {.device = device}); }; };
  const auto classes = [device](Shape shape, std::int64_t below) {
    return [=] { return randint(0, below, shape, {.device = device}); };
  };
  const std::int64_t n = images;
  std::vector<Work> works;
  add_works<Sequential>(works, "mlp", mlp, normal({8 * n, 784}), classes({8 * n}, 10));
  add_works<Sequential>(works, "cnn", cnn, normal({n, 3, 32, 32}), classes({n}, 10));
  add_works<Sequential>(works, "resnet", resnet, normal({n, 3, 64, 64}), classes({n}, 10));
  add_works<Sequential>(works, "mobile", mobile, normal({n, 3, 64, 64}), classes({n}, 10));
  add_works<Gpt>(
      works, "gpt", [] { return Gpt(); }, classes({n, Gpt::kLength}, Gpt::kWords),
      classes({n, Gpt::kLength}, Gpt::kWords));
  add_works<Lstm>(
      works, "lstm", [] { return Lstm(); }, normal({n, 64, 128}), classes({n}, 10));
  return works;
}

// Amdahl (1967): with `count` threads that lose nothing else.
double most_times_faster(double serial, int count) { return 1 / (serial + (1 - serial) / count); }

void run(bench::Session& session) {
  std::vector<std::string> columns{"network", "work", "ms on one thread", "divided calls", "serial share"};
  for (const int count : cores) columns.push_back(cat("bound on ", count));
  bench::Table table("serial",
                     "what one thread alone can do, as a share of its time; by how much more threads can be faster "
                     "(Amdahl's law)",
                     std::move(columns), 2);
  bool first = true;
  for (const Work& work : all_works()) {
    if (!session.wants("serial", cat(work.network, ' ', work.what))) continue;
    if (std::exchange(first, false)) {
      configure_host(
          {.mode = HostMode::inlined, .parallel_for = [](auto count, const auto& piece) { divided(count, piece); }});
      set_threads(std::max(2, *std::max_element(cores.begin(), cores.end())));  // with 1 nothing would be divided
      manual_seed(1);
    }
    const auto step = work.make();
    step();
    std::vector<double> shares;
    std::int64_t calls = 0;
    const bench::Samples milliseconds = session
                                            .seconds_per_call(
                                                [&](std::int64_t count) {
                                                  divided = {};
                                                  const auto begin = bench::Clock::now();
                                                  for (std::int64_t i = 0; i < count; ++i) step();
                                                  const double seconds = bench::seconds_since(begin);
                                                  shares.push_back(1 - divided.seconds / seconds);
                                                  calls = divided.calls / count;
                                                  return seconds;
                                                },
                                                0.1)
                                            .times(1e3);
    const bench::Samples serial(shares);
    std::vector<bench::Table::Cell> row{work.network, work.what, milliseconds, calls,
                                        bench::Table::Cell::decimals(serial.median(), 3)};
    for (const int count : cores)
      row.push_back(bench::Table::Cell::decimals(most_times_faster(serial.median(), count), 2));
    table.add(std::move(row));
  }
  session.add(std::move(table));
}

const bench::Subcommand threads(
    "threads", "What part of a network's time the threads of a device share, and what part one thread alone",
    [](CLI::App& app) {
      app.add_option("--images", images, "Images, texts or series of a batch; the mlp has 8 times as many rows")
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
      app.add_option("--cores", cores, "Counts of threads to say the bound for")
          ->delimiter(',')
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
    },
    run);

}  // namespace lockstep::threads_bench
