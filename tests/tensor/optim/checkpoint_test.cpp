// Saving an optimizer and going on from there.
#include "lockstep/tensor/optim/checkpoint.h"

#include <bit>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "lockstep/tensor/optim/lr_schedule.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/devices.h"
#include "support/temporary_folder.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

using Chain = Sequential;

Chain make_net(std::uint64_t seed, DType dtype) {
  manual_seed(seed);
  Chain net(Linear(3, 5), Tanh(), Linear(5, 2));
  net.to(dtype);
  return net;
}

template <class Made>
void train(const Chain& net, Made& optimizer, int from, int to) {
  for (int i = from; i < to; ++i) {
    Doubles data;
    for (int k = 0; k < 12; ++k) data.push_back(((k * 5 + i * 3) % 13 - 6) / 4.0);
    optimizer.zero_grad();
    square(net(from_data(data, {4, 3}, {.dtype = net.parameters()[0].dtype()}))).mean().backward();
    if (i == 1) net.parameters()[3].zero_grad();  // one that takes part less often
    optimizer.step();
  }
}

// The bits of all elements: equal numbers are not enough.
std::vector<std::uint64_t> bits(const Chain& net) {
  std::vector<std::uint64_t> all;
  for (const Parameter& p : net.parameters())
    for (const double x : values(p.tensor())) all.push_back(std::bit_cast<std::uint64_t>(x));
  return all;
}

template <class Make>
void check_resumes(Make make, DType dtype) {
  const TemporaryFolder folder;
  const Chain one = make_net(1, dtype);
  auto first = make(one);
  train(one, first, 0, 4);
  save_model(one, folder / "model");
  save_optimizer(first, one, folder / "optimizer", {{"note", "here"}});
  Chain two = make_net(2, dtype);
  auto second = make(two);
  train(two, second, 0, 2);  // a past that must not show
  second.set_lr(7);
  load_model(two, folder / "model");
  const auto metadata = load_optimizer(second, two, folder / "optimizer");
  CHECK(metadata.at("note") == "here");
  CHECK(metadata.at("optimizer") == first.name());
  for (std::size_t group = 0; group < first.group_count(); ++group) CHECK(second.lr(group) == first.lr(group));
  train(one, first, 4, 8);
  train(two, second, 4, 8);
  CHECK(bits(one) == bits(two));
  // The whole state is the same as well.
  const auto a = first.state_dict(one), b = second.state_dict(two);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].name == b[i].name);
    CHECK(values(a[i].tensor) == values(b[i].tensor));
  }
}

std::vector<std::string> names(const std::vector<NamedTensor>& state) {
  std::vector<std::string> names;
  for (const NamedTensor& entry : state) names.push_back(entry.name);
  return names;
}
NamedTensor& entry(std::vector<NamedTensor>& state, const std::string& name) {
  for (NamedTensor& each : state)
    if (each.name == name) return each;
  throw std::runtime_error("no " + name);
}

}  // namespace

TEST_CASE("a training goes on from a file bit for bit") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    check_resumes([](const Chain& net) { return SGD(net.parameters(), {.lr = 0.1, .momentum = 0.9}); }, dtype);
    check_resumes([](const Chain& net) { return SGD(net.parameters(), {.lr = 0.1}); }, dtype);
    check_resumes([](const Chain& net) { return Adam(net.parameters(), {.lr = 0.01}); }, dtype);
    check_resumes(
        [](const Chain& net) {
          const auto all = net.parameters();
          return AdamW({{.parameters = {all[2], all[0]}, .amsgrad = true},
                        {.parameters = {all[1], all[3]}, .lr = 1.0 / 3, .betas = {0.7, 0.8}, .weight_decay = 0}},
                       {.lr = 0.01});
        },
        dtype);
  }
  manual_seed(0);
}

