// Lists of parameters of odd kinds, groups that come later, states from other numbers of ranks, and ranks that differ.
// Gradients are set by hand, the same on every rank, as DistributedDataParallel leaves them: so the bits are those of
// the optimizer alone on any number of ranks.
#include "lockstep/parallel/ddp/hooks/power_sgd.h"
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "lockstep/tensor/optim/lr_schedule.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;
using Catch::Matchers::Contains;

namespace {

std::vector<Parameter> parameters_of(const std::vector<Shape>& shapes, Device device) {
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    parameters.emplace_back(noise(shapes[i], i).to(i % 3 == 2 ? DType::f64 : DType::f32).to(device));
  return parameters;
}

// Of all that are trained, or of every second one.
void set_gradients(const std::vector<Parameter>& parameters, int step, bool all = true) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].requires_grad() || (!all && i % 2 == 1)) continue;
    const Tensor like = parameters[i].tensor();
    const auto seed = static_cast<std::uint64_t>(100 * step) + i;
    parameters[i].set_grad(noise(like.shape(), seed).to(like.dtype()).to(like.device()));
  }
}

Doubles elements(const std::vector<Parameter>& parameters) {
  Doubles all;
  for (const Parameter& parameter : parameters)
    for (const double value : values(parameter.tensor().to(DType::f64))) all.push_back(value);
  return all;
}

const std::vector<Shape> kShapes{{5, 3}, {1}, {7, 2}, {}, {3, 5}, {0, 4}, {2}};

}  // namespace

TEST_CASE("a divided optimizer has empty, scalar and frozen parameters, and several dtypes, and ranks that own none") {
  for (const std::vector<Shape>& shapes : {kShapes, std::vector<Shape>{{6}}, std::vector<Shape>{{2}, {2}}}) {
    const auto train = [&](Communicator& c, auto&& step) {
      const std::vector<Parameter> parameters = parameters_of(shapes, c.device());
      parameters[0].set_requires_grad(shapes.size() < 3);
      for (int i = 0; i < 4; ++i) {
        if (i == 2) parameters[0].set_requires_grad(true);  // thawed
        set_gradients(parameters, i, i % 2 == 0);
        step(parameters);
      }
      return elements(parameters);
    };
    const auto expected = run_ranks(1, [&](Communicator& c) {
      std::optional<Adam> optimizer;
      return train(c, [&](const std::vector<Parameter>& parameters) {
        if (!optimizer) optimizer.emplace(parameters, AdamOptions{.lr = 0.01});
        optimizer->step();
        optimizer->zero_grad();
      });
    });
    const auto result = run_ranks(3, [&](Communicator& c) {
      std::optional<ZeroRedundancyOptimizer<Adam>> optimizer;
      return train(c, [&](const std::vector<Parameter>& parameters) {
        if (!optimizer) optimizer.emplace(Adam(parameters, {.lr = 0.01}), c);
        optimizer->step();
        optimizer->zero_grad();
      });
    });
    for (const Doubles& rank : result) CHECK(rank == expected[0]);
  }
}

TEST_CASE("parameters of a group that comes later go to who has the least; of equals, to the lowest rank") {
  const auto owners = run_ranks(3, [](Communicator& c) {
    const std::vector<Parameter> first = parameters_of({{4}, {9}, {4}, {4}}, c.device());
    ZeroRedundancyOptimizer optimizer(SGD(first, {.lr = 0.1}), c);
    std::vector<std::vector<int>> seen{optimizer.owners()};
    optimizer.add_group({.parameters = parameters_of({{1}, {2}, {2}}, c.device())});
    seen.push_back(optimizer.owners());
    return seen;
  });
  // 9 to rank 0, then 4, 4 and 4 to ranks 1, 2 and 1: totals 9, 8, 4. Then 2 and 2 to rank 2: 8; 1 to rank 1 of 8
  // and 8.
  for (const auto& seen : owners) {
    CHECK(seen[0] == std::vector<int>{1, 0, 2, 1});
    CHECK(seen[1] == std::vector<int>{1, 0, 2, 1, 1, 2, 2});
  }
}

