// Units: what is in them, what is gathered when, and gradients that stay, are frozen, shared or ignored.
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;

namespace {

using Names = std::vector<std::string>;

// Two layers of one weight, transposed.
struct TiedPair : Module<TiedPair> {
  Layer first{3, 5, 7};
  Parameter again = first.weight;
  Tensor forward(const Tensor& x) const { return matmul(first(x), again.on(x.device())) - x; }
  void members(Members& m) override { m("first", first), m("again", again); }
};
// One block, several times.
struct Repeated : Module<Repeated> {
  Layer in{3, 4, 1};
  Block block{4, 6, 2};
  Tensor forward(const Tensor& x) const { return block(block(block(in(x)))); }
  void members(Members& m) override { m("in", in), m("block", block); }
};
// A frozen weight beside trained ones in a unit, and a unit that is frozen altogether.
struct Adapted : Module<Adapted> {
  struct Pair : Module<Pair> {
    Layer frozen, trained;
    Pair(int size, std::uint64_t seed) : frozen(size, size, seed), trained(size, size, seed + 1) {
      frozen.set_requires_grad(false);
    }
    Tensor forward(const Tensor& x) const { return frozen(trained(x)) + trained(frozen(x)); }
    void members(Members& m) override { m("frozen", frozen), m("trained", trained); }
  };
  Layer in{3, 5, 1};
  Pair pair{5, 3};
  Block still{5, 7, 9};
  Layer out{5, 2, 20};
  Adapted() { still.set_requires_grad(false); }
  Tensor forward(const Tensor& x) const { return out(still(pair(in(x)))); }
  void members(Members& m) override { m("in", in), m("pair", pair), m("still", still), m("out", out); }
};
struct Checkpointed : Module<Checkpointed> {
  Layer in{3, 5, 1};
  std::vector<Block> blocks{{5, 7, 2}, {5, 7, 4}};
  Tensor forward(const Tensor& x) const {
    Tensor h = in(x);
    for (const Block& block : blocks) h = checkpoint(block, h);
    return h;
  }
  void members(Members& m) override { m("in", in), m("blocks", blocks); }
};
// Channels last.
struct Image : Module<Image> {
  Conv2d conv{1, 5, 3, {.padding = 1}};
  Layer head{15, 2, 3};
  Image() {
    conv.weight.assign(noise({5, 1, 3, 3}, 5).to(DType::f32)), conv.bias.assign(noise({5}, 6).to(DType::f32));
    conv.to(MemoryFormat::channels_last);
  }
  Tensor forward(const Tensor& x) const {
    return head(conv(x.reshape({x.size(0), 1, 1, 3})).contiguous().reshape({x.size(0), 15}));
  }
  void members(Members& m) override { m("conv", conv), m("head", head); }
};

template <class M>
void check_same(const char* name, const FullyShardedOptions& options) {
  INFO(name);
  const int count = 3;
  const auto expected = run_ranks(3, [&](Communicator& c) { return train_replicated(c, M(), sgd(), count); });
  const auto result = run_ranks(3, [&](Communicator& c) { return train_sharded(c, M(), sgd(), count, options); });
  CHECK(result == expected);
}

}  // namespace

TEST_CASE("units of every kind end with the bits of replicated ranks") {
  check_same<TiedPair>("tied in one unit", {});
  check_same<Repeated>("a unit that is called three times", {.wrap = wrap_modules<Block>()});
  check_same<Checkpointed>("checkpointed units", {.wrap = wrap_modules<Block>()});
  check_same<Checkpointed>("checkpointed layers", {.wrap = wrap_modules<Layer>()});
  check_same<Image>("channels last", {.wrap = wrap_names({"conv"})});
}

TEST_CASE("frozen parameters stay in their units") {
  check_same<Adapted>("units", {.wrap = wrap_names({"pair", "still", "out"})});
  check_same<Adapted>("layers", {.wrap = wrap_modules<Layer>()});
  check_same<Adapted>("one unit", {});
}

