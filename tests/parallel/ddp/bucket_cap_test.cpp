// Which limit of buckets kAutoBucketCap chooses, that ranks agree on it, and that they do on all other options.
#include "lockstep/parallel/ddp/bucket_cap.h"

#include <cstdlib>
#include <filesystem>

#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "parallel/ddp/support.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using detail::BucketCapFacts;
using detail::choose_bucket_cap;
using detail::HostLink;

namespace {

constexpr std::size_t kMebibyte = 1 << 20, kUnit = 64 << 10;

// Set for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

struct Eight : Module<Eight> {
  std::vector<Parameter> all;
  Eight() {
    for (int i = 0; i < 8; ++i) all.emplace_back(zeros({160'000}));  // f32: 640,000 bytes
  }
  Tensor forward(const Tensor& x) const { return x; }
  void members(Members& m) override { m("all", all); }
};

std::vector<DdpLoggingData> wrapped(const DistributedDataParallelOptions& options) {
  return run_ranks(3, [&](Communicator& communicator) {
    return DistributedDataParallel<Eight>(Eight(), communicator, options).logging_data();
  });
}

}  // namespace

TEST_CASE("the chosen limit is where the last bucket and the start-ups of the others cost least together") {
  struct Case {
    BucketCapFacts facts;
    double start_us, gb_per_s;  // of an all_reduce, by the figures of the class
  };
  for (const Case& each :
       {Case{{102'228'128, 8, 1, {HostLink::nvlink, 25}}, 8.4 + 2 * 7 * 4, 232 * 8 / 14.0},
        // Between hosts the network is what is slow, and a tree of hosts has floor(log2(hosts)) steps up and down.
        Case{{102'228'128, 64, 8, {HostLink::nvlink, 3200}}, 8.4 + 2 * (7 * 4 + 3 * 18), 232 * 64 / 126.0},
        Case{{2'630'000'000, 64, 8, {HostLink::nvlink, 400}}, 8.4 + 2 * (7 * 4 + 3 * 18), 47 * 64 / 126.0},
        Case{{400'000'000, 20, 5, {HostLink::pcie, 25}}, 8.4 + 2 * (3 * 4 + 2 * 18), 2.9375 * 20 / 38.0},
        Case{{2'000'000'000, 4, 1, {HostLink::pcie, 25}}, 8.4 + 2 * 3 * 4, 15 * 4 / 6.0},
        Case{{2'000'000'000, 4, 1, {HostLink::memory, 25}}, 4 + 2 * 3 * 1, 9 * 4 / 6.0}}) {
    const double start = each.start_us * 1e-6, rate = each.gb_per_s * 1e9,
                 bytes = static_cast<double>(each.facts.bytes);
    const auto seconds = [&](std::size_t bucket) {
      const auto b = static_cast<double>(bucket);
      return start + b / rate + 16.0 / 132 * start * bytes / b;
    };
    const std::size_t chosen = choose_bucket_cap(each.facts);
    INFO(each.facts.ranks << " ranks on " << each.facts.hosts << " hosts: " << chosen);
    CHECK(chosen % kUnit == 0);
    CHECK(chosen > kMebibyte);
    CHECK(seconds(chosen) <= seconds(chosen - kUnit));
    CHECK(seconds(chosen) <= seconds(chosen + kUnit));
  }
}

TEST_CASE("the chosen limit has bounds") {
  CHECK(choose_bucket_cap({}) == kMebibyte);
  CHECK(choose_bucket_cap({.bytes = 1000, .ranks = 8, .hosts = 2, .links = {HostLink::pcie, 1}}) == kMebibyte);
  CHECK(choose_bucket_cap({.bytes = std::uint64_t{1} << 42, .ranks = 8, .links = {HostLink::nvlink, 25}}) ==
        256 * kMebibyte);
  for (const int hosts : {0, 9})
    CHECK(missing(message_of<InvalidArgument>([&] { choose_bucket_cap({.bytes = 1, .ranks = 8, .hosts = hosts}); }),
                  {cat("got ", hosts, " hosts and 8 ranks")}) == "");
}

TEST_CASE("the class of a host's links is NVLink where it joins all devices, be it over others") {
  CHECK(detail::host_link(Links(1)) == HostLink::nvlink);
  CHECK(detail::host_link(Links(8)) == HostLink::nvlink);  // a switch
  const auto all = [](std::size_t places, DeviceLink link) {
    Links links(places);
    for (std::size_t i = 0; i < places; ++i)
      for (std::size_t j = 0; j < places; ++j) links.at(i, j) = link;
    return links;
  };
  CHECK(detail::host_link(all(4, {.shared = true})) == HostLink::pcie);  // slots, and peers all the same
  CHECK(detail::host_link(all(2, {.speed = 0})) == HostLink::pcie);
  Links mesh = all(4, {.speed = 0});
  const auto join = [&](std::size_t a, std::size_t b) { mesh.at(a, b) = mesh.at(b, a) = {.speed = 0.5, .own = true}; };
  join(0, 2);
  join(3, 1);
  CHECK(detail::host_link(mesh) == HostLink::pcie);  // two pairs
  join(3, 2);
  CHECK(detail::host_link(mesh) == HostLink::nvlink);
}

TEST_CASE("what the system says of its network") {
  const lockstep::test::TemporaryFolder folder;
  const auto put = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path whole = folder / path;
    std::filesystem::create_directories(whole.parent_path());
    lockstep::test::write_bytes(whole.string(), text);
  };
  CHECK(detail::network_gbits(folder / "nothing") == 25);
  put("net/lo/speed", "");
  put("net/veth0/speed", "-1\n");
  CHECK(detail::network_gbits(folder.path()) == 25);
  put("net/eth0/speed", "1000\n");
  put("net/eth1/speed", "100000\n");
  CHECK(detail::network_gbits(folder.path()) == 100);
  put("infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  put("infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  CHECK(detail::network_gbits(folder.path()) == 100);
  put("infiniband/mlx5_1/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  put("infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n");
  put("infiniband/mlx5_2/ports/1/rate", "200 Gb/sec (4X HDR)\n");
  put("infiniband/mlx5_2/ports/1/state", "4: ACTIVE\n");
  CHECK(detail::network_gbits(folder.path()) == 600);
}

TEST_CASE("ranks that let the library choose have the limit that the links ask for, and buckets of it") {
  using Sizes = std::vector<std::uint64_t>;
  const std::uint64_t one = 640'000;
  const auto expect = [&](const std::vector<DdpLoggingData>& ranks, std::size_t cap, const Sizes& sizes) {
    for (const DdpLoggingData& data : ranks) {
      CHECK(data.bucket_cap_bytes == cap);
      CHECK(data.bucket_sizes == sizes);
    }
  };
  expect(wrapped({.bucket_cap_mb = kAutoBucketCap}), kMebibyte, Sizes{2 * one, 2 * one, 2 * one, 2 * one});
  expect(wrapped({}), 25 * kMebibyte, Sizes{2 * one, 6 * one});
  const Variable link("LOCKSTEP_HOST_LINK", "nvlink");
  // sqrt(16 / 132 * 24.4 us * 174 GB/s * 5.12 MB) is 24.8 times 64 KiB.
  expect(wrapped({.bucket_cap_mb = kAutoBucketCap}), 25 * kUnit, Sizes{2 * one, 3 * one, 3 * one});
  expect(wrapped({.bucket_cap_mb = kAutoBucketCap, .first_bucket_mb = 0.1}), 25 * kUnit,
         Sizes{one, 3 * one, 3 * one, one});
  // What is reduced in 16 bits is half as much: 17.5 times 64 KiB, of which gradients in f32 fill twice that.
  expect(wrapped({.bucket_cap_mb = kAutoBucketCap, .mixed_precision = {.reduce_dtype = DType::bf16}}), 36 * kUnit,
         Sizes{2 * one, 4 * one, 2 * one});
  expect(wrapped(MMDistributedDataParallelOptions{.bucket_cap_mb = kAutoBucketCap}.distributed()), 25 * kUnit,
         Sizes{2 * one, 3 * one, 3 * one});
}

TEST_CASE("what says how the ranks are joined, and cannot mean it, is refused on every rank") {
  struct Case {
    const char *name, *value;
  };
  for (const Case& each : {Case{"LOCKSTEP_HOST_LINK", "sli"}, Case{"LOCKSTEP_NETWORK_GBITS", "fast"},
                           Case{"LOCKSTEP_NETWORK_GBITS", "-25"}, Case{"LOCKSTEP_NETWORK_GBITS", "25 Gb/s"}}) {
    const Variable variable(each.name, each.value);
    const auto wrap = [](double cap) {
      return messages_of_ranks(2, [=](Communicator& communicator) {
        DistributedDataParallel<Eight>(Eight(), communicator, {.bucket_cap_mb = cap});
      });
    };
    for (const std::string& message : wrap(kAutoBucketCap))
      CHECK(missing(message, {each.name, cat("got '", each.value, "'")}) == "");
    CHECK(wrap(25) == std::vector<std::string>(2));  // nobody asks
  }
}

TEST_CASE("options that differ between ranks and may not are refused on every rank, with both values") {
  using Options = DistributedDataParallelOptions;
  struct Case {
    Options options;
    std::string mine, standard;
  };
  const std::vector<Case> cases = {
      {{.bucket_cap_mb = 24.5}, "bucket_cap_mb 24.5", "bucket_cap_mb 25"},
      {{.bucket_cap_mb = kAutoBucketCap}, "bucket_cap_mb auto", "bucket_cap_mb 25"},
      {{.first_bucket_mb = 2}, "first_bucket_mb 2", "first_bucket_mb 1"},
      {{.broadcast_buffers = false}, "broadcast_buffers false", "broadcast_buffers true"},
      {{.find_unused_parameters = true}, "find_unused_parameters true", "find_unused_parameters false"},
      {{.static_graph = true}, "static_graph true", "static_graph false"},
      {{.init_sync = false}, "init_sync false", "init_sync true"},
      {{.backwards_per_forward = 2}, "backwards_per_forward 2", "backwards_per_forward 1"},
      {{.mixed_precision = {.reduce_dtype = DType::f64}}, "reduces in f64", "reduces in the parameters' dtypes"},
      {{.mixed_precision = {.param_dtype = DType::bf16}}, "reduces in bf16", "reduces in the parameters' dtypes"}};
  for (const Case& each : cases)
    for (const int other : {0, 2}) {
      const auto messages = messages_of_ranks(3, [&](Communicator& communicator) {
        DistributedDataParallel<Mlp>(Mlp(), communicator, communicator.rank() == other ? each.options : Options{});
      });
      const std::string &first = other == 0 ? each.mine : each.standard,
                        &second = other == 0 ? each.standard : each.mine;
      for (const std::string& message : messages) {
        INFO(message);
        CHECK(missing(message, {"expected the same options on every rank", "on rank 0 ", first,
                                cat("on rank ", other == 0 ? 1 : 2, " "), second}) == "");
      }
    }
  // Without init_sync nobody compares the models, but options all the same.
  for (const std::string& message : messages_of_ranks(2, [&](Communicator& communicator) {
         DistributedDataParallel<Mlp>(Mlp(), communicator,
                                      {.bucket_cap_mb = 1.0 + communicator.rank(), .init_sync = false});
       }))
    CHECK(missing(message, {"on rank 0 bucket_cap_mb 1, on rank 1 bucket_cap_mb 2"}) == "");
}

TEST_CASE("options that are a rank's own may differ") {
  const auto ranks = run_ranks(2, [](Communicator& communicator) {
    const bool first = communicator.rank() == 0;
    DistributedDataParallelOptions options = small_buckets();
    options.gradient_as_bucket_view = first;
    if (first) options.timeout = Milliseconds(50'000);
    options.mixed_precision = {.reduce_dtype = DType::f32};
    if (!first) options.mixed_precision.buffer_dtype = DType::f32;
    DistributedDataParallel<Mlp> net(Mlp(), communicator, options);
    SGD optimizer(net.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(net(share(batch(step, 2, DType::f64, communicator.device()), communicator.rank()))).backward();
      optimizer.step();
    }
    return all_parameters(net.module());
  });
  CHECK(different(ranks) == 0);
}
