// Sharded ranks make OpenMMLab's steps as replicated ones do.
#include "lockstep/parallel/openmmlab/mm_fully_sharded_data_parallel.h"

#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;

namespace {

struct Model : BaseModel<Model> {
  Layer in{3, 5, 1};
  Block block{5, 7, 2};
  ModelOutput<Tensor, Tensor> forward(const Tensor& x, Mode mode) const {
    const Tensor y = block(in(x));
    if (mode != Mode::loss) return y;
    return Losses{{"loss", y * y}};
  }
  void members(Members& m) override { m("in", in), m("block", block); }
};

template <class Net, class... Options>
std::vector<Doubles> train(Communicator& c, bool clips, const Options&... options) {
  Net net(Model(), c, options...);
  ClipGrad clip{.max_norm = 0.01};
  if constexpr (requires { net.clipping(); }) clip.clips_norm = net.clipping();
  OptimWrapper optim(SGD(net.parameters(), {.lr = 0.1}),
                     {.accumulative_counts = 2, .clip_grad = clips ? std::optional(clip) : std::nullopt});
  for (int i = 0; i < 6; ++i) net.train_step(std::tuple(rows_of(c, i)), optim);
  const NoGrad no_grad;
  const Tensor seen = net.val_step(std::tuple(rows_of(c, 9)));
  Doubles parameters;
  if constexpr (requires { net.whole_state_dict(); })
    parameters = values_of(net.whole_state_dict());
  else
    parameters = all_parameters(net.module());
  return {parameters, values(seen.to(DType::f64))};
}

// The losses of a step with the model's wrapper.
template <class Net>
void steps_of(const Net& net, Communicator& c, OptimWrapper& optim, int from, int to) {
  for (int i = from; i < to; ++i) net.train_step(std::tuple(rows_of(c, i)), optim);
}

}  // namespace

// Enumerators, functions and options have types here: what mmengine refuses at run time does not compile.
static_assert(!std::is_constructible_v<MMFullyShardedDataParallel<Model>, Model, Communicator&, const char*>);
static_assert(!std::is_constructible_v<MMFullyShardedDataParallel<Model>, Model, Communicator&, WrapPolicy>);
static_assert(!std::is_constructible_v<MMFullyShardedDataParallel<Model>, Communicator&, Model>);
static_assert(!std::is_constructible_v<WrapPolicy, std::string>);
static_assert(!std::is_assignable_v<decltype(FullyShardedOptions::mixed_precision)&, std::string>);
// Communication hooks belong to buckets, which units are not: reduce_dtype is what there is.
template <class Net>
constexpr bool kTakesHooks = requires(Net& net, CommHook hook) {
  net.register_comm_hook(std::move(hook));
};
static_assert(kTakesHooks<MMDistributedDataParallel<Model>> && !kTakesHooks<MMFullyShardedDataParallel<Model>>);

TEST_CASE("sharded ranks save, begin again on other numbers of ranks, and go on") {
  struct Saved {
    std::vector<NamedTensor> model, optimizer;
    Doubles end;
  };
  const auto train = [](int ranks, const Saved& from, int begin, int end) {
    return run_ranks(ranks, [&](Communicator& c) {
      MMFullyShardedDataParallel<Model> net(Model(), c, FullyShardedOptions{.wrap = wrap_modules<Block>()});
      std::vector<SgdGroup> groups;  // one for each parameter
      for (const Parameter& parameter : net.parameters()) groups.push_back({.parameters = {parameter}});
      OptimWrapper optim(SGD(groups, {.lr = 0.1, .momentum = 0.9}));
      if (!from.model.empty()) {
        net.load_whole_state_dict(from.model);
        net.load_whole_state_dict(optim.optimizer(), from.optimizer);
      }
      for (int i = begin; i < end; ++i)  // all ranks see the same rows
        net.train_step(std::tuple(share(batch(i, 1, DType::f32, c.device()), 0)), optim);
      const auto state = net.whole_state_dict();
      return Saved{state, net.whole_state_dict(optim.optimizer()), values_of(state)};
    })[0];
  };
  const Saved half = train(2, {}, 0, 2), whole = train(2, half, 2, 4);
  CHECK(whole.end == train(2, {}, 0, 4).end);
  for (const int ranks : {1, 4}) CHECK(largest_difference(train(ranks, half, 2, 4).end, whole.end) <= 1e-5);
}

TEST_CASE("a frozen layer of a sharded model keeps its bits, and val_step and test_step give the model's tensor") {
  const auto result = run_ranks(2, [](Communicator& c) {
    Model model;
    model.in.set_requires_grad(false);
    MMFullyShardedDataParallel<Model> net(std::move(model), c, FullyShardedOptions{.wrap = wrap_modules<Block>()});
    const Doubles before = values_of(net.whole_state_dict());
    OptimWrapper optim(SGD(net.parameters(), {.lr = 0.1}));
    steps_of(net, c, optim, 0, 2);
    const auto after = net.whole_state_dict();
    const NoGrad no_grad;
    const Tensor seen = net.val_step(std::tuple(rows_of(c, 9))), again = net.test_step(std::tuple(rows_of(c, 9)));
    return std::tuple(before, values_of(after), values(seen.to(DType::f64)) == values(again.to(DType::f64)),
                      seen.shape());
  });
  for (const auto& [before, after, same, shape] : result) {
    const std::size_t frozen = 3 * 5 + 5;
    CHECK(std::equal(before.begin(), before.begin() + frozen, after.begin()));
    CHECK(before != after);
    CHECK(same);
    CHECK(shape == Shape{kRowsPerRank, 5});
  }
}

TEST_CASE("sharded ranks make the steps of replicated ones, with accumulation, clipping and validation") {
  for (const bool clips : {false, true}) {
    const auto expected =
        run_ranks(3, [&](Communicator& c) { return train<MMDistributedDataParallel<Model>>(c, clips); });
    const auto result = run_ranks(3, [&](Communicator& c) {
      return train<MMFullyShardedDataParallel<Model>>(c, clips, FullyShardedOptions{.wrap = wrap_modules<Block>()});
    });
    for (std::size_t r = 0; r < 3; ++r)
      for (std::size_t k = 0; k < 2; ++k) CHECK(largest_difference(result[r][k], expected[r][k]) <= (clips ? 1e-6 : 0));
  }
}