TEST_CASE("units are numbered in the order of the modules and have what no unit below has") {
  const auto names = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Tower(), c, {.wrap = wrap_modules<Block>()});
    FullyShardedDataParallel nested(Tower(), c, {.wrap = wrap_names({"blocks.1", "blocks.1.up", "head", "nobody"})});
    // Whole blocks have 13 * 37 * 2 + 50 elements: neither layer alone reaches 600.
    FullyShardedDataParallel sized(Tower(), c, {.wrap = wrap_by_size(600)});
    return std::vector{net.unit_names(), nested.unit_names(), sized.unit_names()};
  });
  CHECK(names[0][0] == Names{"", "blocks.0", "blocks.1", "blocks.2"});
  CHECK(names[0][1] == Names{"", "blocks.1", "blocks.1.up", "head"});
  CHECK(names[0][2] == Names{"", "blocks.0", "blocks.1", "blocks.2"});
}

TEST_CASE("gradients that stay without communication are reduced with the next ones, bit for bit") {
  const auto train = [](auto& net, Communicator& c) {
    SGD optimizer(net.parameters(), {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      {
        const NoSync local = net.no_sync();
        for (int i = 0; i < 2; ++i) loss_of(net(rows_of(c, step * 3 + i))).backward();
      }
      loss_of(net(rows_of(c, step * 3 + 2))).backward();
      optimizer.step();
    }
  };
  const auto expected = run_ranks(3, [&](Communicator& c) {
    DistributedDataParallel<Tower> net(Tower(), c, small_buckets());
    train(net, c);
    return all_parameters(net.module());
  });
  const auto result = run_ranks(3, [&](Communicator& c) {
    FullyShardedDataParallel<Tower> net(Tower(), c, {.wrap = wrap_modules<Block>()});
    train(net, c);
    return values_of(net.whole_state_dict());
  });
  CHECK(result == expected);
}

TEST_CASE("gradients stay sharded and add up over backwards that communicate") {
  const auto sums = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    const Tensor x = counting({2, 3}, c.device(), c.rank());
    const auto gradients = [&] {
      Doubles all;
      for (const Parameter& parameter : net.parameters())
        for (const double value : values(parameter.grad())) all.push_back(value);
      return all;
    };
    loss_of(net(x)).backward();
    const Doubles once = gradients();
    loss_of(net(x)).backward();
    const Doubles twice = gradients();
    Doubles ratio;
    for (std::size_t i = 0; i < once.size(); ++i) ratio.push_back(twice[i] - 2 * once[i]);
    return ratio;
  });
  for (const Doubles& rank : sums)
    for (const double difference : rank) CHECK(difference == 0);
}

TEST_CASE("two forwards and two backwards gather again what the first forward used") {
  const auto ends = run_ranks(2, [](Communicator& c) {
    Doubles all;
    for (const bool stays : {false, true}) {
      FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>(), .reshard_after_forward = !stays});
      const Tensor a = loss_of(net(counting({2, 3}, c.device()))), b = loss_of(net(counting({2, 3}, c.device(), 2)));
      b.backward({}, {.retain_graph = true});
      a.backward();
      b.backward();
      SGD(net.parameters(), {.lr = 0.1}).step();
      for (const double value : values_of(net.whole_state_dict())) all.push_back(value);
    }
    return all;
  });
  const auto expected = run_ranks(2, [&](Communicator& c) {
    Mlp module;
    module.to(c.device());
    for (const double start : {1.0, 2.0, 2.0}) loss_of(module(counting({2, 3}, c.device(), start))).backward();
    SGD(module.parameters(), {.lr = 0.1}).step();
    return all_parameters(module);
  });
  const std::size_t half = ends[0].size() / 2;
  CHECK(largest_difference(Doubles(ends[0].begin(), ends[0].begin() + static_cast<std::ptrdiff_t>(half)),
                           expected[0]) <= 1e-12);
  CHECK(std::equal(ends[0].begin(), ends[0].begin() + static_cast<std::ptrdiff_t>(half),
                   ends[0].begin() + static_cast<std::ptrdiff_t>(half)));
}

TEST_CASE("evaluation gathers too, and leaves nothing behind") {
  const auto outputs = run_ranks(3, [](Communicator& c) {
    FullyShardedDataParallel net(Tower(), c, {.wrap = wrap_modules<Block>()});
    net.eval();
    const NoGrad no_grad;
    return values(net(batch(0, 1, DType::f32, c.device())).to(DType::f64));
  });
  Tower plain;
  plain.eval();
  const NoGrad no_grad;
  CHECK(different(outputs) == 0);
  CHECK(outputs[0] == values(plain(batch(0, 1, DType::f32, Device::cpu())).to(DType::f64)));
}

