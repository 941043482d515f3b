// Buffers, parameters that nobody uses or that are left alone, gradients of rows, and what does not communicate.
#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

// Adds a running count to its input; the count is a buffer that every forward changes.
struct CountingForwards : Module<CountingForwards> {
  Parameter weight{counting({2})};
  Buffer calls;
  explicit CountingForwards(double start = 0) : calls(full({1}, start, {.dtype = DType::f64})) {}
  Tensor forward(const Tensor& x) const {
    const Tensor count = calls.on(x.device());
    if (is_training()) {
      const NoGrad no_grad;
      count.detach().add_(1.0);
    }
    return x * weight.on(x.device()) + count.detach();
  }
  void members(Members& m) override { m("weight", weight), m("calls", calls); }
};

struct SpareModule : Module<SpareModule> {
  Parameter used{counting({2})}, spare{counting({3})};
  Tensor forward(const Tensor& x) const { return x * used.on(x.device()); }
  void members(Members& m) override { m("used", used), m("spare", spare); }
};

struct Words : Module<Words> {
  Embedding table;
  Affine head{3, 2, 5};
  explicit Words(bool sparse) : table(7, 3, {.sparse = sparse}) {
    table.weight.assign(noise({7, 3}, 11));
    table.to(DType::f64);
  }
  // Rows as they are, or those of the table.
  Tensor forward(const Tensor& ids) const { return head(ids.dtype() == DType::f64 ? ids : table(ids)); }
  void members(Members& m) override { m("table", table), m("head", head); }
};

}  // namespace

TEST_CASE("buffers are rank 0's before every training forward") {
  const auto result = run_ranks(3, [](Communicator& communicator) {
    DistributedDataParallel<CountingForwards> net(CountingForwards(10 * communicator.rank()), communicator);
    Doubles seen = values(net.module().calls.tensor());
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      if (communicator.rank() > 0) net.module().calls.tensor().add_(100.0 * communicator.rank());
      sum(net(counting({1, 2}))).backward();
      seen.push_back(values(net.module().calls.tensor())[0]);
    }
    return seen;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{0, 1, 2});
}

TEST_CASE("buffers stay where that is asked for") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<CountingForwards> net(CountingForwards(0), communicator, {.broadcast_buffers = false});
    net.module().calls.tensor().add_(100.0 * communicator.rank());
    sum(net(counting({1, 2}))).backward();
    return values(net.module().calls.tensor());
  });
  CHECK(result == std::vector<Doubles>{{1}, {101}});
}

TEST_CASE("evaluation and no_sync communicate nothing") {
  // Rank 0 does all of it alone, between steps of both.
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<CountingForwards> net(CountingForwards(0), communicator);
    Doubles seen;
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      sum(net(counting({1, 2}))).backward();
      for (const double value : values(net.module().weight.grad())) seen.push_back(value);
      if (communicator.rank() == 0) {
        {
          const NoGrad no_grad;
          net(counting({1, 2}));
        }
        net.eval();
        net(counting({1, 2}));
        const NoGrad no_grad;
        net(counting({1, 2}));
        net.train();
      }
    }
    if (communicator.rank() == 0) {
      const NoSync scope = net.no_sync();
      sum(net(counting({1, 2}))).backward();
    }
    return seen;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1, 2, 1, 2, 1, 2});
}

TEST_CASE("a parameter that no rank uses keeps its gradient") {
  for (const bool fixed : {false, true}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<SpareModule> net(SpareModule(), communicator,
                                               {.find_unused_parameters = !fixed, .static_graph = fixed});
      Doubles seen;
      for (int step = 0; step < 3; ++step) {
        net.module().used.zero_grad();
        sum(net(counting({1, 2}))).backward();
        seen.push_back(net.module().spare.grad().defined());
      }
      // One of its own, other bits on each rank.
      net.module().spare.set_grad(
          full({3}, 0.1 * (communicator.rank() + 1), {.dtype = DType::f64, .device = communicator.device()}));
      net.module().used.zero_grad();
      sum(net(counting({1, 2}))).backward();
      for (const double value : values(net.module().spare.grad())) seen.push_back(value);
      return seen;
    });
    CHECK(result[0] == Doubles{0, 0, 0, 0.1, 0.1, 0.1});
    CHECK(result[1] == Doubles{0, 0, 0, 0.2, 0.2, 0.2});
  }
}

