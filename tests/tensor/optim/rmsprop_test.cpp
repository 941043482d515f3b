// RMSprop against a plain loop in double precision.
#include "lockstep/tensor/optim/rmsprop.h"

#include <cmath>
#include <limits>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/checkpoint.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "support/devices.h"
#include "support/temporary_folder.h"
#include "support/watched.h"
#include "tensor/optim/optim_golden.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using support::device_at;

namespace {

// One element, as PyTorch's documentation of torch.optim.RMSprop writes it down.
struct PlainRMSprop {
  double p, v = 0, mean = 0, b = 0;
  void step(const RMSpropOptions& o, double gradient) {
    double g = o.maximize ? -gradient : gradient;
    if (o.weight_decay != 0) g = g + o.weight_decay * p;
    v = o.alpha * v + (1 - o.alpha) * g * g;
    double variance = v;
    if (o.centered) {
      mean = mean * o.alpha + (1 - o.alpha) * g;
      variance = variance - mean * mean;
    }
    if (o.momentum > 0) {
      b = o.momentum * b + g / (std::sqrt(variance) + o.eps);
      p = p - o.lr * b;
    } else {
      p = p - o.lr * g / (std::sqrt(variance) + o.eps);
    }
  }
};

std::vector<RMSpropOptions> every_option() {
  std::vector<RMSpropOptions> all;
  for (const auto& [lr, alpha, eps] : {std::tuple(0.01, 0.99, 1e-8), {0.1, 0.5, 0.01}, {0.02, 0.0, 1e-3}})
    for (const double decay : {0.0, 0.3})
      for (const double momentum : {0.0, 0.9})
        for (const bool centered : {false, true})
          for (const bool maximize : {false, true})
            if (alpha > 0 || !centered)  // otherwise the variance is 0
              all.push_back({lr, alpha, eps, decay, momentum, centered, maximize});
  return all;
}

std::string describe(const RMSpropOptions& o) {
  return cat("lr ", o.lr, " alpha ", o.alpha, " eps ", o.eps, " decay ", o.weight_decay, " momentum ", o.momentum,
             o.centered ? " centered" : "", o.maximize ? " maximize" : "");
}

Doubles gradient_in(int t) {
  Doubles gradient;
  for (std::size_t i = 0; i < kStart.size(); ++i) gradient.push_back(golden_gradient(static_cast<std::int64_t>(i), t));
  return gradient;
}

std::vector<std::string> state_names_of(const std::vector<NamedTensor>& state) {
  std::vector<std::string> names;
  for (const NamedTensor& entry : state) names.push_back(entry.name);
  return names;
}

void check_same(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  REQUIRE(state_names_of(a) == state_names_of(b));
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].name);
    CHECK(a[i].tensor.dtype() == b[i].tensor.dtype());
    CHECK(values(a[i].tensor) == values(b[i].tensor));
  }
}

}  // namespace

TEST_CASE("RMSprop follows the documented steps for every option") {
  int number = 0;
  for (const RMSpropOptions& o : every_option())
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      if (support::watched() && number++ % 5 != 0) continue;
      INFO(to_string(dtype) << ' ' << describe(o));
      const Parameter p = parameter(kStart, dtype), other = parameter(kStart, DType::f64, device_at(1));
      const Parameter empty(zeros({0, 3}, {.dtype = dtype})), unused = parameter({2}, dtype);
      const Parameter wider = parameter(Doubles(37, 1), dtype), scalar(full({}, 1.0, {.dtype = dtype}));
      RMSprop optimizer({empty, p, unused, wider, other, scalar}, o);
      empty.set_grad(zeros({0, 3}, {.dtype = dtype}));
      const std::uint64_t unused_version = unused.tensor().version();
      std::vector<PlainRMSprop> plain;
      for (const double start : kStart) plain.push_back({start});
      PlainRMSprop alike{1};
      for (int t = 1; t <= kSteps; ++t) {
        const Doubles gradient = gradient_in(t);
        set_grad(p, gradient);
        set_grad(other, gradient);
        set_grad(wider, Doubles(37, gradient[0]));
        scalar.set_grad(full({}, gradient[0], {.dtype = dtype}));
        const std::uint64_t version = p.tensor().version();
        optimizer.step();
        CHECK(p.tensor().version() > version);
        CHECK(values(p.grad()) == gradient);  // also with weight decay
        for (std::size_t i = 0; i < plain.size(); ++i) plain[i].step(o, gradient[i]);
        alike.step(o, gradient[0]);
      }
      Doubles expected;
      for (const PlainRMSprop& each : plain) expected.push_back(each.p);
      check_close(values(p.tensor()), expected, tolerance(dtype));
      check_close(values(other.tensor()), expected, 1e-12);
      check_close(values(wider.tensor()), Doubles(37, alike.p), tolerance(dtype));
      check_close(values(scalar.tensor()), {alike.p}, tolerance(dtype));
      CHECK(unused.tensor().version() == unused_version);
    }
}

