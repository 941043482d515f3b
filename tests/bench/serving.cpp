// What a pool of replicas gives to clients beside what its replicas could do: the same batches, in a loop on each
// device.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "networks.h"
#include "subcommand.h"

namespace lockstep::serving_bench {

using namespace bench::networks;

std::string device_list = "host:0,host:1";
int clients = 8;
int outstanding = 16;
std::int64_t batch = 16;
std::int64_t window = 500;

struct Round {
  double seconds = 0;
  std::vector<double> latencies;  // seconds: of a request, of a bare batch
};

// Each of `count` threads does `body(thread)`.
double in_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  const auto begin = bench::Clock::now();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
  return bench::seconds_since(begin);
}

// Batches that are joined already, as many as all devices together want, each there and back.
Round run_bare(const std::vector<Replica<Sequential>>& replicas, const Tensor& image, std::int64_t samples) {
  std::vector<Tensor> images(static_cast<std::size_t>(batch), image);
  const Tensor joined = cat(images, 0);
  std::atomic<std::int64_t> left{samples};
  std::vector<std::vector<double>> latencies(replicas.size());
  Round round;
  round.seconds = in_threads(replicas.size(), [&](std::size_t i) {
    const InferenceMode inside;
    const TrainingScope evaluation(false);
    while (left.fetch_sub(batch) > 0) {
      const auto begin = bench::Clock::now();
      replicas[i](joined.to(replicas[i].device())).to(Device::cpu());
      latencies[i].push_back(bench::seconds_since(begin));
    }
  });
  for (const auto& of : latencies) round.latencies.insert(round.latencies.end(), of.begin(), of.end());
  return round;
}

// Requests of one image each, of which every client waits for so many.
Round run_pool(ReplicaPool<Sequential, Tensor(const Tensor&)>& pool, const Tensor& image, std::int64_t samples) {
  std::vector<std::vector<double>> latencies(static_cast<std::size_t>(clients));
  Round round;
  round.seconds = in_threads(static_cast<std::size_t>(clients), [&](std::size_t client) {
    struct Sent {
      Answer<Tensor> answer;
      bench::Clock::time_point at;
    };
    std::deque<Sent> sent;
    const auto settle = [&] {
      sent.front().answer.get();
      latencies[client].push_back(bench::seconds_since(sent.front().at));
      sent.pop_front();
    };
    for (std::int64_t i = 0; i < samples / clients; ++i) {
      sent.push_back({pool.submit(image), bench::Clock::now()});
      if (sent.size() == static_cast<std::size_t>(outstanding)) settle();
    }
    while (!sent.empty()) settle();
  });
  for (const auto& of : latencies) round.latencies.insert(round.latencies.end(), of.begin(), of.end());
  return round;
}

double busy_seconds(const ReplicaPoolStats& stats) {
  double seconds = 0;
  for (const ReplicaStats& replica : stats.replicas) seconds += replica.busy_seconds;
  return seconds;
}

void run(bench::Session& session) {
  struct Network {
    const char* name;
    std::function<Sequential()> make;
    Shape image;
  };
  bench::Table table("pool",
                     cat("requests of one image from ", clients, " clients, each waiting for ", outstanding,
                         ", in batches of at most ", batch, "; ratio: images per second beside those of bare replicas"),
                     {"network", "images/s", "bare images/s", "ratio", "busy", "mean batch", "median ms", "99% ms",
                      "bare batch, 99% ms"});
  for (const Network& network : {Network{"mlp", mlp, {1, 784}}, Network{"cnn", cnn, {1, 3, 32, 32}}}) {
    if (!session.wants("pool", network.name)) continue;
    const std::vector<Device> devices = parse_devices(device_list);
    manual_seed(1);
    Sequential net = network.make();
    net.to(devices[0]);
    net.eval();
    const Tensor image = randn(network.image);
    const auto replicas = replicate(net, devices);
    ReplicaPool<Sequential, Tensor(const Tensor&)> pool(
        net, {.devices = devices,
              .max_batch_samples = batch,
              .max_delay = std::chrono::microseconds(window),
              .max_queued = static_cast<std::size_t>(clients * outstanding)});
    // Turns of a second or so each.
    const std::int64_t tried = batch * 20;
    const double least = session.settings().min_seconds > 0 ? session.settings().min_seconds : 1;
    const double one = run_bare(replicas, image, tried).seconds;
    run_pool(pool, image, tried);
    const std::int64_t samples = std::max<std::int64_t>(
        batch * clients, static_cast<std::int64_t>(least / one * static_cast<double>(tried)) / batch * batch);
    std::vector<double> rates, bare_rates, ratios, busy, latencies, bare_latencies, batches;
    for (int i = 0; i < session.repetitions(5); ++i) {
      const Round bare = run_bare(replicas, image, samples);
      const ReplicaPoolStats before = pool.stats();
      const Round served = run_pool(pool, image, samples);
      const ReplicaPoolStats after = pool.stats();
      const auto answered = static_cast<double>(after.answered - before.answered);
      rates.push_back(answered / served.seconds);
      bare_rates.push_back(static_cast<double>(samples) / bare.seconds);
      ratios.push_back(rates.back() / bare_rates.back());
      busy.push_back((busy_seconds(after) - busy_seconds(before)) / served.seconds /
                     static_cast<double>(devices.size()));
      batches.push_back(answered / static_cast<double>(after.batch_samples.count - before.batch_samples.count));
      latencies.insert(latencies.end(), served.latencies.begin(), served.latencies.end());
      bare_latencies.insert(bare_latencies.end(), bare.latencies.begin(), bare.latencies.end());
    }
    const bench::Samples waits(std::move(latencies)), bare_waits(std::move(bare_latencies));
    using Cell = bench::Table::Cell;
    table.add({network.name, bench::Samples(rates), bench::Samples(bare_rates),
               Cell::decimals(bench::Samples(ratios).median(), 2), Cell::decimals(bench::Samples(busy).median(), 2),
               Cell::decimals(bench::Samples(batches).median(), 1), Cell::decimals(waits.median() * 1e3, 2),
               Cell::decimals(waits.percentile(99) * 1e3, 2), Cell::decimals(bare_waits.percentile(99) * 1e3, 2)});
  }
  session.add(std::move(table));
}

const bench::Subcommand serving(
    "serving", "What a pool of replicas gives to clients, beside its replicas alone",
    [](CLI::App& app) {
      app.add_option("--devices", device_list, "The replicas' devices, as in LOCKSTEP_DEVICES")->capture_default_str();
      app.add_option("--clients", clients, "Threads that send requests")
          ->check(CLI::Range(1, 1024))
          ->capture_default_str();
      app.add_option("--outstanding", outstanding, "Requests that each client waits for")
          ->check(CLI::Range(1, 4096))
          ->capture_default_str();
      app.add_option("--batch", batch, "Images of a batch, at most")->check(CLI::Range(1, 4096))->capture_default_str();
      app.add_option("--window", window, "Microseconds that a batch waits for more while a replica is idle")
          ->check(CLI::Range(0, 1000000))
          ->capture_default_str();
    },
    run);

}  // namespace lockstep::serving_bench
