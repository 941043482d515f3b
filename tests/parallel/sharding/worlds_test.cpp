// What four ranks save, 1, 2 and 8 load: by every way of saving, other parameters ignored. Between replicated and
// sharded ranks too.
#include <filesystem>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "lockstep/tensor/io/safetensors.h"
#include "parallel/sharding/support.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using Catch::Matchers::Contains;
using lockstep::test::TemporaryFolder;

namespace {

// Values by name.
std::map<std::string, Doubles> by_name(const std::vector<NamedTensor>& state) {
  std::map<std::string, Doubles> found;
  for (const NamedTensor& named : state) found[named.name] = values_of({named});
  return found;
}

void step(const FullyShardedDataParallel<Tower>& net, Optimizer& optimizer, int number) {
  optimizer.zero_grad();
  loss_of(net(share(batch(number, 1, DType::f32, net.communicator().device()), 0))).backward();
  optimizer.step();
}

// A sharded set as readers see it: the files that the index names.
std::vector<NamedTensor> read_set(const std::string& folder, const std::string& stem) {
  const std::string index = lockstep::test::read_bytes(folder + '/' + stem + ".safetensors.index.json");
  std::vector<NamedTensor> all;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    const std::string name = each.path().filename().string();
    if (index.find('"' + name + '"') == std::string::npos) continue;
    for (NamedTensor& named : load_safetensors(each.path().string()).tensors) all.push_back(std::move(named));
  }
  return all;
}

}  // namespace

TEST_CASE("what four ranks save is loaded by 1, 2 and 8 from whole states, sharded sets and checkpoints") {
  const TemporaryFolder folder;
  const std::string set = folder / "set", checkpoints = folder / "checkpoints";
  std::filesystem::create_directory(set);
  const WholeState saved = run_ranks(4, [&](Communicator& c) {
    FullyShardedDataParallel<Tower> net(Tower(), c, {.wrap = wrap_modules<Block>(), .ignore = {"in.bias"}});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    for (int i = 0; i < 2; ++i) step(net, optimizer, i);
    net.save_sharded(set, optimizer);
    CheckpointWriter writer(checkpoints, c);
    std::vector<CheckpointEntry> entries = net.checkpoint_entries();
    for (CheckpointEntry& entry : net.checkpoint_entries(optimizer)) entries.push_back(std::move(entry));
    writer.save(2, entries);
    writer.close();
    return WholeState{net.whole_state_dict(), net.whole_state_dict(optimizer)};
  })[0];
  const WholeState of_files{read_set(set, "model"), read_set(set, "optimizer")};
  std::optional<Doubles> end;
  for (const int ranks : {1, 2, 8})
    for (const char* from : {"state", "set", "checkpoint"}) {
      if (support::watched() && ranks != 2) continue;
      INFO(ranks << " ranks from a " << from);
      const auto loaded = run_ranks(ranks, [&](Communicator& c) {
        FullyShardedDataParallel<Tower> net(Tower(), c, {.wrap = wrap_modules<Layer>(), .ignore = {"head.bias"}});
        for (const Parameter& part : net.parameters()) part.tensor().detach().zero_();
        Adam optimizer(net.parameters(), {.lr = 0.5});
        if (from == std::string("checkpoint")) {
          const std::optional<Checkpoint> found = newest_checkpoint(checkpoints, c);
          net.load_checkpoint(*found), net.load_checkpoint(optimizer, *found);
        } else {
          const WholeState& state = from == std::string("set") ? of_files : saved;
          net.load_whole_state_dict(state.model), net.load_whole_state_dict(optimizer, state.optimizer);
        }
        const WholeState now{net.whole_state_dict(), net.whole_state_dict(optimizer)};
        step(net, optimizer, 2);  // all ranks have the same rows
        return std::pair(now, values_of(net.whole_state_dict(-1)));
      });
      for (const auto& [now, after] : loaded) {
        CHECK(by_name(now.model) == by_name(saved.model));
        CHECK(by_name(now.optimizer) == by_name(saved.optimizer));
        if (!end) end = after;
        CHECK(largest_difference(after, *end) <= 1e-4);
      }
    }
}