TEST_CASE("schedule and scaler go on too") {
  const TemporaryFolder folder;
  Linear net(2, 1);
  Adam optimizer(net.parameters(), {.lr = 0.5});
  LrScheduler scheduler(optimizer, ExponentialLR{.gamma = 0.5});
  GradScaler scaler({.growth_interval = 3});
  for (int i = 0; i < 4; ++i) {
    net.weight.set_grad(ones({1, 2}));
    scaler.step(optimizer);
    scaler.update();
    scheduler.step();
  }
  save_optimizer(optimizer, net, folder / "optimizer");
  save_safetensors(folder / "schedule", scheduler.state_dict());
  save_safetensors(folder / "scaler", scaler.state_dict());
  Adam again(net.parameters(), {.lr = 3});
  LrScheduler scheduler_again(again, ExponentialLR{.gamma = 0.5});
  GradScaler scaler_again;
  load_optimizer(again, net, folder / "optimizer");
  scheduler_again.load_state_dict(load_safetensors(folder / "schedule").tensors);
  scaler_again.load_state_dict(load_safetensors(folder / "scaler").tensors);
  CHECK(again.lr() == 0.5 / 16);
  scheduler.step();
  scheduler_again.step();
  CHECK(again.lr() == optimizer.lr());
  CHECK(scheduler_again.epoch() == 5);
  CHECK(scaler_again.scale() == 2 * 65536);
  CHECK(scaler_again.growth_tracker() == 1);
  CHECK(scaler_again.options().growth_interval == 3);
}

TEST_CASE("a state has names, copies, and nothing of parameters that never moved") {
  const Parameter a = parameter({1, 2}), b = parameter({3});
  Adam optimizer({a, b}, {.amsgrad = true});
  set_grad(a, {1, 1});
  optimizer.step();
  auto state = optimizer.state_dict();
  CHECK(names(state) == std::vector<std::string>{"state.0.group", "state.0.step", "state.0.exp_avg",
                                                 "state.0.exp_avg_sq", "state.0.max_exp_avg_sq", "state.1.group",
                                                 "groups.0.lr", "groups.0.beta1", "groups.0.beta2", "groups.0.eps",
                                                 "groups.0.weight_decay", "groups.0.amsgrad", "groups.0.maximize"});
  const Doubles moment = values(entry(state, "state.0.exp_avg").tensor);
  optimizer.step();
  CHECK(values(entry(state, "state.0.exp_avg").tensor) == moment);
  // Loading copies as well, and forgets what the state does not have.
  set_grad(b, {1});
  optimizer.step();
  optimizer.load_state_dict(state);
  CHECK(names(optimizer.state_dict()) == names(state));
  optimizer.step();
  CHECK(values(entry(state, "state.0.exp_avg").tensor) == moment);
}