TEST_CASE("ignored parameters stay whole and their gradients on the rank; the norm counts them once") {
  const auto result = run_ranks(4, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.ignore = {"second.weight"}});
    sum(net(counting({1, 3}, c.device(), 1))).backward();
    const Parameter ignored = net.module().second.weight;
    const Doubles own = values(ignored.grad());
    const double norm = net.clip_grad_norm(1e9).item<double>();
    const double largest =
        net.clip_grad_norm(1e9, {.norm_type = std::numeric_limits<double>::infinity()}).item<double>();
    return std::tuple(ignored.shape(), own, norm, largest);
  });
  Mlp plain;
  sum(plain(counting({1, 3}))).backward();
  const double norm = clip_grad_norm(plain.parameters(), 1e9).item<double>();
  const double largest =
      clip_grad_norm(plain.parameters(), 1e9, {.norm_type = std::numeric_limits<double>::infinity()}).item<double>();
  for (const auto& [shape, own, total, most] : result) {
    CHECK(shape == Shape{2, 5});
    CHECK(own == values(plain.second.weight.grad()));
    CHECK(std::abs(total - norm) <= 1e-12 * norm);
    CHECK(most == largest);
  }
}

TEST_CASE("mixed precision has the bits of replicated ranks") {
  for (const DdpMixedPrecision& mixed : {DdpMixedPrecision{.param_dtype = DType::bf16},
                                         DdpMixedPrecision{.param_dtype = DType::bf16, .reduce_dtype = DType::f32},
                                         DdpMixedPrecision{.reduce_dtype = DType::bf16, .buffer_dtype = DType::f64}}) {
    const auto expected = run_ranks(3, [&](Communicator& c) {
      DistributedDataParallelOptions options = small_buckets();
      options.mixed_precision = mixed;
      return train_replicated(c, Repeated(), sgd(), 3, 0, options);
    });
    const auto result = run_ranks(3, [&](Communicator& c) {
      return train_sharded(c, Repeated(), sgd(), 3, {.wrap = wrap_modules<Block>(), .mixed_precision = mixed});
    });
    CHECK(result == expected);
  }
}

TEST_CASE("summoned parameters are whole, and what is written to them stays") {
  const auto result = run_ranks(3, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    sum(net(counting({1, 3}, c.device()))).backward();
    const Tensor gradient = net.module().first.weight.grad();
    Doubles seen;
    {
      const auto whole = net.summon();
      seen = values(net.module().first.weight.tensor());
      net.module().first.weight.assign(full({5, 3}, 4, {.dtype = DType::f64}));
    }
    {
      const auto whole = net.summon(false);
      net.module().second.bias.assign(full({2}, 9, {.dtype = DType::f64}));
    }
    const bool same = net.module().first.weight.grad().identity() == gradient.identity();
    loss_of(net(counting({1, 3}, c.device()))).backward();
    auto state = net.whole_state_dict();
    return std::tuple(same, seen, values(state[0].tensor), values(state[3].tensor));
  });
  for (const auto& [same, seen, weight, bias] : result) {
    CHECK(same);
    CHECK(seen == values(noise({5, 3}, 1)));
    CHECK(weight == Doubles(15, 4.0));
    CHECK(bias == values(noise({2}, 102)));
  }
}

TEST_CASE("parameters on no device are initialised unit by unit") {
  struct Late : Module<Late> {
    Parameter weight = Parameter::uninitialized({5, 3}, DType::f32), bias = Parameter::uninitialized({5}, DType::f32);
    Tensor forward(const Tensor& x) const { return linear(x, weight.on(x.device()), bias.on(x.device())); }
    void members(Members& m) override { m("weight", weight), m("bias", bias); }
  };
  for (const bool sync : {true, false}) {
    const auto result = run_ranks(3, [&](Communicator& c) {
      FullyShardedDataParallel net(Late(), c,
                                   {.init_sync = sync, .initialise = [](const std::string& name, const Tensor& whole) {
                                      Tensor place = whole;
                                      place.copy_(noise(whole.shape(), name == "bias" ? 8 : 7));
                                    }});
      sum(net(noise({2, 3}, 1).to(DType::f32))).backward();
      return values_of(net.whole_state_dict());
    });
    CHECK(different(result) == 0);
    CHECK(result[0][0] == noise({5, 3}, 7).to(DType::f32).to(DType::f64).to_vector<double>()[0]);
    CHECK(result[0].back() == noise({5}, 8).to(DType::f32).to(DType::f64).to_vector<double>().back());
  }
}
