// Parameters of odd kinds in units, calls of units in odd ways, and ranks that do not do the same.
#include "lockstep/parallel/ddp/overflow.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;
using Catch::Matchers::Contains;

namespace {

// A scalar, one without elements, one element, another dtype, and whole numbers.
struct Odd : Module<Odd> {
  Layer in{3, 5, 1}, out{5, 2, 4};
  Parameter scale{full({}, 0.5, {.dtype = DType::f32})}, none{zeros({0, 3}, {.dtype = DType::f32})};
  Parameter one{full({1}, 0.25, {.dtype = DType::f32})}, wide{noise({5}, 9)};
  Parameter count{full({3}, 2, {.dtype = DType::i64}), false};
  Tensor forward(const Tensor& x) const {
    const Device device = x.device();
    Tensor h = in(x)*scale.on(device) + one.on(device);
    h = h + wide.on(device).to(h.dtype()) + sum(none.on(device)) + sum(count.on(device)).to(h.dtype());
    return out(h);
  }
  void members(Members& m) override {
    m("in", in), m("out", out), m("scale", scale), m("none", none), m("one", one), m("wide", wide), m("count", count);
  }
};

// A block looks at its input without a gradient first.
struct LooksFirst : Module<LooksFirst> {
  Layer in{3, 4, 1};
  Block block{4, 6, 2};
  Tensor forward(const Tensor& x) const {
    const Tensor h = in(x);
    Tensor seen;
    {
      const NoGrad no_grad;
      seen = block(h);
    }
    return block(h + seen);
  }
  void members(Members& m) override { m("in", in), m("block", block); }
};

// Which blocks are called is said from outside.
struct Chosen : Module<Chosen> {
  Block first{4, 5, 2}, second{4, 7, 4};
  Tensor forward(const Tensor& x, bool second_too) const { return second_too ? second(first(x)) : first(x); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

}  // namespace

TEST_CASE("units have scalars, empty and single parameters, several dtypes and frozen whole numbers") {
  for (const int ranks : {1, 3, 5})
    for (const FullyShardedOptions& options :
         {FullyShardedOptions{}, FullyShardedOptions{.wrap = wrap_modules<Layer>()}}) {
      const auto expected = run_ranks(ranks, [](Communicator& c) { return train_replicated(c, Odd(), sgd(), 2); });
      const auto result = run_ranks(ranks, [&](Communicator& c) { return train_sharded(c, Odd(), sgd(), 2, options); });
      CHECK(result == expected);
    }
}

TEST_CASE("whole numbers in a unit keep their dtype under mixed precision") {
  const auto seen = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Odd(), c, {.mixed_precision = {.param_dtype = DType::bf16}});
    std::vector<DType> dtypes;  // of the wholes
    net.module().register_forward_hook([&](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor>) {
      for (const Parameter& parameter : {net.module().count, net.module().scale})
        dtypes.push_back(parameter.on(c.device()).dtype());
    });
    loss_of(net(rows_of(c, 0))).backward();
    return dtypes;
  });
  for (const auto& dtypes : seen) CHECK(dtypes == std::vector{DType::i64, DType::bf16});
}

TEST_CASE("a unit that is called without gradients first is trained by its second call") {
  for (const bool reshards : {true, false}) {
    const FullyShardedOptions options{.wrap = wrap_modules<Block>(), .reshard_after_forward = reshards};
    const auto expected = run_ranks(3, [](Communicator& c) { return train_replicated(c, LooksFirst(), sgd(), 3); });
    const auto result =
        run_ranks(3, [&](Communicator& c) { return train_sharded(c, LooksFirst(), sgd(), 3, options); });
    CHECK(result == expected);
  }
}

TEST_CASE("the gradient of a sharded module's input is that of the module") {
  const auto gradients = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    Tensor x = counting({2, 3}, c.device());
    x.set_requires_grad(true);
    loss_of(net(x)).backward();
    return values(x.grad());
  });
  Tensor x = counting({2, 3});
  x.set_requires_grad(true);
  loss_of(Mlp()(x)).backward();
  for (const Doubles& gradient : gradients) CHECK(gradient == values(x.grad()));
}

