// What is refused names the unit.
#include "lockstep/parallel/tensor_parallel/parts.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;
using Catch::Matchers::Contains;

namespace {

struct Shared : Module<Shared> {
  Layer first{3, 3, 1}, second{3, 3, 2};
  Shared() { second.weight = first.weight; }
  Tensor forward(const Tensor& x) const { return second(first(x)); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

template <class M>
std::string refused(FullyShardedOptions options, M module = M(), int rank = 0, FullyShardedOptions others = {}) {
  const auto messages = messages_of_ranks(
      2, [&](Communicator& c) { FullyShardedDataParallel<M> net(M(module), c, c.rank() == rank ? options : others); });
  for (const std::string& message : messages) CHECK(!message.empty());
  return messages[static_cast<std::size_t>(rank)];
}

}  // namespace

TEST_CASE("sharding refuses a parameter that two units share, with both units") {
  CHECK_THAT(refused<Shared>({.wrap = wrap_modules<Layer>()}),
             Contains("'first.weight' in unit 'first'") && Contains("'second.weight' in unit 'second'"));
  CHECK_THAT(refused<Shared>({.wrap = wrap_names({"second"})}),
             Contains("'first.weight' in the outermost unit") && Contains("unit 'second'"));
}

TEST_CASE("sharding refuses options and modules that make no sense") {
  CHECK_THAT(refused<Mlp>({.units_in_flight = 0}), Contains("at least one unit in flight, got 0"));
  CHECK_THAT(refused<Mlp>({.ignore = {"third"}}), Contains("'third'"));
  CHECK_THAT(refused<Mlp>({.mixed_precision = {.param_dtype = DType::i32}}), Contains("floating dtypes"));
  CHECK_THAT(refused<Mlp>({.reshard_after_forward = false}),
             Contains("on rank 0 reshard_after_forward") && Contains("on rank 1"));
  CHECK_THAT(refused<Mlp>({.wrap = wrap_modules<Affine>()}), Contains("unit 'first'"));
  Mlp frozen;
  frozen.set_requires_grad(false);
  CHECK_THAT(refused<Mlp>({}, frozen), Contains("a parameter that requires a gradient"));
  struct Rows : Module<Rows> {
    Embedding table{7, 3, {.sparse = true}};
    Layer head{3, 2, 5};
    void members(Members& m) override { m("table", table), m("head", head); }
  };
  CHECK_THAT(refused<Rows>({.wrap = wrap_modules<Embedding>()}), Contains("'table.weight' of unit 'table' gets rows"));
  struct Late : Module<Late> {
    Parameter weight = Parameter::uninitialized({5}, DType::f32);
    void members(Members& m) override { m("weight", weight); }
  };
  CHECK_THAT(refused<Late>({}), Contains("'weight' of the outermost unit is uninitialised"));
}

TEST_CASE("what happens to sharded parameters outside of their wrapper is named, with the unit") {
  const auto messages = run_ranks(1, [](Communicator& c) {
    std::vector<std::string> said;
    const Tensor x = counting({1, 3}, c.device());
    {
      FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
      said.push_back(message_of<Error>([&] { net.module().first(x); }));
      loss_of(net(x)).backward();  // nothing is broken by it
      const Tensor loss = loss_of(net(x));
      said.push_back(message_of<Error>([&] { loss.backward({}, {.create_graph = true}); }));
    }
    {
      FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
      net.module().first.weight.set_requires_grad(false);
      said.push_back(message_of<Error>([&] { net(x); }));
    }
    {
      FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
      net.module().second.to(DType::f32);
      said.push_back(message_of<Error>([&] { net(x); }));
    }
    {
      FullyShardedDataParallel net(Mlp(), c);
      const auto whole = net.summon();
      said.push_back(message_of<Error>([&] { net.whole_state_dict(); }));
      said.push_back(message_of<Error>([&] { const auto again = net.summon(); }));
    }
    Tensor left;
    {
      FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
      left = loss_of(net(x));
    }
    said.push_back(message_of<Error>([&] { left.backward(); }));
    drain(c.device());
    return said;
  })[0];
  CHECK_THAT(messages[0], Contains("unit 'first'") && Contains("outside of it"));
  CHECK_THAT(messages[1], Contains("create_graph through unit 'second'"));
  CHECK_THAT(messages[2], Contains("'first.weight' of unit 'first' was frozen"));
  CHECK_THAT(messages[3], Contains("'second.weight' of unit 'second' was moved, converted or replaced"));
  CHECK_THAT(messages[4], Contains("they are summoned"));
  CHECK_THAT(messages[5], Contains("they are summoned"));
  CHECK_THAT(messages[6], Contains("whose memory is given back"));
}

TEST_CASE("calls that would take a rank's elements for whole parameters name the wrapper's own") {
  const auto messages = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    loss_of(net(counting({1, 3}, c.device()))).backward();
    const auto gradients = [&] {
      std::vector<double> all;
      for (const Parameter& parameter : net.parameters()) {
        const std::vector<double> own = values(parameter.grad());
        all.insert(all.end(), own.begin(), own.end());
      }
      return all;
    };
    const std::vector<double> before = gradients();
    const std::vector<NamedTensor> whole = net.whole_state_dict();
    std::vector<std::string> said;
    said.push_back(message_of<InvalidArgument>([&] { clip_grad_norm(net.parameters(), 1e-3); }));
    said.push_back(message_of<InvalidArgument>([&] { clip_grad_norm(net.parameters(), 1e-3, c); }));
    said.push_back(message_of<InvalidArgument>([&] { whole_state(net.module(), c); }));
    said.push_back(message_of<InvalidArgument>([&] { own_parts(net.module(), whole); }));
    if (gradients() != before) said[0] += " and a gradient has changed";
    {
      const auto summoned = net.summon();
      if (whole_state(net.module(), c).size() != (c.rank() == 0 ? whole.size() : 0))
        said.emplace_back("no whole state");
    }
    said.push_back(message_of<InvalidArgument>([&] { clip_grad_norm(net.parameters(), 1e-3); }));  // parts again
    net.clip_grad_norm(1e-3);
    if (gradients() == before) said[0] += " and the wrapper's has not clipped";
    drain(c.device());
    return said;
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::vector<std::string>& said = messages[rank];
    REQUIRE(said.size() == 5);
    const std::string part = cat("is the part of rank ", rank, " of 2: expected the wrapper's own, net.clip_grad_norm");
    CHECK_THAT(said[0], Contains(part) && !Contains(" and "));
    CHECK_THAT(said[1], Contains("[clip_grad_norm] expected parameter 0") && Contains("wrapper's clip_grad_norm"));
    CHECK_THAT(said[2], Contains("[whole_state] expected 'first.weight'") && Contains("whole_state_dict"));
    CHECK_THAT(said[3], Contains("[own_parts] expected 'first.weight'") && Contains("load_whole_state_dict"));
    CHECK_THAT(said[4], Contains(part));
  }
}

TEST_CASE("ranks that come to units of one size in different orders are an error with both units") {
  struct Dropping : Module<Dropping> {
    std::vector<Block> blocks{{3, 5, 2}, {3, 5, 4}, {3, 5, 6}};
    int skipped = -1;
    Tensor forward(Tensor x) const {
      for (int i = 0; i < 3; ++i)
        if (i != skipped) x = blocks[static_cast<std::size_t>(i)](x);
      return x;
    }
    void members(Members& m) override { m("blocks", blocks); }
  };
  for (const auto& [name, make] : communicators())
    for (const bool prefetch : {true, false}) {
      CAPTURE(name, prefetch);
      const auto messages = run_ranks(
          2,
          [&](Communicator& c) {
            FullyShardedDataParallel net(Dropping(), c, {.wrap = wrap_modules<Block>(), .prefetch = prefetch});
            const auto step = [&](int skipped) {
              net.module().skipped = skipped;
              loss_of(net(rows_of(c, 0))).backward();
              synchronize(c.device());
            };
            step(-1);
            step(1);  // as long as all skip the same
            std::string said = message_of<CommError>([&] { step(c.rank() + 1), c.check(); });
            drain(c.device());
            return said;
          },
          {.make = make});
      for (const std::string& message : messages)
        CHECK_THAT(message, Contains("expected all ranks to ") && Contains("for unit 2") && Contains("for unit 3"));
    }
}

TEST_CASE("weights that a step has changed between forward and backward are an error, not wrong gradients") {
  const auto messages = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    const Tensor x = counting({1, 3}, c.device());
    const Tensor loss = loss_of(net(x));
    loss_of(net(x)).backward();
    SGD(net.parameters(), {.lr = 0.1}).step();
    std::string said = message_of<Error>([&] { loss.backward(); });
    drain(c.device());
    return said;
  });
  for (const std::string& message : messages) CHECK_THAT(message, Contains("changed in place"));
}

TEST_CASE("a backward that failed is named by the next forward") {
  std::vector<std::string> own(2);
  const auto messages = messages_of_ranks(2, [&](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    const Tensor x = counting({1, 3}, c.device());
    const Tensor y = net(x);
    y.register_hook([](Tensor&) { throw Error("the hook's own"); });
    own[static_cast<std::size_t>(c.rank())] = message_of<Error>([&] { sum(y).backward(); });
    c.barrier();
    net(x);
  });
  for (const std::string& message : own) CHECK_THAT(message, Contains("the hook's own"));
  for (const std::string& message : messages) CHECK_THAT(message, Contains("the last backward"));
}
