// AveragedModel and ExponentialMovingAverage without a Runner.
#include "lockstep/parallel/openmmlab/model/averaged_model.h"

#include "lockstep/parallel/openmmlab/mm_data_parallel.h"
#include "parallel/openmmlab/model/averages_support.h"

using namespace runner_test;

TEST_CASE("an averaged model is a model of its own") {
  Counting net;
  ExponentialMovingAverage<Counting> ema(net, {.momentum = 0.25});
  MMDataParallel wrapper(deep_copy(net), {.devices = {Device::host(1)}});
  std::vector<Doubles> history;
  for (int i = 0; i < 4; ++i) {
    const NoGrad no_grad;
    wrapper.module().head.weight.tensor() += 1.0 + i;
    history.push_back(weights(wrapper.module()));
    ema.update_parameters(wrapper);
  }
  CHECK(largest_distance(weights(ema.module()), average_of(history, {.momentum = 0.25})) < 1e-14);
  CHECK(ema.steps() == 4);
  CHECK(!ema.module().head.weight.requires_grad());
  CHECK(net.head.weight.requires_grad());
  CHECK(values(ema(counting({1, 3}), Tensor(), Mode::predict).predictions()[0]) !=
        values(net(counting({1, 3}), Tensor(), Mode::predict).predictions()[0]));
  CHECK(missing(message_of<InvalidArgument>([&] { ema.update_parameters(Line()); }), {"[AveragedModel]", "names"}) ==
        "");
  CHECK(missing(message_of<InvalidArgument>([&] { AveragedModel(net, {.momentum = 0}); }), {"got 0"}) == "");
}

TEST_CASE("an averaged model that is in use has one version of its averages at each call") {
  Pair net;
  AveragedModel ema(net, {.momentum = 0.5});
  ema.update_parameters(net);
  double value = 1;
  const auto update = [&] {
    net.assign(value = 4 - value);
    ema.update_parameters(net);
  };
  CHECK(answers_of(ema, update).find("torn") == std::string::npos);
}

TEST_CASE("an averaged model is left alone by updates that the interval passes over") {
  const Pair net;
  AveragedModel ema(net, {.interval = 2});
  const auto backward_after_update = [&] {
    const Tensor x = ones({3}, {.dtype = DType::f64}).set_requires_grad(true);
    const Tensor y = sum(ema(x));
    ema.update_parameters(net);
    return message_of<Error>([&] { y.backward(); });
  };
  CHECK(missing(backward_after_update(), {"changed in place"}) == "");
  CHECK(backward_after_update() == "no error");
  CHECK(missing(backward_after_update(), {"changed in place"}) == "");
}

TEST_CASE("a model may update the averages that it uses while it is called") {
  struct Momentum : Module<Momentum> {
    Pair net;
    mutable AveragedModel<Pair> key{net, {.momentum = 0.5}};
    Tensor forward(const Tensor& x) const {
      const Tensor before = key(x);
      key.update_parameters(net);
      return cat({before, key(x)});
    }
    void members(Members& m) override { m("net", net), m("key", key); }
  } momentum;
  const NoGrad no_grad;
  const Tensor x = ones({3}, {.dtype = DType::f64});
  momentum(x);
  momentum.net.assign(3);
  CHECK(values(momentum(x)) == Doubles{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2});
}