TEST_CASE("hooks of users see a unit's whole parameters, registered before it was wrapped or after") {
  const auto ranks = run_ranks(3, [](Communicator& c) {
    std::vector<Shape> seen;
    const auto look = [&](const ModuleBase& module) {
      for (const NamedParameter& named : module.named_parameters())
        if (named.name == "weight") seen.push_back(named.parameter.on(c.device()).shape());
    };
    const auto pre = [&](const ModuleBase& module, std::span<const Tensor>) { look(module); };
    const auto post = [&](const ModuleBase& module, std::span<const Tensor>, std::span<const Tensor>) { look(module); };
    Mlp module;
    module.first.register_forward_pre_hook(pre), module.first.register_forward_hook(post);
    FullyShardedDataParallel net(std::move(module), c, {.wrap = wrap_modules<Affine>()});
    net.module().first.register_forward_pre_hook(pre), net.module().first.register_forward_hook(post);
    loss_of(net(counting({2, 3}, c.device()))).backward();
    return seen;
  });
  for (const auto& seen : ranks) CHECK(seen == std::vector<Shape>(4, Shape{5, 3}));
}

TEST_CASE("a unit that some ranks do not run is an error on all of them") {
  const auto messages = messages_of_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Chosen(), c, {.wrap = wrap_modules<Block>()});
    const Tensor x = noise({2, 4}, 1).to(DType::f32).to(c.device());
    loss_of(net(x, c.rank() == 0)).backward();
    synchronize(c.device());
    c.barrier();
  });
  for (const std::string& message : messages) {
    INFO(message);
    CHECK_THAT(message, Contains("CommError"));
    CHECK_THAT(message, Contains("for unit 1") && Contains("for unit 2"));
  }
}

TEST_CASE("a module that throws on one rank is an error on the others, and no wait for ever") {
  const auto messages = messages_of_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    const Tensor x = counting({2, c.rank() == 1 ? 4 : 3}, c.device());
    try {
      loss_of(net(x)).backward();
      synchronize(c.device());
    } catch (const Error& error) {
      if (c.rank() == 1) c.abort(error.what());
      throw;
    }
  });
  CHECK_THAT(messages[0], Contains("CommError"));
  CHECK_THAT(messages[1], Contains("first"));
}

TEST_CASE("wrapping takes rank 0's parameters and buffers, or each rank's own parts") {
  for (const bool sync : {true, false}) {
    const auto states = run_ranks(3, [&](Communicator& c) {
      Tower module;
      for (const NamedTensor& named : module.state_dict())
        if (is_floating(named.tensor.dtype())) Tensor(named.tensor.detach()).fill_(c.rank() + 1.0);
      FullyShardedDataParallel net(std::move(module), c,
                                   {.wrap = wrap_modules<Block>(), .init_sync = sync, .ignore = {"in.weight"}});
      return values_of(net.whole_state_dict());
    });
    CHECK((different(states) == 0) == sync);
    const auto has = [&](double value) {
      return std::find(states[1].begin(), states[1].end(), value) != states[1].end();
    };
    CHECK(has(1) == true);
    CHECK((has(2) && has(3)) == !sync);
  }
}

TEST_CASE("buffers beside shards are rank 0's before every training forward") {
  const auto buffers = run_ranks(3, [](Communicator& c) {
    FullyShardedDataParallel net(Tower(), c, {.wrap = wrap_modules<Block>()});
    Doubles seen;
    net.module().norm.register_forward_pre_hook([&](const ModuleBase& module, std::span<const Tensor>) {
      for (const NamedParameter& named : module.named_buffers())
        for (const double value : values(named.parameter.tensor().to(DType::f64))) seen.push_back(value);
    });
    for (int i = 0; i < 3; ++i) loss_of(net(rows_of(c, i))).backward();
    return seen;
  });
  CHECK(different(buffers) == 0);
}