TEST_CASE("a divided optimizer refuses what the optimizer refuses, and is left as it was") {
  run_ranks(2, [](Communicator& c) {
    const std::vector<Parameter> parameters = parameters_of({{4}, {3}}, c.device());
    ZeroRedundancyOptimizer optimizer(SGD(parameters, {.lr = 0.1}), c);
    const std::vector<int> owners = optimizer.owners();
    const bool refused =
        message_of<InvalidArgument>([&] { optimizer.add_group({.parameters = {}}); }) != "no error" &&
        message_of<InvalidArgument>([&] { optimizer.add_group({.parameters = parameters}); }) != "no error" &&
        message_of<InvalidArgument>([&] { SGD(std::vector<Parameter>(), {.lr = 0.1}); }) != "no error";
    if (!refused || optimizer.owners() != owners) throw Error("it was taken");
    return 0;
  });
}

TEST_CASE("a group that only one rank adds is an error on all of them") {
  const auto messages = messages_of_ranks(2, [](Communicator& c) {
    const std::vector<Parameter> parameters = parameters_of({{4}, {3}}, c.device());
    ZeroRedundancyOptimizer optimizer(SGD(parameters, {.lr = 0.1}), c);
    if (c.rank() == 1) optimizer.add_group({.parameters = parameters_of({{5}}, c.device())});
    set_gradients(parameters, 0);
    optimizer.step();
    synchronize(c.device());
    c.barrier();
  });
  for (const std::string& message : messages) CHECK_THAT(message, Contains("CommError") && Contains("broadcast"));
}

TEST_CASE("rows of sparse gradients are stepped by the owner of the table") {
  struct Rows : Module<Rows> {
    Embedding table{7, 3, {.sparse = true}};
    Rows() { table.weight.assign(noise({7, 3}, 5).to(DType::f32)); }
    Tensor forward(const Tensor& numbers) const { return table(numbers); }
    void members(Members& m) override { m("table", table); }
  };
  const auto train = [](Communicator& c, bool divided) {
    DistributedDataParallel<Rows> net(Rows(), c);
    SGD plain(net.parameters(), {.lr = 0.5});
    const auto loop = [&](auto& optimizer) {
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        const std::vector<std::int64_t> numbers{i, (c.rank() + i) % 7, 3};
        loss_of(net(from_data(numbers, {3}, {.device = c.device()}))).backward();
        optimizer.step();
      }
      return all_parameters(net.module());
    };
    if (!divided) return loop(plain);
    ZeroRedundancyOptimizer optimizer(std::move(plain), c);
    return loop(optimizer);
  };
  const auto expected = run_ranks(3, [&](Communicator& c) { return train(c, false); });
  CHECK(run_ranks(3, [&](Communicator& c) { return train(c, true); }) == expected);
}

