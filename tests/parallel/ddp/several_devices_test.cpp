// Modules of which each rank has parts on several devices.
#include "lockstep/parallel/ddp/hooks/basic_hooks.h"
#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

constexpr int kStageRanks = 3, kStageSteps = 4;

// The communicator's device is the first or the second one of the rank.
RunRanksOptions on_devices(int number) { return {.devices = support::devices_at({number, 2 + number, 4 + number})}; }
// Those of a rank.
std::vector<Device> devices_of(int rank) { return support::devices_at({2 * rank, 2 * rank + 1}); }

struct Stages : Module<Stages> {
  Affine first{3, 4, 1};
  Embedding table;
  Affine second{4, 2, 2};
  Buffer factor{full({2}, 1, {.dtype = DType::f64})};
  explicit Stages(bool sparse) : table(7, 4, {.sparse = sparse}) {
    table.to(DType::f64);
    table.weight.assign(noise({7, 4}, 11));
  }
  Stages& place(Device a, Device b) {
    first.to(a), second.to(b), table.to(b);
    factor = Buffer(factor.tensor().to(b));
    return *this;
  }
  Tensor forward(const Tensor& x, bool with_table = true) const {
    const Device there = second.weight.device();
    Tensor h = tanh(first(x)).to(there);
    if (with_table) h = h + table((abs(x.select(1, 0)) * 7.0).to(DType::i64).to(there));
    return second(h) * factor.on(there);
  }
  void members(Members& m) override { m("first", first), m("table", table), m("second", second), m("factor", factor); }
};

Doubles whole_run(bool sparse, double factor) {
  Stages net(sparse);
  net.factor.assign(full({2}, factor, {.dtype = DType::f64}));
  SGD optimizer(net.parameters(), {.lr = 0.1});
  for (int i = 0; i < kStageSteps; ++i) {
    optimizer.zero_grad();
    loss_of(net(batch(i, kStageRanks, DType::f64, Device::cpu()), i % 2 == 0)).backward();
    optimizer.step();
  }
  return all_parameters(net);
}

// Parameters at the end, then whether everything is where it was.
std::vector<Doubles> train(const RunRanksOptions& run, const DistributedDataParallelOptions& options, bool sparse,
                           const CommHook& hook) {
  return run_ranks(
      kStageRanks,
      [&](Communicator& communicator) {
        const std::vector<Device> devices = devices_of(communicator.rank());
        Stages module(sparse);
        // Rank 0's counts, on every device.
        if (communicator.rank() == 0) module.factor.assign(full({2}, 0.5, {.dtype = DType::f64}));
        module.place(devices[0], devices[1]);
        DistributedDataParallel<Stages> net(std::move(module), communicator, options);
        if (hook.call) net.register_comm_hook(hook);
        SGD optimizer(net.parameters(), {.lr = 0.1});
        bool stays = true;
        join({net}, [&] {
          for (int i = 0; i < kStageSteps; ++i) {
            optimizer.zero_grad();
            const Tensor x = share(batch(i, kStageRanks, DType::f64, devices[0]), communicator.rank());
            const Tensor y = net(x, i % 2 == 0);
            loss_of(y).backward();
            stays = stays && y.device() == devices[1] && net.module().first.weight.grad().device() == devices[0] &&
                    net.module().second.weight.grad().device() == devices[1];
            optimizer.step();
          }
        });
        stays = stays && net.module().first.bias.device() == devices[0] && net.module().factor.device() == devices[1];
        Doubles all = all_parameters(net.module());
        all.push_back(stays);
        return all;
      },
      run);
}

}  // namespace

TEST_CASE("ranks train modules that are spread over devices as one device does") {
  support::needs_devices(6);
  for (const int number : {0, 1}) {
    for (const bool view : {true, false}) {
      for (const auto& [hook, sparse] : {std::pair(CommHook(), false),
                                         {CommHook(), true},
                                         {summing_hook(false), false},
                                         {summing_hook(true), false},
                                         {all_reduce_hook(), true}}) {
        DistributedDataParallelOptions options = small_buckets();
        options.find_unused_parameters = true;
        options.gradient_as_bucket_view = view;
        INFO("device " << number << " of each rank, view " << view << ", hook " << hook.name << ", rows " << sparse);
        const std::vector<Doubles> result = train(on_devices(number), options, sparse, hook);
        Doubles wanted = whole_run(sparse, 0.5);
        wanted.push_back(1);
        CHECK(different(result) == 0);
        CHECK(largest_difference(result[0], wanted) < 1e-10);
      }
    }
  }
}

TEST_CASE("buckets of a spread module are of one device each") {
  support::needs_devices(4);
  const auto result = run_ranks(2,
                                [](Communicator& communicator) {
                                  const std::vector<Device> devices = devices_of(communicator.rank());
                                  Stages module(false);
                                  module.place(devices[0], devices[1]);
                                  DistributedDataParallel<Stages> net(std::move(module), communicator);
                                  return net.logging_data().bucket_sizes;
                                },
                                {.devices = support::devices_at({0, 2})});
  for (const auto& sizes : result) CHECK(sizes == std::vector<std::uint64_t>{(28 + 10) * 8, 16 * 8});
}