TEST_CASE("RMSprop computes 16-bit parameters in f32 and rounds once") {
  for (const RMSpropOptions& o : every_option())
    for (const DType dtype : {DType::f16, DType::bf16}) {
      INFO(to_string(dtype) << ' ' << describe(o));
      const Parameter p = parameter(kStart, dtype), wide = parameter(kStart, DType::f32);
      RMSprop optimizer({p}, o), twin({wide}, o);
      for (int t = 1; t <= kSteps; ++t) {
        // The twin begins where the other is.
        std::vector<NamedTensor> state = optimizer.state_dict();
        for (NamedTensor& entry : state)
          if (entry.tensor.dtype() == dtype) entry.tensor = entry.tensor.to(DType::f32);
        twin.load_state_dict(state);
        wide.assign(p.tensor().detach().to(DType::f32));
        set_grad(p, gradient_in(t));
        set_grad(wide, gradient_in(t));
        optimizer.step();
        twin.step();
        CHECK(values(p.tensor()) == values(wide.tensor().to(dtype)));
        state = twin.state_dict();
        for (NamedTensor& entry : state)
          if (entry.tensor.dtype() == DType::f32) entry.tensor = entry.tensor.to(dtype);
        check_same(optimizer.state_dict(), state);
      }
    }
}

TEST_CASE("RMSprop has PyTorch's defaults") {
  const RMSpropOptions o = RMSprop({parameter({1})}).options();
  CHECK(o.lr == 1e-2);
  CHECK(o.alpha == 0.99);
  CHECK(o.eps == 1e-8);
  CHECK(o.weight_decay == 0);
  CHECK(o.momentum == 0);
  CHECK_FALSE(o.centered);
  CHECK_FALSE(o.maximize);
}

TEST_CASE("RMSprop leaves what has no gradient alone") {
  const RMSpropOptions o{.lr = 0.1, .weight_decay = 0.5, .momentum = 0.9, .centered = true};
  const Parameter used = parameter({1}), late = parameter({2});
  RMSprop optimizer({used, late}, o);
  PlainRMSprop plain{1}, plain_late{2};
  set_grad(used, {3});
  optimizer.step();
  plain.step(o, 3);
  CHECK(state_names_of(optimizer.state_dict())[5] == "state.1.group");
  CHECK(state_names_of(optimizer.state_dict())[6] == "groups.0.lr");  // nothing of the second parameter
  used.zero_grad();
  set_grad(late, {-1});
  for (int i = 0; i < 2; ++i) optimizer.step(), plain_late.step(o, -1);
  check_close(values(used.tensor()), {plain.p}, 1e-13);
  check_close(values(late.tensor()), {plain_late.p}, 1e-13);
  optimizer.zero_grad();
  optimizer.step();
  check_close(values(late.tensor()), {plain_late.p}, 1e-13);
}

TEST_CASE("RMSprop's groups have options of their own, which may change between steps") {
  const RMSpropOptions defaults{.lr = 0.1, .alpha = 0.8, .eps = 0.1, .momentum = 0.5};
  RMSpropOptions of_b = defaults;
  of_b.lr = 0.01, of_b.alpha = 0.6, of_b.eps = 0.2, of_b.weight_decay = 0.3, of_b.momentum = 0, of_b.centered = true,
  of_b.maximize = true;
  const Parameter a = parameter({1}), b = parameter({1}), c = parameter({1}, DType::f64, device_at(1));
  RMSprop optimizer({{.parameters = {a}},
                     {.parameters = {b},
                      .lr = 0.01,
                      .alpha = 0.6,
                      .eps = 0.2,
                      .weight_decay = 0.3,
                      .momentum = 0,
                      .centered = true,
                      .maximize = true}},
                    defaults);
  RMSpropOptions of_a = defaults, of_c = defaults;
  PlainRMSprop plain_a{1}, plain_b{1}, plain_c{1};
  const auto step = [&](double gradient) {
    for (const Parameter& p : optimizer.parameters()) set_grad(p, {gradient});
    optimizer.step();
    plain_a.step(of_a, gradient), plain_b.step(of_b, gradient);
    if (optimizer.group_count() > 2) plain_c.step(of_c, gradient);
    check_close(values(a.tensor()), {plain_a.p}, 1e-13);
    check_close(values(b.tensor()), {plain_b.p}, 1e-13);
    check_close(values(c.tensor()), {plain_c.p}, 1e-13);
  };
  step(2), step(-1);
  optimizer.add_group({.parameters = {c}, .lr = 1});
  of_c.lr = 1;
  step(3);
  // The averages and the momentum of an option that comes later begin at 0.
  of_a.centered = true;
  of_b.momentum = 0.75;
  optimizer.set_options(0, of_a);
  optimizer.set_momentum(1, 0.75);
  CHECK(optimizer.momentum(0) == 0.5);
  CHECK(optimizer.options(1).momentum == 0.75);
  step(1), step(-2);
  optimizer.set_lr(0.25);
  of_a.lr = of_b.lr = of_c.lr = 0.25;
  step(1);
  CHECK_THROWS_AS(optimizer.set_momentum(-1), InvalidArgument);
  CHECK_THROWS_WITH(optimizer.add_group({.parameters = {b}}), Contains("[RMSprop]") && Contains("once"));
}

