// Which norms are converted, and that nothing else changes.
#include "lockstep/parallel/sync_norm/convert_sync_batchnorm.h"

#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/support.h"
#include "parallel/sync_norm/support.h"

using namespace parallel_test;

namespace {

struct NormBlock : Module<NormBlock> {
  Linear linear{3, 3};
  BatchNorm1d norm{3};
  void members(Members& m) override { m("linear", linear), m("norm", norm); }
  Tensor forward(const Tensor& x) const { return norm(linear(x)); }
};
// `again` is the norm of the first block.
struct Blocks : Module<Blocks> {
  std::vector<NormBlock> blocks{2};
  BatchNorm2d last{3};
  GroupNorm groups{1, 3};
  void members(Members& m) override {
    m("blocks", blocks), m("last", last), m("groups", groups), m("again", blocks[0].norm);
  }
  Tensor forward(const Tensor& x) const { return blocks[1](blocks[0](x)); }
};

std::vector<const ParameterBody*> bodies(const ModuleBase& module) {
  std::vector<const ParameterBody*> all;
  for (const auto& list : {module.parameters(), module.buffers()})
    for (const Parameter& member : list) all.push_back(member.body());
  return all;
}

// Ranks are not forgotten: nothing compiles without them but what says that it is for replicas.
template <class M>
concept ConvertsAlone = requires(M& module) {
  convert_sync_batchnorm(module);
};
static_assert(!ConvertsAlone<NormBlock> && !ConvertsAlone<DistributedDataParallel<NormBlock>>);

// Norms that ranks differ in.
struct Several : Module<Several> {
  std::vector<BatchNorm1d> norms;
  void members(Members& m) override { m("norms", norms); }
};

}  // namespace

TEST_CASE("conversion finds every norm and keeps parameters, buffers and modes") {
  Blocks net;
  net.blocks[1].eval();
  const auto before = bodies(net);
  SGD optimizer(net.parameters(), {.lr = 0.1});
  CHECK(revert_sync_batchnorm(net) == 0);
  CHECK(convert_replica_batchnorm(net) == 3);
  CHECK(bodies(net) == before);
  CHECK(net.blocks[0].norm.is_training());
  CHECK(!net.blocks[1].norm.is_training());
  CHECK(net.blocks[0].norm.shared());
  CHECK(net.blocks[0].norm.shared() != net.blocks[1].norm.shared());
  CHECK(deep_copy(net).last.shared() == net.last.shared());
  CHECK(revert_sync_batchnorm(net) == 3);
  CHECK(!net.last.shared());
  Linear none(2, 2);
  CHECK(convert_replica_batchnorm(none) == 0);
  BatchNorm1d root(2);
  CHECK(convert_replica_batchnorm(root) == 1);
}

TEST_CASE("conversion among ranks counts norms, and again replaces what was shared") {
  const auto counts = run_ranks(2, [](Communicator& communicator) {
    Blocks net;
    Linear none(2, 2);
    std::vector<int> found{convert_sync_batchnorm(net, communicator), convert_sync_batchnorm(none, communicator)};
    const auto first = net.last.shared();
    convert_sync_batchnorm(net, communicator);
    found.push_back(first != net.last.shared());
    found.push_back(convert_replica_batchnorm(net));  // among replicas instead
    found.push_back(revert_sync_batchnorm(net));
    return found;
  });
  for (const auto& rank : counts) CHECK(rank == std::vector<int>{3, 0, 1, 3, 3});
}

TEST_CASE("ranks whose norms differ are told so, all of them, and stay as they are") {
  struct Differing {
    const char* what;
    std::function<Several(int rank)> make;
    std::vector<std::string> parts;
  };
  const auto of = [](std::vector<BatchNormOptions> options, std::int64_t channels = 3) {
    Several several;
    for (const BatchNormOptions& each : options) several.norms.emplace_back(channels, each);
    return several;
  };
  BatchNormOptions average;
  average.momentum = std::nullopt;
  const std::vector<Differing> all{
      {"count",
       [&](int rank) { return of(std::vector<BatchNormOptions>(rank == 1 ? 1 : 2)); },
       {"on rank 0 'norms.1' [3]", "on rank 1 nothing more"}},
      {"channels", [&](int rank) { return of({{}}, rank == 1 ? 4 : 3); }, {"'norms.0' [3]", "on rank 1 'norms.0' [4]"}},
      {"momentum",
       [&](int rank) {
         return of({{}, rank == 1 ? average : BatchNormOptions{}});
       },
       {"on rank 0 'norms.1'", "momentum 0.1", "momentum none"}},
      {"none",
       [&](int rank) { return of(std::vector<BatchNormOptions>(rank == 1 ? 1 : 0)); },
       {"on rank 0 nothing more", "on rank 1 'norms.0'"}}};
  for (const Differing& differing : all) {
    INFO(differing.what);
    std::vector<int> converted(2);
    const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
      Several several = differing.make(communicator.rank());
      try {
        convert_sync_batchnorm(several, communicator);
      } catch (const InvalidArgument&) {
        for (const BatchNorm1d& norm : several.norms)
          converted[static_cast<std::size_t>(communicator.rank())] += norm.shared() != nullptr;
        communicator.barrier();  // it is not broken
        throw;
      }
    });
    for (const std::string& message : messages)
      for (const std::string& part : differing.parts) CHECK(missing(message, {part}) == "");
    CHECK(converted == std::vector<int>{0, 0});
  }
}

TEST_CASE("norms may be converted before and after the module is wrapped") {
  // One step of each, against one device with the whole batch.
  const auto train = [](auto& net, const Tensor& x) {
    SGD optimizer(net.parameters(), {.lr = 0.1});
    const Tensor y = net(x);
    mean(y * y * x).backward();
    optimizer.step();
  };
  NormBlock whole = seeded<NormBlock>(3);
  train(whole, batch(0, 2, DType::f64, Device::cpu()));
  for (const bool before : {true, false}) {
    const auto results = run_ranks(2, [&](Communicator& communicator) {
      NormBlock module = seeded<NormBlock>(3);
      if (before) convert_sync_batchnorm(module, communicator);
      DistributedDataParallel<NormBlock> net(std::move(module), communicator);
      if (!before) convert_sync_batchnorm(net, communicator);
      train(net, share(batch(0, 2, DType::f64, communicator.device()), communicator.rank()));
      return all_parameters(net.module());
    });
    CHECK(different(results) == 0);
    CHECK(largest_difference(results[0], all_parameters(whole)) < 1e-10);
  }
}
