// What one world saves another one loads, sharded or not.
#include <filesystem>

#include "lockstep/tensor/io/safetensors.h"
#include "parallel/sharding/support.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using Catch::Matchers::Contains;
using lockstep::test::TemporaryFolder;

namespace {

template <class Net>
void train(Net& net, Optimizer& optimizer, Communicator& c, int from, int to) {
  for (int i = from; i < to; ++i) {
    optimizer.zero_grad();
    loss_of(net(share(batch(i, 4, DType::f32, c.device()), 0))).backward();
    optimizer.step();
  }
}

// All ranks see the same rows, so that the number of ranks makes no difference but in rounding.
WholeState after(int ranks, const FullyShardedOptions& options, int from, int to, const WholeState& begin = {}) {
  return run_ranks(ranks, [&](Communicator& c) {
    FullyShardedDataParallel<Tower> net(Tower(), c, options);
    Adam optimizer(net.parameters(), {.lr = 0.01});
    if (!begin.model.empty()) {
      net.load_whole_state_dict(begin.model);
      net.load_whole_state_dict(optimizer, begin.optimizer);
    }
    train(net, optimizer, c, from, to);
    return WholeState{net.whole_state_dict(), net.whole_state_dict(optimizer)};
  })[0];
}

Doubles plain_after(int from, int to, const WholeState& begin, WholeState* end = nullptr) {
  Tower net;
  Adam optimizer(net.parameters(), {.lr = 0.01});
  if (!begin.model.empty()) {
    net.load_state_dict(begin.model);
    optimizer.load_state_dict(begin.optimizer, net);
  }
  for (int i = from; i < to; ++i) {
    optimizer.zero_grad();
    loss_of(net(share(batch(i, 4, DType::f32, Device::cpu()), 0))).backward();
    optimizer.step();
  }
  if (end) *end = {net.state_dict(), optimizer.state_dict(net)};
  return all_parameters(net);
}

}  // namespace

TEST_CASE("a whole state is loaded on another number of ranks, with other units, and by a plain module") {
  const WholeState half = after(4, {.wrap = wrap_modules<Block>()}, 0, 2);
  // Names and shapes are those of the plain module and optimizer.
  WholeState plain;
  plain_after(0, 2, {}, &plain);
  REQUIRE(half.model.size() == plain.model.size());
  for (std::size_t i = 0; i < plain.model.size(); ++i) {
    CHECK(half.model[i].name == plain.model[i].name);
    CHECK(half.model[i].tensor.shape() == plain.model[i].tensor.shape());
  }
  CHECK(half.optimizer.size() == plain.optimizer.size());
  const Doubles expected = values_of(after(4, {.wrap = wrap_modules<Block>()}, 2, 4, half).model);
  CHECK(largest_difference(plain_after(2, 4, half), expected) <= 1e-4);
  for (const int ranks : {1, 3}) {
    const WholeState end = after(ranks, {.wrap = wrap_modules<Layer>()}, 2, 4, half);
    CHECK(largest_difference(values_of(end.model), expected) <= 1e-4);
    // What is loaded and saved again is what was saved.
    const WholeState same = after(ranks, {}, 0, 0, half);
    CHECK(values_of(same.model) == values_of(half.model));
  }
  const WholeState from_plain = after(3, {.wrap = wrap_modules<Block>()}, 0, 0, plain);
  CHECK(values_of(from_plain.model) == values_of(plain.model));
}

TEST_CASE("a whole state goes to one rank where only one is to have it") {
  const auto sizes = run_ranks(3, [](Communicator& c) {
    FullyShardedDataParallel<Tower> net(Tower(), c);
    return net.whole_state_dict(1).size();
  });
  CHECK(sizes[0] == 0);
  CHECK(sizes[1] > 0);
  CHECK(sizes[2] == 0);
}

TEST_CASE("a whole state that does not fit is refused before anything is changed") {
  const auto ranks = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel net(Mlp(), c);
    std::vector<NamedTensor> state = net.whole_state_dict();
    const Doubles before = values_of(state);
    std::vector<std::string> said;
    state[0].tensor = state[0].tensor.reshape({3, 5});
    said.push_back(message_of<Error>([&] { net.load_whole_state_dict(state); }));
    state.erase(state.begin());
    said.push_back(message_of<Error>([&] { net.load_whole_state_dict(state); }));
    return std::pair(said, values_of(net.whole_state_dict()) == before);
  });
  for (const auto& [said, same] : ranks) {
    CHECK_THAT(said[0], Contains("'first.weight'") && Contains("[5, 3]") && Contains("[3, 5]"));
    CHECK_THAT(said[1], Contains("first.weight"));
    CHECK(same);
  }
}

