// Sharded ranks make OpenMMLab's steps as replicated ones do.
#include "lockstep/parallel/openmmlab/mm_fully_sharded_data_parallel.h"

#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "parallel/sharding/support.h"

using namespace test;

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

}  // namespace

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