TEST_CASE("the state of four ranks goes on with the same bits on 1, 2 and 8, and what does not fit changes nothing") {
  const auto steps = [](ZeroRedundancyOptimizer<Adam>& optimizer, int from, int to) {
    for (int i = from; i < to; ++i) {
      set_gradients(optimizer.parameters(), i);
      optimizer.step();
    }
    return elements(optimizer.parameters());
  };
  struct Half {
    std::vector<NamedTensor> state;
    Doubles at, end;
  };
  const Half half = run_ranks(4, [&](Communicator& c) {
    ZeroRedundancyOptimizer optimizer(Adam(parameters_of(kShapes, c.device()), {.lr = 0.01}), c);
    Half reached;
    reached.at = steps(optimizer, 0, 2);
    reached.state = optimizer.whole_state_dict();
    reached.end = steps(optimizer, 2, 4);
    return reached;
  })[0];
  for (const int ranks : {1, 2, 8}) {
    const auto ends = run_ranks(ranks, [&](Communicator& c) {
      const std::vector<Parameter> parameters = parameters_of(kShapes, c.device());
      std::size_t next = 0;
      for (const Parameter& parameter : parameters) {
        const auto count = static_cast<std::size_t>(element_count(parameter.shape()));
        const Doubles part(half.at.begin() + static_cast<std::ptrdiff_t>(next),
                           half.at.begin() + static_cast<std::ptrdiff_t>(next + count));
        parameter.assign(from_data(part, parameter.shape()).to(parameter.dtype()));
        next += count;
      }
      ZeroRedundancyOptimizer optimizer(Adam(parameters, {.lr = 0.5}), c);
      optimizer.load_state_dict(half.state);
      std::vector<NamedTensor> wrong = half.state;
      for (NamedTensor& entry : wrong)
        if (entry.name.ends_with("exp_avg")) entry.tensor = zeros({99});
      if (c.rank() == 0 && message_of<InvalidArgument>([&] { optimizer.load_state_dict(wrong); }) == "no error")
        throw Error("it was taken");
      return steps(optimizer, 2, 4);
    });
    for (const Doubles& end : ends) CHECK(end == half.end);
  }
}

TEST_CASE("schedules of rate and momentum reach ranks that have run out of inputs") {
  const auto train = [](Communicator& c, bool divided) {
    DistributedDataParallel<Mlp> net(Mlp(), c);
    const auto loop = [&](auto& optimizer) {
      for (int i = 0; i < 2 + 2 * c.rank(); ++i) {
        optimizer.zero_grad();
        loss_of(net(counting({2, 3}, c.device(), i))).backward();
        optimizer.step();
        optimizer.set_lr(optimizer.lr() / 2);
        optimizer.set_momentum(optimizer.momentum() * 0.75);
      }
    };
    SGD plain(net.parameters(), {.lr = 0.1, .momentum = 0.9});
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

TEST_CASE("sparse gradients in a join are refused with the parameter's name") {
  struct Rows : Module<Rows> {
    Embedding table{7, 3, {.sparse = true}};
    Tensor forward(const Tensor& numbers) const { return table(numbers); }
    void members(Members& m) override { m("table", table); }
  };
  const auto messages = messages_of_ranks(2, [](Communicator& c) {
    DistributedDataParallel<Rows> net(Rows(), c);
    ZeroRedundancyOptimizer optimizer(SGD(net.parameters(), {.lr = 0.5}), c);
    join({net, optimizer}, [&] {
      for (int i = 0; i < 1 + c.rank(); ++i) {
        optimizer.zero_grad();
        loss_of(net(from_data(std::vector<std::int64_t>{1, 2}, {2}, {.device = c.device()}))).backward();
        optimizer.step();
      }
    });
  });
  CHECK_THAT(messages[1], Contains("dense gradients in a join"));
  CHECK(!messages[0].empty());
}

TEST_CASE("a divided optimizer has the bits of the optimizer alone under PowerSGD") {
  const auto train = [](Communicator& c, bool divided) {
    DistributedDataParallel<Tower> net(Tower(), c, small_buckets());
    PowerSgd compressed({.start_iteration = 2});
    net.register_comm_hook(compressed.hook());
    Adam plain(net.parameters(), {.lr = 0.01});
    const auto loop = [&](auto& optimizer) {
      for (int i = 0; i < 5; ++i) {
        optimizer.zero_grad();
        loss_of(net(rows_of(c, i))).backward();
        optimizer.step();
      }
      return all_parameters(net.module());
    };
    if (!divided) return loop(plain);
    ZeroRedundancyOptimizer optimizer(std::move(plain), c);
    return loop(optimizer);
  };
  const auto expected = run_ranks(3, [&](Communicator& c) { return train(c, false); });
  CHECK(run_ranks(3, [&](Communicator& c) { return train(c, true); }) == expected);
}
