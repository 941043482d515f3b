// What DistributedDataParallel costs beside the module's own step, and how far its communication, or that of
// FullyShardedDataParallel, hides behind the computation.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "subcommand.h"

namespace lockstep::ddp_bench {

constexpr int kRounds = 15;
int ranks = 2;
std::int64_t width = 512, batch = 64, layers = 6;
double megabytes_per_second = 200;
double bucket_mb = 1;
std::string wrapper = "ddp";

struct Net : Module<Net> {
  std::vector<Linear> stack;
  Net() {
    for (std::int64_t i = 0; i < layers; ++i) stack.emplace_back(width, width);
  }
  Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const Linear& layer : stack) y = relu(layer(y));
    return y;
  }
  void members(Members& m) override { m("stack", stack); }
};

// Milliseconds of a step in each round.
template <class Body>
bench::Samples milliseconds(int runs, Communicator& communicator, Body&& body) {
  std::vector<double> times;
  for (int round = -1; round < runs; ++round) {
    communicator.barrier();
    const auto begin = bench::Clock::now();
    body();
    synchronize(current_stream(communicator.device()));
    if (round >= 0) times.push_back(bench::seconds_since(begin) * 1e3);
  }
  return bench::Samples(std::move(times));
}

template <class M>
void step(const M& net, const Tensor& x, Optimizer& optimizer) {
  optimizer.zero_grad();
  mean(square(net(x))).backward();
  optimizer.step();
}

// One rank: what the wrapper itself takes. By turns, so that both see the same machine.
void measure_own_cost(bench::Session& session) {
  if (!session.wants("own_cost", "step")) return;
  const int runs = session.repetitions(kRounds);
  run_ranks(1, [&](Communicator& communicator) {
    Net plain;
    plain.to(communicator.device());
    DistributedDataParallel<Net> wrapped(deep_copy(plain), communicator);
    SGD plain_optimizer(plain.parameters(), {.lr = 1e-3}), wrapped_optimizer(wrapped.parameters(), {.lr = 1e-3});
    const Tensor x = randn({batch, width}, {.device = communicator.device()});
    std::vector<double> without, with, ratios;
    for (int round = -2; round < 4 * runs; ++round) {
      const auto four_steps = [&](const auto& net, Optimizer& optimizer) {
        const auto begin = bench::Clock::now();
        for (int i = 0; i < 4; ++i) step(net, x, optimizer);
        return bench::seconds_since(begin) * 1e3 / 4;
      };
      const double a = four_steps(plain, plain_optimizer), b = four_steps(wrapped, wrapped_optimizer);
      if (round < 0) continue;
      without.push_back(a), with.push_back(b), ratios.push_back(b / a);
    }
    bench::Table table("own_cost", "A training step on one rank, ms (at most 1.02 is wanted)",
                       {"what", "module", "wrapped", "ratio"});
    table.add({"step", bench::Samples(without), bench::Samples(with), bench::Samples(ratios)});
    session.add(table);
  });
}

std::vector<std::unique_ptr<Communicator>> peers(std::span<const Device> devices, Milliseconds timeout) {
  return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
}

// Links between the devices are slow, and copies over them take no core: as on a machine with a slow network.
void measure_overlap(bench::Session& session) {
  const int runs = session.repetitions(kRounds);
  struct Times {
    bench::Samples local, communication, step;
    double bucket;
  };
  const auto all =
      run_ranks(ranks,
                [&](Communicator& communicator) {
                  Net module;
                  DistributedDataParallel<Net> net(std::move(module), communicator,
                                                   {.bucket_cap_mb = bucket_mb, .first_bucket_mb = bucket_mb});
                  SGD optimizer(net.parameters(), {.lr = 1e-3});
                  const Tensor x = randn({batch, width}, {.device = communicator.device()});
                  for (int i = 0; i < 3; ++i) step(net, x, optimizer);
                  std::vector<Tensor> buckets;
                  double largest = 0;
                  for (const std::uint64_t bytes : net.logging_data().bucket_sizes) {
                    buckets.push_back(zeros({static_cast<std::int64_t>(bytes / 4)}, {.device = communicator.device()}));
                    largest = std::max(largest, static_cast<double>(bytes));
                  }
                  Times times{};
                  times.local = milliseconds(runs, communicator, [&] {
                    const NoSync local = net.no_sync();
                    step(net, x, optimizer);
                  });
                  times.communication = milliseconds(runs, communicator, [&] {
                    for (const Tensor& bucket : buckets) communicator.all_reduce(bucket);
                  });
                  times.bucket = times.communication.median() / static_cast<double>(buckets.size());
                  times.step = milliseconds(runs, communicator, [&] { step(net, x, optimizer); });
                  return times;
                },
                {.make = peers});
  bench::Table table(
      "overlap",
      "A step over slow links, ms (host mode async; sequential: computing + communicating; overlapped: the larger + a "
      "bucket)",
      {"rank", "computing", "communicating", "a bucket", "sequential", "overlapped", "measured"});
  for (std::size_t r = 0; r < all.size(); ++r)
    table.add({r, all[r].local.median(), all[r].communication.median(), all[r].bucket,
               all[r].local.median() + all[r].communication.median(),
               std::max(all[r].local.median(), all[r].communication.median()) + all[r].bucket, all[r].step});
  session.add(table);
}