TEST_CASE("a state that is loaded on another stream leaves the old one its memory until it has been read") {
  const Device device = support::device_at(0);
  const auto trained = [&](bool aside) {
    manual_seed(3);
    Linear net(30, 20);
    net.to(device);
    SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    const Stream here = current_stream(device), side(device);
    const Stream& there = aside ? side : here;
    const auto step = [&] {
      for (const Parameter& parameter : net.parameters())
        parameter.set_grad(ones(parameter.shape(), {.device = device}));
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    there.wait_for(here);
    {
      const StreamScope scope(there);
      const auto state = optimizer.state_dict();
      optimizer.load_state_dict(state);
    }
    // What was given back too early is written over.
    for (int taker = 0; taker < 4; ++taker) (void)full({20, 30}, 1e30, {.device = device});
    here.wait_for(there);
    step();
    Doubles all;
    for (const Parameter& parameter : net.parameters()) {
      const Doubles of = values(parameter.tensor());
      all.insert(all.end(), of.begin(), of.end());
    }
    side.wait_for(here);
    synchronize(device);
    return all;
  };
  CHECK(trained(true) == trained(false));
}

TEST_CASE("a state that does not fit changes nothing") {
  Linear net(2, 1);
  Adam optimizer({{.parameters = {net.weight}}, {.parameters = {net.bias}, .lr = 0.5}});
  net.weight.set_grad(ones({1, 2}));
  net.bias.set_grad(ones({1}));
  optimizer.step();
  const auto good = optimizer.state_dict(net);
  optimizer.step();
  const auto before = optimizer.state_dict(net);

  const auto refuses = [&](auto change, const auto& message) {
    auto state = good;
    change(state);
    CHECK_THROWS_WITH(optimizer.load_state_dict(state, net), Contains("[Adam]") && message);
    CHECK_THROWS_AS(optimizer.load_state_dict(state, net), InvalidArgument);
    const auto after = optimizer.state_dict(net);
    REQUIRE(names(after) == names(before));
    for (std::size_t i = 0; i < after.size(); ++i) CHECK(values(after[i].tensor) == values(before[i].tensor));
  };
  using State = std::vector<NamedTensor>;
  const auto with = [&](const std::string& name, const Tensor& value) {
    return [=](State& state) { entry(state, name).tensor = value; };
  };
  const auto without = [&](const std::string& name) {
    return [=](State& state) { std::erase_if(state, [&](const NamedTensor& each) { return each.name == name; }); };
  };
  const TensorOptions f64{.dtype = DType::f64}, i64{.dtype = DType::i64};
  refuses(with("state.weight.exp_avg", ones({2, 1})),
          Contains("state.weight.exp_avg (expected f32[1, 2], got f32[2, 1])"));
  refuses(with("state.weight.exp_avg_sq", ones({1, 2}, f64)), Contains("expected f32[1, 2], got f64[1, 2]"));
  refuses(with("state.bias.group", tensor(0, i64)), Contains("state.bias.group (expected 1, got 0)"));
  refuses(with("state.bias.step", tensor(0, i64)), Contains("expected at least 1, got 0"));
  refuses(with("state.bias.step", tensor(1.0, f64)), Contains("expected i64[], got f64[]"));
  refuses(with("groups.1.lr", tensor(-1.0, f64)), Contains("learning rate"));
  refuses(with("groups.1.beta2", tensor(1.0, f64)), Contains("betas"));
  refuses(with("groups.0.maximize", tensor(0.5, f64)), Contains("0 or 1 for maximize, got 0.5"));
  refuses(with("groups.0.lr", Tensor()), Contains("groups.0.lr") && Contains("undefined"));
  refuses(without("state.weight.exp_avg_sq"), Contains("missing: state.weight.exp_avg_sq;"));
  refuses(without("state.weight.step"), Contains("state.weight.exp_avg (without a step)"));
  refuses(without("state.bias.group"), Contains("missing: state.bias.group;"));
  refuses(without("groups.1.eps"), Contains("missing: groups.1.eps;"));
  refuses([](State& state) { state.push_back(state[0]); }, Contains("state.weight.group") && Contains("again"));
  refuses(
      [](State& state) {
        state.push_back({"state.other.group", tensor(0)});
      },
      Contains("unexpected: state.other.group;"));
  refuses([](State& state) { state.clear(); }, Contains("missing: state.weight.group, state.bias.group, groups.0.lr"));
  optimizer.load_state_dict(good, net);
  CHECK(values(entry(const_cast<State&>(good), "state.weight.step").tensor) == Doubles{1});
  optimizer.step();
  const auto after = optimizer.state_dict(net);
  for (std::size_t i = 0; i < after.size(); ++i)
    if (after[i].name.ends_with(".step")) CHECK(values(after[i].tensor) == Doubles{2});
}

TEST_CASE("files of other optimizers and modules are refused") {
  const TemporaryFolder folder;
  Linear net(2, 1), other(2, 1);
  Adam adam(net.parameters());
  AdamW adamw(net.parameters());
  CHECK_THROWS_WITH(save_optimizer(adam, Linear(2, 1, {.bias = false}), folder / "x"),
                    Contains("[Adam]") && Contains("without"));
  CHECK_THROWS_WITH(save_optimizer(adam, net, folder / "x", {{"optimizer", "mine"}}), Contains("'mine'"));
  CHECK(folder.count() == 0);
  save_optimizer(adam, net, folder / "adam");
  CHECK_THROWS_WITH(load_optimizer(adamw, net, folder / "adam"),
                    Contains("[load_optimizer]") && Contains("AdamW") && Contains("that of Adam"));
  CHECK_THROWS_WITH(load_optimizer(adam, other, folder / "adam"), Contains("without 'weight'"));
  save_model(net, folder / "model");
  CHECK_THROWS_WITH(load_optimizer(adam, net, folder / "model"), Contains("no optimizer"));
  CHECK_THROWS_AS(load_optimizer(adam, net, folder / "nothing"), Error);
  SGD sgd(net.parameters());
  CHECK_THROWS_WITH(adam.load_state_dict(sgd.state_dict()),
                    Contains("groups.0.beta1") && Contains("groups.0.momentum"));
}