TEST_CASE("spread modules that differ are refused on every rank") {
  support::needs_devices(6);
  const auto wrap = [](const std::function<void(Stages&, int rank, const std::vector<Device>&)>& place) {
    std::vector<std::string> said(kStageRanks);
    run_ranks(
        kStageRanks,
        [&](Communicator& communicator) {
          try {
            Stages module(false);
            place(module, communicator.rank(), devices_of(communicator.rank()));
            DistributedDataParallel<Stages> net(std::move(module), communicator);
          } catch (const InvalidArgument& error) {
            said[static_cast<std::size_t>(communicator.rank())] = error.what();
          }
        },
        on_devices(0));
    return said;
  };
  for (const std::string& message : wrap([](Stages&module, int rank, const std::vector<Device>&devices) {
         module.place(devices[0], devices[1]);
         if (rank == 1) module.first.to(devices[1]), module.second.to(devices[0]), module.second.to(devices[1]);
       }))
    CHECK(missing(message, {"rank 0 parameter 'first.weight'", "on device 0 of 2", "rank 1"}) == "");
  for (const std::string& message :
       wrap([](Stages&module, int, const std::vector<Device>&devices) { module.first.to(devices[0]); }))
    CHECK(missing(message, {"on one device", "'first.weight' on ", "'table.weight' on cpu"}) == "");
}

TEST_CASE("hooks work on streams of the reducer's own on both devices") {
  const auto own = run_ranks(
      2,
      [](Communicator& communicator) {
        const std::vector<Device> devices = devices_of(communicator.rank());
        DistributedDataParallel<Stages> net(std::move(Stages(false).place(devices[0], devices[1])), communicator);
        const Stream first = current_stream(devices[0]), second = current_stream(devices[1]);
        Doubles seen;
        net.register_comm_hook({"looks", [&](GradBucket& bucket) {
                                  const bool both = bucket.parameters()[0].parameter.device() == devices[1];
                                  seen.push_back(both && current_stream(devices[1]) == second ? 1 : 0);
                                  seen.push_back(current_stream(devices[0]) == first ? 1 : 0);
                                  return Work();
                                }});
        loss_of(net(batch(0, 1, DType::f64, devices[0]))).backward();
        return seen;
      },
      {.devices = support::devices_at({0, 2})});
  for (const Doubles& rank : own) CHECK(rank == Doubles{0, 0, 0, 0});
}

TEST_CASE("unused parameters of a spread module are given away in the order of the rank's streams") {
  struct Apart : Module<Apart> {
    Affine body{3, 3, 3}, extra{3, 3, 1}, head{3, 2, 2};  // the last one on another device
    Tensor forward(const Tensor& x, bool all) const {
      const Device there = head.weight.device();
      const Tensor h = body(x);
      return head((all ? h + extra(x) : h).to(there));
    }
    void members(Members& m) override { m("body", body), m("extra", extra), m("head", head); }
  };
  const auto steps = [](Apart& module, auto& net, const std::function<Tensor(int)>& rows) {
    SGD optimizer(module.parameters(), {.lr = 0.1});
    std::vector<Tensor> inputs;  // before: a copy from the host waits for the stream
    for (int i = 0; i < kStageSteps; ++i) inputs.push_back(rows(i));
    for (int i = 0; i < kStageSteps; ++i) {
      loss_of(net(inputs[static_cast<std::size_t>(i)], i % 2 == 0)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  Apart alone;
  steps(alone, alone, [](int i) { return batch(i, 2, DType::f64, Device::cpu()); });
  for (const int number : {0, 1}) {  // of the two, the communicator's
    const auto result = run_ranks(2,
                                  [&](Communicator& communicator) {
                                    const std::vector<Device> devices = devices_of(communicator.rank());
                                    const Stream first(devices[0]), second(devices[1]);
                                    const StreamScope on_first(first), on_second(second);
                                    Apart module;
                                    module.body.to(devices[0]), module.extra.to(devices[0]), module.head.to(devices[1]);
                                    DistributedDataParallelOptions options = small_buckets();
                                    options.find_unused_parameters = true;
                                    DistributedDataParallel<Apart> net(std::move(module), communicator, options);
                                    steps(net.module(), net, [&](int i) {
                                      return share(batch(i, 2, DType::f64, devices[0]), communicator.rank());
                                    });
                                    return all_parameters(net.module());
                                  },
                                  {.devices = support::devices_at({number, 2 + number})});
    CHECK(different(result) == 0);
    CHECK(largest_difference(result[0], all_parameters(alone)) < 1e-10);
  }
}