TEST_CASE("RMSprop's state has PyTorch's names") {
  const Parameter p = parameter({1, 2});
  RMSprop plain({p}), all({p}, {.momentum = 0.9, .centered = true});
  set_grad(p, {1, 1});
  plain.step(), all.step();
  const std::vector<std::string> options{"groups.0.lr",           "groups.0.alpha",    "groups.0.eps",
                                         "groups.0.weight_decay", "groups.0.momentum", "groups.0.centered",
                                         "groups.0.maximize"};
  const auto with_options = [&](std::vector<std::string> state) {
    state.insert(state.end(), options.begin(), options.end());
    return state;
  };
  CHECK(state_names_of(plain.state_dict()) == with_options({"state.0.group", "state.0.step", "state.0.square_avg"}));
  CHECK(state_names_of(all.state_dict()) == with_options({"state.0.group", "state.0.step", "state.0.square_avg",
                                                          "state.0.grad_avg", "state.0.momentum_buffer"}));
  auto state = all.state_dict();
  std::erase_if(state, [](const NamedTensor& entry) { return entry.name == "state.0.square_avg"; });
  CHECK_THROWS_WITH(all.load_state_dict(state), Contains("[RMSprop]") && Contains("missing: state.0.square_avg;"));
}

TEST_CASE("a training with RMSprop goes on from a file bit for bit") {
  for (const RMSpropOptions& o : every_option())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      INFO(to_string(dtype) << ' ' << describe(o));
      const auto make_net = [&](std::uint64_t seed) {
        manual_seed(seed);
        Linear net(3, 2);
        net.to(dtype);
        return net;
      };
      const auto train = [&](const Linear& net, Optimizer& optimizer, int from, int to) {
        for (int t = from; t < to; ++t) {
          Doubles data;
          for (int k = 0; k < 12; ++k) data.push_back(((k * 5 + t * 3) % 13 - 6) / 4.0);
          optimizer.zero_grad();
          square(net(from_data(data, {4, 3}, {.dtype = dtype}))).mean().backward();
          if (t == 1) net.bias.zero_grad();  // which takes part less often
          optimizer.step();
        }
      };
      const TemporaryFolder folder;
      const Linear one = make_net(1);
      Linear two = make_net(2);
      RMSprop first({{.parameters = {one.weight}}, {.parameters = {one.bias}, .lr = 1.0 / 3}}, o);
      train(one, first, 0, 3);
      save_model(one, folder / "model");
      save_optimizer(first, one, folder / "optimizer");
      // Another past, and other options, which must not show.
      RMSprop second({{.parameters = {two.weight}, .lr = 7}, {.parameters = {two.bias}, .alpha = 0.3, .eps = 1}},
                     {.weight_decay = 0.7, .momentum = 0.1, .centered = !o.centered, .maximize = !o.maximize});
      train(two, second, 0, 2);
      load_model(two, folder / "model");
      CHECK(load_optimizer(second, two, folder / "optimizer").at("optimizer") == "RMSprop");
      train(one, first, 3, 6);
      train(two, second, 3, 6);
      CHECK(values(two.weight.tensor()) == values(one.weight.tensor()));
      CHECK(values(two.bias.tensor()) == values(one.bias.tensor()));
      check_same(second.state_dict(two), first.state_dict(one));
    }
  manual_seed(0);
}

