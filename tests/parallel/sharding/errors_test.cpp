// What is refused names the unit.
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/sharding/support.h"

using namespace test;
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