TEST_CASE("a file of replicated ranks is loaded by sharded ones, and one of these by replicated ones") {
  const TemporaryFolder folder;
  const std::string file = folder / "replicated.safetensors", back = folder / "sharded.safetensors";
  const auto original = run_ranks(2, [&](Communicator& c) {
    DistributedDataParallel<Tower> net(Tower(), c);
    loss_of(net(rows_of(c, 0))).backward();
    SGD(net.parameters(), {.lr = 0.1}).step();
    if (c.rank() == 0) save_safetensors(file, net.module().state_dict());
    return by_name(net.module().state_dict());
  })[0];
  const auto sharded = run_ranks(3, [&](Communicator& c) {
    FullyShardedDataParallel<Tower> net(Tower(), c, {.wrap = wrap_modules<Block>()});
    net.load_whole_state_dict(load_safetensors(file, {.map = true}).tensors);
    const auto whole = net.whole_state_dict(0);
    if (c.rank() == 0) save_safetensors(back, whole);
    return by_name(whole);
  })[0];
  CHECK(sharded == original);
  const auto again = run_ranks(2, [&](Communicator& c) {
    DistributedDataParallel<Tower> net(Tower(), c);
    net.module().load_state_dict(load_safetensors(back).tensors);
    return by_name(net.module().state_dict());
  });
  for (const auto& state : again) CHECK(state == original);
}

TEST_CASE("a sharded set that is written over has no index until all of it is new") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto messages = messages_of_ranks(2, [&](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c);
    net.save_sharded(path);
    if (c.rank() == 1) {  // which cannot be written then
      const std::string mine = folder / "model-00002-of-00002.safetensors";
      std::filesystem::remove(mine);
      std::filesystem::create_directories(mine + "/in the way");
    }
    c.barrier();
    net.save_sharded(path);
  });
  for (const std::string& message : messages) CHECK_THAT(message, Contains("model-00002-of-00002.safetensors"));
  CHECK(!std::filesystem::exists(folder / "model.safetensors.index.json"));
}

TEST_CASE("a tensor that a state lacks, has besides or has in another shape is named before anything is changed") {
  const auto ranks = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c, {.wrap = wrap_modules<Affine>()});
    Adam optimizer(net.parameters(), {.lr = 0.1});
    sum(net(counting({1, 3}, c.device()))).backward();
    optimizer.step();
    const std::vector<NamedTensor> model = net.whole_state_dict(), state = net.whole_state_dict(optimizer);
    std::vector<std::string> said;
    const auto refused = [&](auto&& change) {
      std::vector<NamedTensor> changed = state;
      change(changed);
      said.push_back(message_of<InvalidArgument>([&] { net.load_whole_state_dict(optimizer, changed); }));
    };
    const auto is_moment = [](const NamedTensor& entry) { return entry.name == "state.second.weight.exp_avg"; };
    refused([&](auto& all) { std::erase_if(all, is_moment); });
    refused([&](auto& all) { all.push_back({"state.third.weight.exp_avg", zeros({2, 5})}); });
    refused([&](auto& all) { std::find_if(all.begin(), all.end(), is_moment)->tensor = zeros({5, 2}); });
    std::vector<NamedTensor> more = model;
    more.push_back({"third.weight", zeros({1})});
    said.push_back(message_of<InvalidArgument>([&] { net.load_whole_state_dict(more); }));
    net.load_whole_state_dict(more, false);
    const bool same =
        by_name(net.whole_state_dict()) == by_name(model) && by_name(net.whole_state_dict(optimizer)) == by_name(state);
    return std::pair(said, same);
  });
  for (const auto& [said, same] : ranks) {
    CHECK_THAT(said[0], Contains("state.second.weight.exp_avg"));
    CHECK_THAT(said[1], Contains("state.third.weight.exp_avg"));
    CHECK_THAT(said[2], Contains("state.second.weight.exp_avg") && Contains("[2, 5]") && Contains("[5, 2]"));
    CHECK_THAT(said[3], Contains("third.weight"));
    CHECK(same);
  }
}

TEST_CASE(
    "an optimizer that was made before its module was wrapped steps the parts, and one that has stepped is told") {
  const auto train = [](Communicator& c, bool stepped) {
    Tower module;
    module.to(c.device());
    Adam optimizer(module.parameters(), {.lr = 0.01});
    if (stepped) {
      loss_of(module(rows_of(c, 0))).backward();
      optimizer.step();
    }
    FullyShardedDataParallel<Tower> net(std::move(module), c, {.wrap = wrap_modules<Block>()});
    for (int i = 0; i < 2; ++i) {
      optimizer.zero_grad();
      loss_of(net(rows_of(c, i))).backward();
      optimizer.step();
    }
    return values_of(net.whole_state_dict());
  };
  const auto expected = run_ranks(2, [](Communicator& c) { return train_replicated(c, Tower(), adam(), 2); });
  CHECK(run_ranks(2, [&](Communicator& c) { return train(c, false); }) == expected);
  for (const std::string& message : messages_of_ranks(2, [&](Communicator& c) { train(c, true); }))
    CHECK_THAT(message, Contains("Adam"));
}