TEST_CASE("the norm of clipping is that of the whole gradient, by every power, with frozen and empty parts") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
    INFO(type);
    const auto norms = run_ranks(7, [&](Communicator& c) {  // more ranks than there are parts
      Mlp module;
      module.first.bias.set_requires_grad(false);
      FullyShardedDataParallel net(std::move(module), c, {.wrap = wrap_modules<Affine>()});
      sum(net(counting({1, 3}, c.device()))).backward();
      const double norm = net.clip_grad_norm(0.5, {.norm_type = type}).item<double>();
      return std::pair(norm, net.clip_grad_norm(0.5, {.norm_type = type}).item<double>());
    });
    Mlp plain;
    plain.first.bias.set_requires_grad(false);
    sum(plain(counting({1, 3}))).backward();
    const double expected = clip_grad_norm(plain.parameters(), 0.5, {.norm_type = type}).item<double>();
    for (const auto& [norm, clipped] : norms) {
      CHECK(std::abs(norm - expected) <= 1e-12 * expected);
      CHECK(std::abs(clipped - 0.5) <= 1e-5);
    }
    CHECK(norms == std::vector(7, norms[0]));
  }
}

TEST_CASE("a norm that is not finite on one rank is an error on all, where asked for") {
  const auto messages = run_ranks(3, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c);
    sum(net(counting({1, 3}, c.device()))).backward();
    if (c.rank() == 0) {
      Tensor gradient = net.parameters()[0].grad();
      gradient.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return message_of<Error>([&] { net.clip_grad_norm(1, {.error_if_nonfinite = true}); });
  });
  for (const std::string& message : messages) CHECK_THAT(message, Contains("a finite norm"));
}

TEST_CASE("ranks skip a step together when one part of the gradients overflows") {
  const auto ranks = run_ranks(3, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c);
    SGD optimizer(net.parameters(), {.lr = 0.1});
    GradScaler scaler({.init_scale = 8, .share_overflow = overflow_on_any_rank(c)});
    const Doubles before = values_of(net.whole_state_dict());
    scaler.scale(loss_of(net(counting({1, 3}, c.device())))).backward();
    if (c.rank() == 0) net.parameters()[0].grad().fill_(std::numeric_limits<double>::infinity());
    scaler.step(optimizer);
    scaler.update();
    return std::pair(values_of(net.whole_state_dict()) == before, scaler.scale());
  });
  for (const auto& [same, scale] : ranks) {
    CHECK(same);
    CHECK(scale == 4);
  }
}

TEST_CASE("parameters summoned between a forward and its backward: what is written back voids the graph") {
  const auto ranks = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    const Tensor x = counting({2, 3}, c.device());
    const auto gradients = [&] {
      Doubles all;
      for (const Parameter& parameter : net.parameters())
        for (const double value : values(parameter.grad())) all.push_back(value);
      return all;
    };
    loss_of(net(x)).backward();
    const Doubles expected = gradients();
    net.zero_grad();
    const Tensor loss = loss_of(net(x));
    {
      const auto whole = net.summon(false);  // looks only
    }
    loss.backward();
    const bool same = gradients() == expected;
    const Tensor other = loss_of(net(x));
    { const auto whole = net.summon(); }
    const std::string said = message_of<Error>([&] { other.backward(); });
    drain(c.device());
    return std::pair(same, said);
  });
  for (const auto& [same, said] : ranks) {
    CHECK(same);
    CHECK_THAT(said, Contains("changed in place"));
  }
}

TEST_CASE("a backward while the parameters are summoned says so") {
  for (const bool stays : {true, false}) {
    const auto messages = messages_of_ranks(2, [&](Communicator& c) {
      FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>(), .reshard_after_forward = !stays});
      const Tensor loss = loss_of(net(counting({2, 3}, c.device())));
      const auto whole = net.summon(false);
      loss.backward();  // the other rank may hear of it while it still summons
    });
    for (const std::string& message : messages) CHECK_THAT(message, Contains("they are summoned"));
  }
}

TEST_CASE("a copy of a sharded module does not call its wrapper, which may be gone") {
  const auto messages = run_ranks(2, [](Communicator& c) {
    std::optional<Mlp> copy;
    {
      FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
      copy = deep_copy(net.module());
    }
    return message_of<InvalidArgument>([&] { (*copy)(counting({2, 3}, c.device())); });
  });
  for (const std::string& message : messages) CHECK_THAT(message, Contains("linear"));
}
