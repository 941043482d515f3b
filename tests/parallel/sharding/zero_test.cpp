// ZeroRedundancyOptimizer: the bits of the optimizer alone, with its state divided among the ranks.
#include "lockstep/parallel/ddp/hooks/basic_hooks.h"
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "lockstep/tensor/optim/lr_schedule.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;
using Catch::Matchers::Contains;

namespace {

Doubles train(Communicator& c, int count, bool divided, const std::function<CommHook()>& hook = {}) {
  DistributedDataParallel<Tower> net(Tower(), c, small_buckets());
  if (hook) net.register_comm_hook(hook());
  const auto steps = [&](auto& optimizer) {
    for (int i = 0; i < count; ++i) {
      optimizer.zero_grad();
      loss_of(net(rows_of(c, i))).backward();
      optimizer.step();
    }
    return all_parameters(net.module());
  };
  Adam plain(net.parameters(), {.lr = 0.01});
  if (!divided) return steps(plain);
  ZeroRedundancyOptimizer optimizer(std::move(plain), c);
  return steps(optimizer);
}

std::size_t remembered(const std::vector<NamedTensor>& state) {
  std::size_t bytes = 0;
  for (const NamedTensor& entry : state)
    if (entry.name.ends_with("exp_avg") || entry.name.ends_with("exp_avg_sq")) bytes += entry.tensor.bytes();
  return bytes;
}

}  // namespace

TEST_CASE("a divided optimizer ends with the bits of the optimizer alone") {
  for (const auto& [name, make] : communicators())
    for (const int ranks : {1, 2, 3, 4}) {
      if (support::watched() && ranks != 3) continue;
      INFO(name << ", " << ranks << " ranks");
      const auto expected = run_ranks(ranks, [](Communicator& c) { return train(c, steps(), false); }, {.make = make});
      CHECK(run_ranks(ranks, [](Communicator& c) { return train(c, steps(), true); }, {.make = make}) == expected);
    }
}

TEST_CASE("a divided optimizer works with communication hooks") {
  const auto expected = run_ranks(3, [](Communicator& c) { return train(c, 3, false, bf16_compress_hook); });
  CHECK(run_ranks(3, [](Communicator& c) { return train(c, 3, true, bf16_compress_hook); }) == expected);
}

TEST_CASE("groups, schedules and loss scaling work on a divided optimizer as on the optimizer") {
  const auto train = [](Communicator& c, auto divide) {
    DistributedDataParallel<Tower> net(Tower(), c);
    auto optimizer = divide(SGD(
        {{.parameters = net.module().in.parameters()}, {.parameters = net.module().blocks[0].parameters(), .lr = 0.05}},
        {.lr = 0.1, .momentum = 0.9}));
    optimizer->add_group({.parameters = net.module().head.parameters(), .weight_decay = 0.1});
    LrScheduler schedule(*optimizer, StepLR{.step_size = 1, .gamma = 0.5});
    GradScaler scaler({.init_scale = 8});
    for (int i = 0; i < 3; ++i) {
      optimizer->zero_grad();
      scaler.scale(loss_of(net(rows_of(c, i)))).backward();
      scaler.step(*optimizer);
      scaler.update();
      schedule.step();
    }
    return std::pair(all_parameters(net.module()), optimizer->lr(1));
  };
  const auto expected = run_ranks(
      3, [&](Communicator& c) { return train(c, [](SGD o) { return std::make_unique<SGD>(std::move(o)); }); });
  const auto result = run_ranks(3, [&](Communicator& c) {
    return train(c, [&](SGD o) { return std::make_unique<ZeroRedundancyOptimizer<SGD>>(std::move(o), c); });
  });
  CHECK(result == expected);
  CHECK(result[0].second == 0.05 * 0.125);
}

TEST_CASE("the state of a divided optimizer is whole on request, and loads on any number of ranks") {
  const auto states = run_ranks(3, [](Communicator& c) {
    DistributedDataParallel<Tower> net(Tower(), c);
    ZeroRedundancyOptimizer optimizer(Adam(net.parameters(), {.lr = 0.01}), c);
    loss_of(net(share(batch(0, 1, DType::f32, c.device()), 0))).backward();
    optimizer.step();
    return std::tuple(optimizer.state_dict(), optimizer.whole_state_dict(1), optimizer.whole_state_dict(net.module()),
                      net.module().state_dict());
  });
  Tower net;
  Adam plain(net.parameters(), {.lr = 0.01});
  loss_of(net(share(batch(0, 1, DType::f32, Device::cpu()), 0))).backward();
  plain.step();
  std::size_t parts = 0, largest = 0;
  for (int r = 0; r < 3; ++r) {
    const std::size_t part = remembered(std::get<0>(states[static_cast<std::size_t>(r)]));
    parts += part;
    largest = std::max(largest, part);
    CHECK(std::get<1>(states[static_cast<std::size_t>(r)]).empty() == (r != 1));
  }
  CHECK(parts == remembered(plain.state_dict()));
  CHECK(largest * 100 <= parts * 45);
  // By index and by name, into the optimizer alone.
  Adam by_index(net.parameters(), {.lr = 0.5});
  by_index.load_state_dict(std::get<1>(states[1]));
  CHECK(by_index.lr() == 0.01);
  Adam by_name(net.parameters(), {.lr = 0.5});
  by_name.load_state_dict(std::get<2>(states[0]), net);
  // And divided again among two.
  const auto& whole = std::get<2>(states[0]);
  const std::vector<NamedTensor> untouched = whole;
  const auto two = run_ranks(2, [&](Communicator& c) {
    DistributedDataParallel<Tower> again(Tower(), c);
    ZeroRedundancyOptimizer optimizer(Adam(again.parameters(), {.lr = 0.5}), c);
    optimizer.load_state_dict(whole, again.module());
    return std::pair(remembered(optimizer.state_dict()), values_of(optimizer.whole_state_dict(again.module())).size());
  });
  for (const auto& [part, all] : two) {
    CHECK(part < remembered(whole));
    CHECK(all == values_of(whole).size());
  }
  // The caller's is as it was.
  REQUIRE(whole.size() == untouched.size());
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(whole[i].tensor.identity() == untouched[i].tensor.identity());
}

TEST_CASE("a divided optimizer under join steps for ranks that have run out") {
  const auto train = [](Communicator& c, bool divided) {
    DistributedDataParallel<Mlp> net(Mlp(), c);
    const auto loop = [&](auto& optimizer) {
      for (int i = 0; i < 2 + c.rank(); ++i) {
        optimizer.zero_grad();
        loss_of(net(counting({2, 3}, c.device(), i))).backward();
        optimizer.step();
      }
    };
    Adam plain(net.parameters(), {.lr = 0.01});
    if (divided) {
      ZeroRedundancyOptimizer optimizer(std::move(plain), c);
      join({net, optimizer}, [&] { loop(optimizer); });
    } else {
      join({net}, [&] { loop(plain); });
    }
    return all_parameters(net.module());
  };
  const auto expected = run_ranks(3, [&](Communicator& c) { return train(c, false); });
  CHECK(run_ranks(3, [&](Communicator& c) { return train(c, true); }) == expected);
}
