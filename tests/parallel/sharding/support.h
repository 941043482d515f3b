// Models, batches and trainings for the tests of sharding.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/sharding/fully_sharded_data_parallel.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/ddp/support.h"
#include "support/watched.h"

namespace parallel_test {

inline int steps() { return support::watched() ? 4 : 20; }

// Like Affine, in f32, as large as it is told.
struct Layer : Module<Layer> {
  Parameter weight, bias;
  Layer(int in, int out, std::uint64_t seed)
      : weight(noise({out, in}, seed).to(DType::f32)), bias(noise({out}, seed + 100).to(DType::f32)) {}
  Tensor forward(const Tensor& x) const { return tanh(linear(x, weight.on(x.device()), bias.on(x.device()))); }
  void members(Members& m) override { m("weight", weight), m("bias", bias); }
};

// Two layers, and what it adds them to.
struct Block : Module<Block> {
  Layer up, down;
  Block(int size, int inner, std::uint64_t seed) : up(size, inner, seed), down(inner, size, seed + 1) {}
  Tensor forward(const Tensor& x) const { return x + down(up(x)); }
  void members(Members& m) override { m("up", up), m("down", down); }
};

// Sizes that nothing divides.
struct Tower : Module<Tower> {
  Layer in;
  std::vector<Block> blocks;
  BatchNorm1d norm;
  Layer head;
  explicit Tower(int size = 13, int inner = 37, int depth = 3) : in(3, size, 1), norm(size), head(size, 2, 50) {
    for (int i = 0; i < depth; ++i) blocks.emplace_back(size, inner, 10 + static_cast<std::uint64_t>(i) * 2);
  }
  Tensor forward(const Tensor& x) const {
    Tensor h = in(x);
    for (const Block& block : blocks) h = block(h);
    return head(norm(h));
  }
  void members(Members& m) override { m("in", in), m("blocks", blocks), m("norm", norm), m("head", head); }
};

// A block says when it computes ("block") and when the gradient of its result is there ("back").
struct Marked : Module<Marked> {
  Layer in{3, 4, 1}, out{4, 2, 30};
  std::vector<Block> blocks{{4, 5, 2}, {4, 5, 4}, {4, 5, 6}};
  Tensor forward(const Tensor& x) const {
    Tensor h = in(x);
    for (const Block& block : blocks) {
      h = block(h);
      const trace::Scope forward("block");
      if (h.requires_grad()) h.register_hook([](Tensor&) { const trace::Scope backward("back"); });
    }
    return out(h);
  }
  void members(Members& m) override { m("in", in), m("blocks", blocks), m("out", out); }
};

inline Tensor rows_of(const Communicator& communicator, int step) {
  return share(batch(step, communicator.size(), DType::f32, communicator.device()), communicator.rank());
}

// What the whole module holds at the end, by DistributedDataParallel.
template <class M, class Optimize>
Doubles train_replicated(Communicator& communicator, M module, Optimize make, int count, double clip = 0,
                         DistributedDataParallelOptions options = small_buckets()) {
  DistributedDataParallel<M> net(std::move(module), communicator, std::move(options));
  auto optimizer = make(net.parameters());
  for (int i = 0; i < count; ++i) {
    optimizer.zero_grad();
    loss_of(net(rows_of(communicator, i))).backward();
    if (clip > 0) clip_grad_norm(net.parameters(), clip);
    optimizer.step();
  }
  return all_parameters(net.module());
}

inline Doubles values_of(const std::vector<NamedTensor>& state) {
  Doubles all;
  for (const NamedTensor& named : state)
    for (const double value : named.tensor.detach().to(DType::f64).to_vector<double>()) all.push_back(value);
  return all;
}

template <class M, class Optimize>
Doubles train_sharded(Communicator& communicator, M module, Optimize make, int count, FullyShardedOptions options,
                      double clip = 0) {
  FullyShardedDataParallel<M> net(std::move(module), communicator, std::move(options));
  auto optimizer = make(net.parameters());
  for (int i = 0; i < count; ++i) {
    optimizer.zero_grad();
    loss_of(net(rows_of(communicator, i))).backward();
    if (clip > 0) net.clip_grad_norm(clip);
    optimizer.step();
  }
  return values_of(net.whole_state_dict());
}

inline auto adam(double eps = 1e-8) {
  return [eps](std::vector<Parameter> parameters) { return Adam(std::move(parameters), {.lr = 0.01, .eps = eps}); };
}

using MakeRanks = decltype(RunRanksOptions::make);
// The communicators in this process, by name.
inline std::vector<std::pair<const char*, MakeRanks>> communicators() {
  const MakeRanks peers = [](std::span<const Device> devices, Milliseconds timeout) {
    return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
  };
  return {{"shared memory", {}}, {"peers", peers}};
}

// What makes the optimizer of a unit.
inline auto sgd() {
  return [](std::vector<Parameter> parameters) { return SGD(std::move(parameters), {.lr = 0.1}); };
}

// As state_dict gathers them.
struct WholeState {
  std::vector<NamedTensor> model, optimizer;
};

}  // namespace parallel_test
