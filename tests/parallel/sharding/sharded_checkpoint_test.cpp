// The parts of FullyShardedDataParallel in checkpoints: written by some ranks, read by others, and by plain modules.
#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "parallel/sharding/support.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using Catch::Matchers::Contains;
using lockstep::test::TemporaryFolder;

namespace {

// Layers, and a convolution whose weight lies in channels_last.
struct Picture : Module<Picture> {
  Tower tower;
  Conv2d conv{3, 5, 3};
  Picture() { conv.to(MemoryFormat::channels_last); }
  Tensor forward(const Tensor& x) const { return tower(x) + mean(conv(ones({1, 3, 4, 4}, {.device = x.device()}))); }
  void members(Members& m) override { m("tower", tower), m("conv", conv); }
};

void expect_same(const std::vector<NamedTensor>& got, const std::vector<NamedTensor>& wanted) {
  REQUIRE(got.size() == wanted.size());
  std::map<std::string, Tensor> by_name;
  for (const NamedTensor& named : got) by_name[named.name] = named.tensor;
  for (const NamedTensor& named : wanted) {
    INFO(named.name);
    REQUIRE(by_name.count(named.name) == 1);
    CHECK(by_name[named.name].shape() == named.tensor.shape());
    CHECK(values_of({{"", by_name[named.name]}}) == values_of({named}));
  }
}

template <class Net>
void step(Net& net, Optimizer& optimizer, Communicator& c, int number) {
  optimizer.zero_grad();
  loss_of(net(rows_of(c, number))).backward();
  optimizer.step();
}

}  // namespace

TEST_CASE("parts are saved while the training goes on, and loaded by other ranks, other units and plain modules") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const WholeState saved = run_ranks(4, [&](Communicator& c) {
    FullyShardedDataParallel net(Picture(), c, {.wrap = wrap_modules<Block>()});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    for (int i = 0; i < 2; ++i) step(net, optimizer, c, i);
    WholeState state{net.whole_state_dict(), net.whole_state_dict(optimizer)};
    CheckpointWriter writer(path, c);
    std::vector<CheckpointEntry> entries = net.checkpoint_entries();
    for (CheckpointEntry& entry : net.checkpoint_entries(optimizer)) entries.push_back(std::move(entry));
    writer.save(2, entries);
    step(net, optimizer, c, 2);  // which the snapshot does not see
    writer.close();
    return state;
  })[0];

  const std::optional<Checkpoint> found = newest_checkpoint(path);
  REQUIRE(found);
  expect_same(found->load_all("model."), saved.model);
  expect_same(found->load_all("optimizer."), saved.optimizer);
  CHECK(values_of({{"", found->load("model.conv.weight", 1, 1, 2)}}) ==
        values_of({{"", found->load("model.conv.weight").narrow(1, 1, 2)}}));

  const Tensor weight = found->load("model.conv.weight");  // in memory it lies in another order
  CHECK(values_of({{"", found->load_elements("model.conv.weight", 7, 50)}}) ==
        values_of({{"", weight.reshape({weight.count()}).narrow(0, 7, 50)}}));

  for (const int ranks : {1, 3}) {
    const WholeState again = run_ranks(ranks, [&](Communicator& c) {
      FullyShardedDataParallel net(Picture(), c, {.wrap = wrap_modules<Layer>()});
      Adam optimizer(net.parameters(), {.lr = 0.5});
      const std::optional<Checkpoint> mine = newest_checkpoint(path, c);
      net.load_checkpoint(*mine);
      net.load_checkpoint(optimizer, *mine);
      return WholeState{net.whole_state_dict(), net.whole_state_dict(optimizer)};
    })[0];
    expect_same(again.model, saved.model);
    expect_same(again.optimizer, saved.optimizer);
  }

  Picture plain;
  Adam optimizer(plain.parameters(), {.lr = 0.5});
  plain.load_state_dict(found->load_all("model."));
  optimizer.load_state_dict(found->load_all("optimizer."), plain);
  expect_same(plain.state_dict(), saved.model);
}

TEST_CASE("what a plain module saved whole is loaded in parts, and what does not fit is refused") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto ranks = run_ranks(2, [&](Communicator& c) {
    CheckpointWriter writer(path, c);
    Picture plain;
    std::vector<CheckpointEntry> entries;
    for (const NamedTensor& named : plain.state_dict()) entries.push_back({"model." + named.name, named.tensor});
    for (const NamedTensor& named : Mlp().state_dict()) entries.push_back({"other." + named.name, named.tensor});
    writer.save(1, entries);
    writer.close();
    const std::optional<Checkpoint> found = newest_checkpoint(path, c);
    FullyShardedDataParallel net(Picture(), c, {.wrap = wrap_modules<Block>()});
    for (const Parameter& part : net.parameters()) part.tensor().detach().zero_();
    net.load_checkpoint(*found);
    return std::pair(net.whole_state_dict(),
                     message_of<InvalidArgument>([&] { net.load_checkpoint(*found, "other."); }));
  });
  const std::vector<NamedTensor> saved = newest_checkpoint(path)->load_all("model.");  // rank 0's
  for (const auto& [state, message] : ranks) {
    expect_same(state, saved);
    CHECK_THAT(message, Contains("first.weight"));
  }
}

TEST_CASE("runs of elements are checked when they are saved") {
  const TemporaryFolder folder;
  const auto save = [&](const TensorShard& shard, const Shape& part) {
    return messages_of_ranks(1, [&](Communicator& c) {
      CheckpointWriter writer(folder.path().string(), c);
      writer.save(1, {{"x", zeros(part), shard}});
      writer.close();
    })[0];
  };
  CHECK_THAT(save({{2, 3}, TensorShard::kElements, 4}, {3}), Contains("elements of [2, 3] from 4") && Contains("[3]"));
  CHECK_THAT(save({{2, 3}, TensorShard::kElements, 0}, {2, 3}), Contains("a run of the elements"));
  CHECK_THAT(save({{2, 3}, TensorShard::kElements, 0, MemoryFormat::channels_last}, {6}), Contains("a run of"));
  CHECK_THAT(save({{2, 3}, TensorShard::kElements, 1}, {5}), Contains("elements of [2, 3]") && Contains("from 0"));
}