// The same for parameters that are gathered for each layer and gradients that are scattered: three times as many bytes
// as the layers have, on each link, in place of two.
void measure_sharded_overlap(bench::Session& session) {
  const int runs = session.repetitions(kRounds);
  struct Times {
    bench::Samples local, communication, step, unhidden;
  };
  const auto all = run_ranks(
      ranks,
      [&](Communicator& communicator) {
        const Tensor x = randn({batch, width}, {.device = communicator.device()});
        Net plain;
        plain.to(communicator.device());
        SGD plain_optimizer(plain.parameters(), {.lr = 1e-3});
        const auto sharded = [&](bool prefetch) {
          FullyShardedDataParallel net(Net(), communicator, {.wrap = wrap_modules<Linear>(), .prefetch = prefetch});
          SGD optimizer(net.parameters(), {.lr = 1e-3});
          for (int i = 0; i < 3; ++i) step(net, x, optimizer);
          return milliseconds(runs, communicator, [&] { step(net, x, optimizer); });
        };
        Times times{};
        for (int i = 0; i < 3; ++i) step(plain, x, plain_optimizer);
        times.local = milliseconds(runs, communicator, [&] { step(plain, x, plain_optimizer); });
        const std::int64_t part = (width * width + width + communicator.size() - 1) / communicator.size();
        const Tensor own = zeros({part}, {.device = communicator.device()});
        const Tensor whole = zeros({part * communicator.size()}, {.device = communicator.device()});
        times.communication = milliseconds(runs, communicator, [&] {
          for (std::int64_t layer = 0; layer < layers; ++layer) {
            communicator.all_gather(own, whole);  // for the forward, and for the backward
            communicator.all_gather(own, whole);
            communicator.reduce_scatter(whole, own);
          }
        });
        times.unhidden = sharded(false);
        times.step = sharded(true);
        return times;
      },
      {.make = peers});
  bench::Table table("overlap",
                     "A step of sharded layers over slow links, ms (host mode async; sequential: computing + "
                     "communicating; overlapped: the larger + a layer's communication)",
                     {"rank", "computing", "communicating", "sequential", "overlapped", "no prefetch", "measured"});
  for (std::size_t r = 0; r < all.size(); ++r) {
    const double computing = all[r].local.median(), moving = all[r].communication.median();
    table.add({r, computing, moving, computing + moving,
               std::max(computing, moving) + moving / static_cast<double>(layers), all[r].unhidden, all[r].step});
  }
  session.add(table);
}

const bench::Subcommand cost(
    "ddp", "A training step with DistributedDataParallel on one rank, against the module's own",
    [](CLI::App& app) {
      app.add_option("--width", width, "Of the layers")->capture_default_str();
      app.add_option("--batch", batch, "Rows per rank")->capture_default_str();
      app.add_option("--layers", layers, "Of the network")->capture_default_str();
    },
    measure_own_cost);
const bench::Subcommand overlap(
    "overlap", "A training step over slowed links: how much of the communication the computation hides",
    [](CLI::App& app) {
      app.add_option("--ranks", ranks, "Ranks, a host device each")->capture_default_str();
      app.add_option("--bandwidth", megabytes_per_second, "Of every link, MB/s")->capture_default_str();
      app.add_option("--bucket", bucket_mb, "Size of the ddp wrapper's buckets, MiB")->capture_default_str();
      app.add_option("--wrapper", wrapper, "ddp, or fsdp: parameters sharded layer by layer")
          ->check(CLI::IsMember({"ddp", "fsdp"}))
          ->capture_default_str();
      app.add_option("--width", width, "Of the layers")->capture_default_str();
      app.add_option("--batch", batch, "Rows per rank")->capture_default_str();
      app.add_option("--layers", layers, "Of the network")->capture_default_str();
    },
    [](bench::Session& session) {
      if (!session.wants("overlap", "step")) return;
      configure_host({.devices = std::max(2, ranks),
                      .mode = HostMode::async,
                      .bandwidth_bytes_per_second = static_cast<std::size_t>(megabytes_per_second * 1e6)});
      wrapper == "fsdp" ? measure_sharded_overlap(session) : measure_overlap(session);
    });

}  // namespace lockstep::ddp_bench