// Every rank has seen rows of its own: their statistics differ.
TEST_CASE("what is not divided is that of rank 0 in a sharded set, whoever writes the most") {
  const TemporaryFolder folder;
  const auto ranks = run_ranks(3, [&](Communicator& c) {
    FullyShardedDataParallel<Tower> net(Tower(), c, {.ignore = {"head.weight"}});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    loss_of(net(rows_of(c, 0))).backward();
    optimizer.step();
    net.save_sharded(folder.path().string(), optimizer);
    std::vector<NamedTensor> state = net.whole_state_dict();
    for (NamedTensor& each : net.whole_state_dict(optimizer)) state.push_back(std::move(each));
    return state;
  });
  std::map<std::string, Tensor> found;
  for (const char* stem : {"model", "optimizer"})
    for (int r = 1; r <= 3; ++r)
      for (const NamedTensor& each : load_safetensors(folder / cat(stem, "-0000", r, "-of-00003.safetensors")).tensors)
        found[each.name] = each.tensor;
  int own = 0;
  for (std::size_t i = 0; i < ranks[0].size(); ++i) {
    INFO(ranks[0][i].name);
    CHECK(values_of({{"", found.at(ranks[0][i].name)}}) == values_of({ranks[0][i]}));
    own += values_of({ranks[0][i]}) != values_of({ranks[1][i]});
  }
  CHECK(own >= 4);  // statistics, and what is ignored
}

TEST_CASE("ranks write a sharded set with its index, each tensor whole in one file") {
  const TemporaryFolder folder;
  const auto whole = run_ranks(3, [&](Communicator& c) {
    FullyShardedDataParallel<Tower> net(Tower(), c, {.wrap = wrap_modules<Block>()});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    train(net, optimizer, c, 0, 1);
    net.save_sharded(folder.path().string(), optimizer);
    return WholeState{net.whole_state_dict(), net.whole_state_dict(optimizer)};
  })[0];
  for (const auto& [stem, state] :
       {std::pair<std::string, std::vector<NamedTensor>>{"model", whole.model}, {"optimizer", whole.optimizer}}) {
    std::map<std::string, Tensor> found;
    std::size_t bytes = 0;
    const std::string index = lockstep::test::read_bytes(folder / (stem + ".safetensors.index.json"));
    for (int r = 1; r <= 3; ++r) {
      const std::string file = cat(stem, "-0000", r, "-of-00003.safetensors");
      for (const NamedTensor& named : load_safetensors(folder / file).tensors) {
        CHECK(found.emplace(named.name, named.tensor).second);
        CHECK_THAT(index, Contains(cat('"', named.name, "\": \"", file, '"')));
        bytes += named.tensor.bytes();
      }
    }
    CHECK_THAT(index, Contains(cat("\"total_size\": ", bytes)));
    CHECK(found.size() == state.size());
    for (const NamedTensor& named : state) CHECK(values_of({{"", found.at(named.name)}}) == values_of({named}));
  }
}

TEST_CASE("a rank that cannot write its file of a set is an error on every rank, and leaves no index") {
  const TemporaryFolder folder;
  const auto messages = [&](const std::string& into) {
    return messages_of_ranks(2, [&](Communicator& c) {
      FullyShardedDataParallel net(Mlp(), c);
      net.save_sharded(into);
    });
  };
  for (const std::string& message : messages(folder / "nowhere"))
    CHECK_THAT(message, Contains("[save_sharded] ") && Contains("nowhere") && Contains("No such file or directory"));
  const std::string set = folder / "set", second = set + "/model-00002-of-00002.safetensors",
                    index = set + "/model.safetensors.index.json";
  std::filesystem::create_directories(second);
  lockstep::test::write_bytes(index, "of an older set");
  for (const std::string& message : messages(set))
    CHECK_THAT(message, Contains("[save_sharded] ") && Contains(second) && Contains("Is a directory"));
  CHECK_THAT(messages(set)[0], Contains("[save_sharded] rank 1: "));
  CHECK(!std::filesystem::exists(index));
  std::filesystem::remove(second);
  std::filesystem::create_directories(index + "/x");
  for (const std::string& message : messages(set))
    CHECK_THAT(message, Contains("cannot remove '" + index + "'") && Contains("Directory not empty"));
}
