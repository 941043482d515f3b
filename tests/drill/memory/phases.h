// What the drill does while memory runs out: training a small model on several devices, step by step, and what is to be
// the same afterwards.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/sgd.h"

namespace memory_drill {

using namespace lockstep;
using Doubles = std::vector<double>;

struct Net : Module<Net> {
  Embedding words{7, 4, {.sparse = true}};
  Linear hidden{4, 5}, out{5, 3};
  Parameter large{full({131'073}, 0.0001, {.dtype = DType::f64})};  // summed along a chain
  Buffer offset{full({3}, 0.25, {.dtype = DType::f32})};
  Tensor forward(const Tensor& ids) const {
    const Device device = ids.device();
    const Tensor w = large.on(device);
    return out(tanh(hidden(words(ids)))) + (w * w).sum().to(DType::f32) + offset.on(device);
  }
  void members(Members& m) override {
    m("words", words), m("hidden", hidden), m("out", out), m("large", large), m("offset", offset);
  }
};

using Wrapped = decltype(DataParallel(std::declval<const Net&>(), DataParallelOptions{}));

struct State {
  explicit State(const std::vector<Device>& on, const Net& of) : devices(on), source(of) {}
  const std::vector<Device>& devices;
  const Net& source;
  Tensor ids = from_data(std::vector<std::int64_t>{0, 3, 6, 3, 1, 5, 2, 0, 4, 6, 1, 1, 3}, {13});
  std::optional<Wrapped> net;
  std::optional<SGD> optimizer;
  Tensor loss, refreshed, answer;

  std::vector<Parameter> parameters() { return net->parameters(); }
};

struct Phase {
  const char* name;
  std::function<void(State&)> run;
  std::function<void(State&)> before;  // and before it is done again
};

void make(State& s);
const std::vector<Phase>& phases();  // in the order in which they are run

Doubles values(const Tensor& x);
Doubles gradients(State& s);
Doubles second_gradients(State& s);  // dense ones: of what the second derivative reaches
Doubles weights(State& s);

}  // namespace memory_drill
