// What a model's parameters cost grows with their number, and not faster: counted in memory that is asked for.
// Something that is copied, or made anew, for every parameter shows; a search through all of them does not
// (lockstep-bench growth).
#include <cstdint>
#include <vector>

#include "drill/memory/failing_new.h"
#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/sharding/fully_sharded_data_parallel.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace support {

DeviceType device_type() { return DeviceType::host; }

}  // namespace support

namespace {

// As deep as it has parameters.
struct Chain : Module<Chain> {
  std::vector<Parameter> weights;

  explicit Chain(std::int64_t count, Device device = support::device_at(0)) {
    for (std::int64_t i = 0; i < count; ++i) weights.emplace_back(ones({1, 2}, {.device = device}));
    parameters();  // which gives them names
  }
  Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const Parameter& weight : weights) y = y * weight.on(x.device());
    return y;
  }
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> all;
    for (const Parameter& weight : weights) all.push_back(weight.tensor());
    return all;
  }
  void members(Members& m) override { m("weights", weights); }
};

Tensor input(std::int64_t rows = 1, Device device = support::device_at(0)) {
  return ones({rows, 2}, {.device = device});
}

// Ten times the parameters: ten times as much, or up to twice that where memory is doubled just then. What is copied
// for each of them would be a hundred times as much.
template <class F>
void costs_what_its_size_says(F work) {
  const auto cost = [&](std::int64_t count) {
    const memory_drill::Asked before = memory_drill::asked();
    work(count);
    const memory_drill::Asked after = memory_drill::asked();
    return memory_drill::Asked{after.calls - before.calls, after.bytes - before.bytes};
  };
  constexpr std::int64_t kFew = 300;
  cost(10 * kFew);  // what is made once, and kept
  const memory_drill::Asked few = cost(kFew), many = cost(10 * kFew);
  CAPTURE(few.calls, many.calls, few.bytes, many.bytes);
  CHECK(few.calls >= kFew);
  CHECK(many.calls <= 20 * few.calls);
  CHECK(many.bytes <= 20 * few.bytes);
}

}  // namespace

TEST_CASE("a module's lists take memory as it has parameters") {
  costs_what_its_size_says([](std::int64_t count) {
    Chain net(count);
    CHECK(net.parameters().size() == static_cast<std::size_t>(count));
    net.load_state_dict(deep_copy(net).state_dict());
    net.to(DType::f16);
  });
}

TEST_CASE("a backward takes memory as its graph has nodes") {
  costs_what_its_size_says([](std::int64_t count) {
    Chain net(count);
    net(input()).sum().backward();
    CHECK(net.weights.back().grad().defined());
  });
  costs_what_its_size_says([](std::int64_t count) {
    Chain net(count);
    cat(net.tensors(), 0).sum().backward();
    CHECK(net.weights.back().grad().defined());
  });
}

TEST_CASE("gradients of many inputs take memory as they are many") {
  costs_what_its_size_says([](std::int64_t count) {
    Chain net(count), unused(count);
    std::vector<Tensor> inputs = net.tensors();
    for (const Tensor& tensor : unused.tensors()) inputs.push_back(tensor);
    inputs.push_back(inputs[0]);
    const Tensor loss = net(input()).sum();
    const std::vector<Tensor> found = grad({&loss, 1}, inputs, {}, {.allow_unused = true});
    CHECK(found.size() == static_cast<std::size_t>(2 * count + 1));
    bool all = true;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool used = i < static_cast<std::size_t>(count) || i + 1 == found.size();
      all = all && found[i].defined() == used && (!used || found[i].to_vector<float>() == std::vector<float>{1, 1});
    }
    CHECK(all);
  });
}

TEST_CASE("a call of a model whose parameters were filled one by one takes memory as they are many") {
  costs_what_its_size_says([](std::int64_t count) {
    Chain net(count);
    for (const Parameter& weight : net.weights) weight.assign(ones({1, 2}));
    CHECK(net(input()).to_vector<float>() == std::vector<float>{1, 1});
    const NoGrad off;
    DataParallel parallel(net, {.devices = support::first_devices(2)});
    CHECK(parallel(input(2)).to_vector<float>() == std::vector<float>{1, 1, 1, 1});
    net.load_state_dict(net.state_dict());
  });
}

TEST_CASE("a step of an optimizer takes memory as it has parameters") {
  costs_what_its_size_says([](std::int64_t count) {
    Chain net(count);
    cat(net.tensors(), 0).sum().backward();
    SGD(net.parameters(), {.lr = 0.5, .momentum = 0.5}).step();
    Adam(net.parameters(), {.lr = 0.5}).step();
    clip_grad_norm(net.parameters(), 1);
    net.zero_grad();
  });
}

TEST_CASE("a training step on several devices takes memory as the model has parameters") {
  const std::vector<Device> devices = support::first_devices(2);
  costs_what_its_size_says([&](std::int64_t count) {
    const DataParallel net(Chain(count), {.devices = devices});
    for (int step = 0; step < 2; ++step) {
      net(input(2)).sum().backward();
      const NoGrad off;
      for (const Parameter& weight : net.module().weights) weight.tensor().mul_(1);
    }
    CHECK(net.module().weights.back().grad().to_vector<float>() == std::vector<float>{4, 4});
  });
}

TEST_CASE("backwards in replicas take memory as the model has parameters") {
  struct Training {
    Replica<Chain> replica;
    Device device() const { return replica.device(); }
    void operator()(const Tensor& x) const {
      for (int i = 0; i < 2; ++i) replica(x).sum().backward();
    }
  };
  const std::vector<Device> devices = support::first_devices(2);
  costs_what_its_size_says([&](std::int64_t count) {
    const Chain net(count);
    std::vector<Training> trainings;
    for (const Replica<Chain>& replica : replicate(net, devices)) trainings.push_back({replica});
    parallel_apply(trainings, std::vector<Tensor>{input(1, devices[0]), input(1, devices[1])});
    CHECK(net.weights.back().grad().to_vector<float>() == std::vector<float>{4, 4});
  });
}

TEST_CASE("a training step of ranks takes memory as the model has parameters") {
  costs_what_its_size_says([](std::int64_t count) {
    const auto found = run_ranks(2, [&](Communicator& communicator) {
      Chain module(count, communicator.device());
      std::vector<std::string> ignore;
      for (std::int64_t i = 0; i < count; i += 2) ignore.push_back(cat("weights.", i));
      DistributedDataParallel<Chain> net(module, communicator, {.find_unused_parameters = true, .ignore = ignore});
      for (int step = 0; step < 2; ++step) net(input(1, communicator.device())).sum().backward();
      return module.weights.back().grad().to_vector<float>();
    });
    CHECK(found[0] == std::vector<float>{2, 2});
    CHECK(found[1] == found[0]);
  });
}

TEST_CASE("the state of ranks that share a model takes memory as it has parameters") {
  costs_what_its_size_says([](std::int64_t count) {
    const test::TemporaryFolder folder;
    const auto counts = run_ranks(2, [&](Communicator& communicator) {
      FullyShardedDataParallel net(Chain(count, communicator.device()), communicator);
      CheckpointWriter writer(folder.path(), communicator);
      writer.save(1, net.checkpoint_entries());
      writer.close();
      const auto found = newest_checkpoint(folder.path(), communicator);
      net.load_checkpoint(*found);
      const auto whole = net.whole_state_dict();
      net.load_whole_state_dict(whole);
      return std::vector<std::size_t>{whole.size(), found->load_all("model.").size()};
    });
    CHECK(counts[1] == std::vector<std::size_t>(2, static_cast<std::size_t>(count)));
  });
}