TEST_CASE("RMSprop refuses rows by name, before anything is changed") {
  struct Net : Module<Net> {
    Embedding words{6, 2, {.sparse = true}};
    Linear head{2, 1};
    void members(Members& m) override { m("head", head), m("words", words); }
  } net;
  RMSprop optimizer(net.parameters());
  for (const Parameter& p : net.parameters()) p.set_grad(ones(p.shape()));
  const Tensor rows = ones({1, 2});
  net.words.weight.set_sparse_grad({from_data(std::vector<std::int64_t>{1}, {1}), rows, net.words.weight.shape()});
  const Doubles head = values(net.head.weight.tensor()), words = values(net.words.weight.tensor());
  CHECK_THROWS_WITH(optimizer.step(), Contains("[RMSprop]") && Contains("'words.weight'") &&
                                          Contains("1 rows of f32[6, 2]") && Contains("SparseAdam"));
  CHECK_THROWS_AS(optimizer.step(), InvalidArgument);
  CHECK(values(net.head.weight.tensor()) == head);
  CHECK(values(net.words.weight.tensor()) == words);
  for (const std::string& name : state_names_of(optimizer.state_dict()))
    CHECK(name.find("square_avg") == std::string::npos);
}

TEST_CASE("RMSprop with a scaler and clipping") {
  const RMSpropOptions o{.lr = 0.1, .alpha = 0.9, .momentum = 0.5, .centered = true};
  const Parameter p = parameter({1, 2}, DType::f32), q = parameter({1, 2}, DType::f32);
  RMSprop plain({p}, o), scaled({q}, o);
  GradScaler scaler({.init_scale = 8});
  for (const double x : {3.0, -1.0, 0.5}) {
    set_grad(p, {x, 4 * x});
    set_grad(q, {8 * x, 32 * x});
    scaler.unscale_(scaled);
    for (const Optimizer* optimizer : {&plain, &scaled}) clip_grad_norm(optimizer->parameters(), 2);
    plain.step();
    CHECK(scaler.step(scaled));
    scaler.update();
    CHECK(values(q.tensor()) == values(p.tensor()));
  }
  const auto before = scaled.state_dict();
  set_grad(q, {1, std::numeric_limits<double>::infinity()});
  CHECK_FALSE(scaler.step(scaled));
  scaler.update();
  CHECK(values(q.tensor()) == values(p.tensor()));
  check_same(scaled.state_dict(), before);
}

TEST_CASE("RMSprop trains a network, on the device it is moved to, outside the graph") {
  manual_seed(1);
  Sequential net(Linear(2, 16), Tanh(), Linear(16, 1));
  RMSprop optimizer(net.parameters(), {.lr = 0.002, .momentum = 0.5});
  const Tensor x = randn({64, 2}), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
  double first = 0, last = 0;
  for (int i = 0; i < 300; ++i) {
    const Device device = i < 150 ? Device::cpu() : device_at(2);
    if (i == 150) net.to(device);
    const Tensor loss = mse_loss(net(x.to(device)), y.to(device));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  CHECK(last < first / 20);
  for (const Parameter& p : net.parameters()) CHECK(p.tensor().is_leaf());
  for (const NamedTensor& entry : optimizer.state_dict(net)) {
    CHECK_FALSE(entry.tensor.requires_grad());
    if (entry.name.ends_with("square_avg")) CHECK(entry.tensor.device() == device_at(2));
  }
  manual_seed(0);
}

TEST_CASE("RMSprop refuses what makes no sense") {
  const Parameter p = parameter({1});
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(RMSprop(std::vector<Parameter>{}), Contains("[RMSprop]") && Contains("empty"));
  CHECK_THROWS_WITH(RMSprop({p, p}), Contains("[RMSprop]") && Contains("once"));
  CHECK_THROWS_WITH(RMSprop({p}, {.lr = -1}), Contains("[RMSprop]") && Contains("learning rate") && Contains("-1"));
  CHECK_THROWS_AS(RMSprop({p}, {.lr = NAN}), InvalidArgument);
  CHECK_THROWS_WITH(RMSprop({p}, {.alpha = -0.1}), Contains("alpha"));
  CHECK_THROWS_AS(RMSprop({p}, {.alpha = 1.1}), InvalidArgument);
  CHECK_THROWS_AS(RMSprop({p}, {.alpha = NAN}), InvalidArgument);
  CHECK_THROWS_WITH(RMSprop({p}, {.eps = -1}), Contains("eps"));
  CHECK_THROWS_AS(RMSprop({p}, {.eps = kInfinity}), InvalidArgument);
  CHECK_THROWS_WITH(RMSprop({p}, {.weight_decay = -1}), Contains("weight decay"));
  CHECK_THROWS_AS(RMSprop({p}, {.weight_decay = NAN}), InvalidArgument);
  CHECK_THROWS_WITH(RMSprop({p}, {.momentum = -1}), Contains("momentum"));
  CHECK_THROWS_AS(RMSprop({p}, {.momentum = kInfinity}), InvalidArgument);
}
