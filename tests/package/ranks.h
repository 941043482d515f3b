// What a program outside the project does with ranks: models in parts, and in fewer bits. Each returns whether it came
// out.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "lockstep/lockstep.h"
#include "lockstep/models.h"

using namespace lockstep;

inline Sequential make_net() {
  manual_seed(5);
  return Sequential(Linear(4, 8), ReLU(), Linear(8, 3));
}

template <class M>
void train(const M& net, Optimizer& optimizer, Device device, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    mean(square(net(arange(0, 8, 1, {.dtype = DType::f32, .device = device}).reshape({2, 4})))).backward();
    optimizer.step();
  }
}

// Two ranks with a part of the parameters each train as one does, and what they save goes on with the same steps.
inline bool sharded_training() {
  Sequential plain = make_net();
  AdamW plain_optimizer(plain.parameters(), {.lr = 0.01});
  train(plain, plain_optimizer, Device::cpu(), 4);

  const std::string folder =
      (std::filesystem::temp_directory_path() / ("lockstep-package-" + std::to_string(getpid()))).string();
  std::filesystem::remove_all(folder);
  run_ranks(2, [&](Communicator& communicator) {
    FullyShardedDataParallel net(make_net(), communicator, {.wrap = wrap_modules<Linear>()});
    AdamW optimizer(net.parameters(), {.lr = 0.01});
    train(net, optimizer, communicator.device(), 2);
    CheckpointWriter writer(folder, communicator);
    std::vector<CheckpointEntry> entries = net.checkpoint_entries();
    for (CheckpointEntry& each : net.checkpoint_entries(optimizer)) entries.push_back(std::move(each));
    writer.save(2, entries);
    writer.close();
  });
  bool same = true;
  run_ranks(2, [&](Communicator& communicator) {
    FullyShardedDataParallel net(make_net(), communicator, {.wrap = wrap_modules<Linear>()});
    AdamW optimizer(net.parameters(), {.lr = 0.01});
    const auto found = newest_checkpoint(folder, communicator);
    net.load_checkpoint(*found);
    net.load_checkpoint(optimizer, *found);
    train(net, optimizer, communicator.device(), 2);
    const auto state = net.whole_state_dict(0);
    if (communicator.rank() != 0) return;
    for (const NamedTensor& each : plain.state_dict())
      for (const NamedTensor& other : state)
        if (each.name == other.name) same = same && allclose(each.tensor, other.tensor.to(Device::cpu()), 1e-5, 1e-6);
    same = same && state.size() == plain.state_dict().size() && found->step() == 2;
  });
  std::filesystem::remove_all(folder);
  return same;
}

// A layer that two ranks divide gives what the whole one does.
inline bool divided_model() {
  Linear whole = [] {
    manual_seed(6);
    return Linear(6, 4);
  }();
  const Tensor x = ones({3, 6}), expected = whole(x);
  bool same = true;
  run_ranks(2, [&](Communicator& communicator) {
    manual_seed(6);
    ColumnParallelLinear divided(communicator, 6, 4, {.gather_output = true});
    divided.to(communicator.device());
    const Tensor y = divided(x.to(communicator.device()));
    if (communicator.rank() == 0)
      same = divided.weight.shape() == Shape{2, 6} && allclose(y.to(Device::cpu()), expected, 1e-5, 1e-6);
  });
  return same;
}

// A network in eight bits stays near itself, and takes less than a third of the bytes.
inline bool fewer_bits() {
  manual_seed(7);
  Sequential net(Linear(64, 64), ReLU(), Linear(64, 8));
  const Tensor x = randn({5, 64}), before = net(x);
  const QuantizationReport report = quantize_linears(net, {{.bits = 8}});
  const Tensor error = amax(abs(net(x) - before).flatten(), {0});
  return report.layers.size() == 2 && report.bytes_after() * 3 < report.bytes_before() && error.item<double>() < 0.05 &&
         error.item<double>() > 0;
}