TEST_CASE("a gradient in its bucket outlives iterations in which nobody uses the parameter") {
  for (const int ranks : {2, 3}) {  // three thirds are not always one
    const auto result = run_ranks(ranks, [](Communicator& communicator) {
      DistributedDataParallel<Either> net(Either(), communicator, {.find_unused_parameters = true});
      const Tensor x =
          from_data(std::vector<double>{communicator.rank() + 0.1, communicator.rank() * 0.7 + 0.3}, {1, 2});
      sum(net(x, true)).backward();
      Doubles seen = values(net.module().right.grad());
      for (int step = 0; step < 2; ++step) {
        sum(net(counting({1, 2}), false)).backward();
        for (const double value : values(net.module().right.grad())) seen.push_back(value);
      }
      return seen;
    });
    CHECK(different(result) == 0);
    const double share = 1.0 / ranks;
    double first = 0, second = 0;
    for (int r = 0; r < ranks; ++r) first += (r + 0.1) * share, second += (r * 0.7 + 0.3) * share;
    CHECK(result[0] == Doubles{first, second, first, second, first, second});
  }
}

TEST_CASE("ignored parameters and buffers are left alone") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    SpareModule module;
    module.spare = Parameter(counting({communicator.rank() + 1}));  // even their shapes may differ
    DistributedDataParallel<SpareModule> net(std::move(module), communicator, {.ignore = {"spare"}});
    sum(net(counting({1, 2}))).backward();
    return static_cast<double>(net.module().spare.tensor().count());
  });
  CHECK(result == Doubles{1, 2});
}

TEST_CASE("rows as gradients") {
  const auto ids = [](int step, int rank) {
    std::vector<std::int64_t> numbers;
    for (int i = 0; i < 4; ++i) numbers.push_back((step * 3 + rank * 5 + i * i) % 7);
    return from_data(numbers, {4});
  };
  const auto train = [&](Communicator& communicator, bool sparse) {
    DistributedDataParallel<Words> net(Words(sparse), communicator, small_buckets());
    SGD optimizer(net.parameters(), {.lr = 0.1});
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      loss_of(net(ids(step, communicator.rank()))).backward();
      if (sparse != net.module().table.weight.sparse_grad().defined()) throw Error("another kind of gradient");
      optimizer.step();
    }
    return all_parameters(net.module());
  };
  for (const int ranks : {1, 2, 3}) {
    const auto dense = run_ranks(ranks, [&](Communicator& communicator) { return train(communicator, false); });
    const auto sparse = run_ranks(ranks, [&](Communicator& communicator) { return train(communicator, true); });
    CHECK(different(dense) == 0);
    CHECK(different(sparse) == 0);
    CHECK(largest_difference(dense[0], sparse[0]) <= 1e-12);
  }
}

TEST_CASE("a rank without a row of its own") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Words> net(Words(true), communicator, {.find_unused_parameters = true});
    const bool looks_up = communicator.rank() == 0;
    const Tensor input = looks_up ? from_data(std::vector<std::int64_t>{2, 2}, {2}) : counting({2, 3});
    sum(net(input)).backward();
    return values(net.module().table.weight.sparse_grad().to_dense());
  });
  CHECK(result[0] == result[1]);
  int rows = 0;
  for (std::size_t row = 0; row < 7; ++row) rows += result[0][3 * row] != 0;
  CHECK(rows == 1);
}
