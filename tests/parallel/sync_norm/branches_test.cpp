// Norms that share statistics in modules with branches, and under the options of their wrapper.
#include <optional>

#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "parallel/ddp/scenarios.h"
#include "parallel/sync_norm/support.h"

using namespace parallel_test;

namespace {

// Two norms that do not depend on each other.
struct NormBranches : Module<NormBranches> {
  Affine a{3, static_cast<int>(kChannels), 1}, b{3, static_cast<int>(kChannels), 2};
  BatchNorm1d norm{kChannels}, other{kChannels};
  NormBranches() { norm.to(DType::f64), other.to(DType::f64); }
  Tensor forward(const Tensor& x) const { return norm(a(x)) + other(b(x)); }
  void members(Members& m) override { m("a", a), m("b", b), m("norm", norm), m("other", other); }
};

Tensor loss_of_branches(const Tensor& y) { return mean(tanh(y) * y); }

Doubles gradients_of(const ModuleBase& module) {
  Doubles all;
  for (const Parameter& parameter : module.parameters())
    for (const double value : wide_values(parameter.grad())) all.push_back(value);
  return all;
}

template <class Net, class Input>
void train(Net& net, SGD& optimizer, const Input& input) {
  for (int i = 0; i < 6; ++i) {
    const bool stays = i % 2 == 0;
    {
      [[maybe_unused]] const auto scope = stays ? std::optional(hold(net)) : std::nullopt;
      loss_of_branches(net(input(i))).backward();
    }
    if (!stays) optimizer.step(), optimizer.zero_grad();
  }
}

}  // namespace

TEST_CASE("norms in parallel branches share the statistics of all replicas") {
  for (const int devices : {2, 3}) {
    support::needs_devices(devices);
    const Device home = first_devices(devices)[0];
    NormBranches whole;
    whole.to(home);
    DataParallel<NormBranches> net(NormBranches{}, {.devices = first_devices(devices)});
    convert_replica_batchnorm(net);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = noise({7, 3}, 40 + static_cast<std::uint64_t>(step), home);
      whole.zero_grad(), net.zero_grad();
      const Tensor wanted = whole(x), got = net(x);
      CHECK(largest_difference(got.detach().to(Device::cpu()), wanted.detach().to(Device::cpu())) < 1e-10);
      loss_of_branches(wanted).backward(), loss_of_branches(got).backward();
      CHECK(distance(gradients_of(net), gradients_of(whole)) < 1e-10);
    }
    CHECK(distance(state_of(net), state_of(whole)) < 1e-10);
  }
}

TEST_CASE("norms that ranks share train as one, in each option of the wrapper, with gradients that accumulate") {
  const std::pair<DistributedDataParallelOptions, double> variants[] = {
      {{}, 1e-10},
      {{.broadcast_buffers = false, .static_graph = true}, 1e-10},
      {{.find_unused_parameters = true, .gradient_as_bucket_view = false}, 1e-10},
      {{.mixed_precision = {.param_dtype = DType::f32}}, 1e-4}};
  NormBranches whole;
  SGD optimizer(whole.parameters(), {.lr = 0.1});
  train(whole, optimizer, [](int i) { return batch(i, 2, DType::f64, Device::cpu()); });
  for (const auto& [options, tolerance] : variants) {
    INFO("static graph " << options.static_graph << ", unused " << options.find_unused_parameters << ", mixed "
                         << options.mixed_precision.on());
    const auto result = run_ranks(2, [options = options](Communicator& communicator) {
      DistributedDataParallel<NormBranches> net(NormBranches{}, communicator, options);
      convert_sync_batchnorm(net, communicator);
      SGD own(net.parameters(), {.lr = 0.1});
      train(net, own,
            [&](int i) { return share(batch(i, 2, DType::f64, communicator.device()), communicator.rank()); });
      return all_parameters(net.module());
    });
    CHECK(different(result) == 0);
    CHECK(largest_difference(result[0], all_parameters(whole)) < tolerance);
  }
}

namespace {

// Before the norm, or behind it, some ranks have a layer that the others have not.
struct Detour : Module<Detour> {
  Affine first{3, static_cast<int>(kChannels), 1}, head{static_cast<int>(kChannels), 2, 2};
  Affine before{3, 3, 3}, behind{static_cast<int>(kChannels), static_cast<int>(kChannels), 4};
  BatchNorm1d norm{kChannels};
  bool early = false, late = false;
  Detour() { norm.to(DType::f64); }
  Tensor forward(const Tensor& x) const {
    const Tensor y = norm(first(early ? before(x) : x));
    return head(late ? behind(y) : y);
  }
  void members(Members& m) override {
    m("first", first), m("norm", norm), m("head", head), m("behind", behind), m("before", before);
  }
};

}  // namespace

TEST_CASE("ranks that use different layers around a norm that they share do not wait for each other") {
  for (const int ranks : {2, 3}) {
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<Doubles> results[2];
      for (const bool small : {false, true}) {
        const auto make = [&](std::span<const Device> devices, Milliseconds timeout) {
          return kind == 0 ? make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout})
                           : make_thread_group(devices, {.timeout = timeout});
        };
        results[small] = run_ranks(ranks,
                                   [&](Communicator& communicator) {
                                     DistributedDataParallelOptions options{.find_unused_parameters = true};
                                     if (small) options.bucket_cap_mb = options.first_bucket_mb = 1e-6;
                                     DistributedDataParallel<Detour> net(Detour{}, communicator, options);
                                     convert_sync_batchnorm(net, communicator);
                                     SGD own(net.parameters(), {.lr = 0.1});
                                     Doubles all;
                                     for (int step = 0; step < 4; ++step) {
                                       net.module().early = communicator.rank() == step % 2;
                                       net.module().late = communicator.rank() != step % 2;
                                       const auto seed = static_cast<std::uint64_t>(10 * step + communicator.rank());
                                       own.zero_grad();
                                       mean(square(net(noise({5, 3}, seed, communicator.device())))).backward();
                                       own.step();
                                     }
                                     return all_parameters(net.module());
                                   },
                                   {.devices = first_devices(ranks), .timeout = Milliseconds(60'000), .make = make});
        CHECK(different(results[small]) == 0);
      }
      CHECK(largest_difference(results[0][0], results[1][0]) < 1e-10);
    }
  }
}
