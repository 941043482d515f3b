// What a backward reduces is decided by the forwards that it goes through.
#include <optional>
#include <thread>

#include "lockstep/parallel/comm/loopback/loopback_communicator.h"
#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

// A result that the wrapper does not see into.
struct Closed {
  Tensor loss;
};
struct Losing : Module<Losing> {
  Parameter weight{counting({2})};
  Closed forward(const Tensor& x) const { return {sum(x * weight.on(x.device()))}; }
  void members(Members& m) override { m("weight", weight); }
};

// Its parameter is the result itself.
struct BareModule : Module<BareModule> {
  Parameter weight{counting({2})};
  Tensor forward(const Tensor& x) const { return weight.on(x.device()); }
  void members(Members& m) override { m("weight", weight); }
};

}  // namespace

TEST_CASE("two forwards, then their backwards: each is averaged") {
  for (const bool second_first : {false, true}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
      const double mine = communicator.rank() + 1;
      const Tensor first = sum(net(row_of(mine))), second = sum(net(row_of(10 * mine)));
      Doubles seen;
      for (const Tensor& loss : {second_first ? second : first, second_first ? first : second}) {
        loss.backward();
        seen.push_back(values(net.module().weight.grad())[0]);
      }
      return seen;
    });
    for (const Doubles& rank : result) CHECK(rank == Doubles{second_first ? 15.0 : 1.5, 16.5});
  }
}

TEST_CASE("what a no_sync forward said holds for its backward, whenever that comes") {
  for (const bool held_first : {false, true}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
      const double mine = communicator.rank() + 1;
      net(row_of(5));  // one without a backward
      Tensor held;
      {
        const auto scope = net.no_sync();
        held = sum(net(row_of(mine)));
      }
      const Tensor other = sum(net(row_of(10 * mine)));
      Doubles seen;
      for (const Tensor& loss : {held_first ? held : other, held_first ? other : held}) {
        loss.backward();
        seen.push_back(values(net.module().weight.grad())[0]);
      }
      sum(net(row_of(0))).backward();
      seen.push_back(values(net.module().weight.grad())[0]);
      return seen;
    });
    // Held: its own only; with the other, or with the last one, the average.
    CHECK(result[0] == (held_first ? Doubles{1, 16.5, 16.5} : Doubles{15, 16, 16.5}));
    CHECK(result[1] == (held_first ? Doubles{2, 16.5, 16.5} : Doubles{15, 17, 16.5}));
  }
}

TEST_CASE(
    "the backward of a no_sync forward communicates nothing, also with a forward outside that waits for its own") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
    const Tensor waiting = sum(net(row_of(communicator.rank() + 1)));
    if (communicator.rank() == 0) {  // one rank alone
      std::optional<Tensor> held;
      {
        const auto scope = net.no_sync();
        held = sum(net(row_of(8)));
      }
      held->backward();
    }
    waiting.backward();
    return values(net.module().weight.grad());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{5.5, 5.5});
}

TEST_CASE("one backward through forwards in and outside of no_sync is averaged as a whole") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Either> net(Either(), communicator, {.find_unused_parameters = true});
    Tensor held;
    {
      const auto scope = net.no_sync();
      held = sum(net(row_of(communicator.rank() + 1), true));
    }
    (sum(net(row_of(3), false)) + held).backward();
    Doubles seen{values(net.module().left.grad())[0], values(net.module().right.grad())[0]};
    return seen;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{3, 1.5});
}

TEST_CASE("a graph that is run backward twice is averaged twice") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
    const Tensor loss = sum(net(row_of(communicator.rank() + 1)));
    loss.backward({}, {.retain_graph = true});
    loss.backward();
    return values(net.module().weight.grad());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{3, 3});
}

TEST_CASE("a backward through no forward of the wrapper stays on the rank, and takes no forward's turn") {
  for (const bool before : {true, false}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Either> net(Either(), communicator, {.find_unused_parameters = true});
      const auto penalty = [&] { return sum(net.module().left.tensor()) * (communicator.rank() * 2.0); };
      const Tensor loss = sum(net(row_of(communicator.rank() + 1), true));
      if (before) penalty().backward();
      loss.backward();
      if (!before) penalty().backward();
      const Tensor grad = net.module().left.grad();
      return Doubles{grad.defined() ? values(grad)[0] : -1, values(net.module().right.grad())[0]};
    });
    CHECK(result[0] == (before ? Doubles{1, 1.5} : Doubles{0, 1.5}));
    CHECK(result[1] == (before ? Doubles{1, 1.5} : Doubles{2, 1.5}));
  }
}

TEST_CASE("results that the wrapper does not see into, and parameters that are the result") {
  const auto closed = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Losing> net(Losing(), communicator);
    const Tensor first = net(row_of(communicator.rank() + 1)).loss, second = net(row_of(4)).loss;
    first.backward();
    second.backward();
    return values(net.module().weight.grad());
  });
  for (const Doubles& rank : closed) CHECK(rank == Doubles{5.5, 5.5});
  const auto bare = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<BareModule> net(BareModule(), communicator);
    Doubles seen;
    (sum(net(row_of(1))) * (communicator.rank() + 1.0)).backward();
    seen.push_back(values(net.module().weight.grad())[0]);
    {
      const NoGrad no_grad;
      net(row_of(1));
    }
    const Tensor loss = sum(net(row_of(1))) * (communicator.rank() + 1.0);
    loss.backward();
    seen.push_back(values(net.module().weight.grad())[0]);
    {
      const auto scope = net.no_sync();
      (sum(net(row_of(1))) * (communicator.rank() + 1.0)).backward();
    }
    seen.push_back(values(net.module().weight.grad())[0]);
    return seen;
  });
  CHECK(bare == std::vector<Doubles>{{1.5, 3, 4}, {1.5, 3, 5}});
}

TEST_CASE("a forward of long ago is averaged by its backward") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
    const Tensor loss = sum(net(row_of(communicator.rank() + 1)));
    for (int i = 0; i < 5000; ++i) net(row_of(0));
    loss.backward();
    return values(net.module().weight.grad());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1.5, 1.5});
}

TEST_CASE("a rank's forwards and backwards may go on in another thread") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
    for (int i = 0; i < 20; ++i) net(row_of(1));
    const Tensor early = sum(net(row_of(communicator.rank() + 1)));
    const Stream stream = current_stream(communicator.device());
    std::string error;
    Tensor late;
    std::thread other([&] {  // its graph nodes are numbered from 1
      try {
        const StreamScope scope(stream);
        late = sum(net(row_of(10 * (communicator.rank() + 1))));
        sum(net(row_of(100 * (communicator.rank() + 1)))).backward();
      } catch (const std::exception& e) {
        error = e.what();
      }
    });
    other.join();
    if (!error.empty()) throw Error(error);
    Doubles seen{values(net.module().weight.grad())[0]};
    for (const Tensor& loss : {late, early}) {
      loss.backward();
      seen.push_back(values(net.module().weight.grad())[0]);
    }
    return seen;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{150, 165, 166.5});
}

TEST_CASE("a backward through no forward is local also where its graph comes from another thread") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
    const Tensor loss = sum(net(row_of(communicator.rank() + 1)));  // nodes 1, 2, … of this thread
    Doubles seen;
    if (communicator.rank() == 0) {
      const Stream stream = current_stream(communicator.device());
      Tensor plain;
      std::thread other([&] {  // and of this one
        const StreamScope scope(stream);
        plain = sum(net.module()(row_of(10).to(communicator.device())));
      });
      other.join();
      plain.backward();
      seen.push_back(values(net.module().weight.grad())[0]);
      net.zero_grad();
    }
    loss.backward();
    seen.push_back(values(net.module().weight.grad())[0]);
    return seen;
  });
  CHECK(result[0] == Doubles{10, 1.5});
  CHECK(result[1] == Doubles{1.5});
}

TEST_CASE("gradients that were freed after a no_sync backward do not count as used") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Either> net(Either(), communicator, {.find_unused_parameters = true});
    {
      const auto scope = net.no_sync();
      sum(net(row_of(1), true)).backward();
    }
    net.zero_grad();
    sum(net(row_of(communicator.rank() + 1), false)).backward();
    return Doubles{values(net.module().left.grad())[0], net.module().right.grad().defined() ? 1.0 : 0.0};
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1.5, 0});
}

TEST_CASE("several forwards whose backwards come later, at a number of backwards each") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator, {.backwards_per_forward = 2});
    const double mine = communicator.rank() + 1;
    const Tensor first = net(row_of(mine)), second = net(row_of(10 * mine));
    Doubles seen;
    for (const Tensor& output : {first, second}) {
      for (const int part : {0, 1}) {
        sum(output.narrow(1, part, 1)).backward({}, {.retain_graph = true});
        for (const double value : values(net.module().weight.grad())) seen.push_back(value);
      }
    }
    return seen;
  });
  CHECK(result[0] == Doubles{1, 0, 1.5, 1.5, 11.5, 1.5, 16.5, 16.5});
  CHECK(result[1] == Doubles{2, 0, 1.5, 1.5, 21.5, 1.5, 16.5, 16.5});
}

TEST_CASE("a backward within a backward that reduces") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Either> net(Either(), communicator, {.backwards_per_forward = 2});
    const double mine = communicator.rank() + 1;
    const Tensor inner = sum(net(row_of(mine), false));
    const Tensor later = sum(net(row_of(10 * mine), true)), first = sum(net(row_of(100 * mine), false));  // in backward
    const Tensor outer = later + first;
    const Parameter &left = net.module().left, &right = net.module().right;
    std::string late;
    right.tensor().register_hook([&](Tensor&) {
      if (!left.grad().defined()) late = "expected the left one first";
      const GradMode recorded(true);
      inner.backward();
    });
    outer.backward();
    if (!late.empty()) throw Error(late);
    return Doubles{values(left.grad())[0], values(right.grad())[0]};
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{151.5, 15});
}

TEST_CASE("a rank alone gets no gradient that it has not computed") {
  const auto communicator = make_loopback_communicator(accelerators().at(0));
  DistributedDataParallel<Either> net(Either(), *communicator, {.static_graph = true});
  {
    const auto scope = net.no_sync();
    sum(net(row_of(1), true)).backward();
  }
  sum(net(row_of(2), false)).backward();
  net.zero_grad();
  sum(net(row_of(3), false)).backward();
  CHECK(values(net.module().left.grad())[0] == 3);
  CHECK_FALSE(net.module().right.grad().defined());
}

TEST_CASE("ranks whose gradients become ready in another order average the same parameters") {
  struct Chain : Module<Chain> {
    Affine a{3, 3, 1}, b{3, 3, 2}, c{3, 3, 3};
    Tensor forward(const Tensor& x, int rank) const {
      if (rank % 3 == 0) return a(tanh(b(tanh(c(x)))));
      return rank % 3 == 1 ? b(tanh(c(tanh(a(x))))) : c(tanh(a(tanh(b(x)))));
    }
    void members(Members& m) override { m("a", a), m("b", b), m("c", c); }
  };
  constexpr int kRanks = 3, kSteps = 4;
  const auto result = run_ranks(kRanks, [](Communicator& communicator) {
    DistributedDataParallel<Chain> net(Chain{}, communicator, small_buckets());
    SGD optimizer(net.parameters(), {.lr = 0.1});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const Tensor x = share(batch(step, kRanks, DType::f64, communicator.device()), communicator.rank());
      loss_of(net(x, communicator.rank())).backward();
      optimizer.step();
    }
    return all_parameters(net.module());
  });
  Chain whole;
  SGD optimizer(whole.parameters(), {.lr = 0.1});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < kRanks; ++rank)
      (loss_of(whole(share(batch(step, kRanks, DType::f64, Device::cpu()), rank), rank)) * (1.0 / kRanks)).backward();
    optimizer.step();
  }
  CHECK(different(result) == 0);
  CHECK(largest_difference(result[0], all_parameters(whole)) <= 1e-10);
}

TEST_CASE("two wrappers of one module: each backward for itself, and no loss of both") {
  const auto grads = run_ranks(2, [](Communicator& c) {
    Linear layer(4, 2);
    layer.to(DType::f64);
    layer.to(c.device());
    const Tensor x = full({3, 4}, c.rank() + 1.0, {.dtype = DType::f64, .device = c.device()});
    const DistributedDataParallel<Linear> a(layer, c);
    const DistributedDataParallel<Linear> b(layer, c);
    a(x).sum().backward();
    b(x).sum().backward();
    return values(layer.weight.grad());
  });
  for (const Doubles& grad : grads) CHECK(grad == Doubles(8, 9));  // (3 + 6) / 2, twice
  for (const std::string& message : messages_of_ranks(2, [](Communicator& c) {
         Linear layer(4, 2);
         layer.to(c.device());
         const Tensor x = ones({3, 4}, {.device = c.device()});
         const DistributedDataParallel<Linear> a(layer, c);
         const DistributedDataParallel<Linear> b(layer, c);
         (a(x).sum() + b(x).sum()).backward();
       }))
    CHECK_THAT(message, Catch::Matchers::Contains("a loss of two wrappers of one module"));
}

TEST_CASE("rows of a backward on another stream stay until they have been gathered") {
  const auto rows = run_ranks(2, [](Communicator& c) {
    Embedding table(9, 2, {.sparse = true});
    table.to(c.device());
    const DistributedDataParallel<Embedding> net(table, c);
    const Stream here = current_stream(c.device()), side(c.device());
    Doubles seen;
    for (std::int64_t i = 0; i < 3; ++i) {
      table.zero_grad();
      const Tensor loss = net(from_data(std::vector<std::int64_t>{i, i + c.rank()}, {2}).to(c.device())).sum();
      side.wait_for(here);
      {
        const StreamScope scope(side);
        loss.backward();
      }
      here.wait_for(side);
      for (const double value : values(table.weight.sparse_grad().to_dense().sum({1}))) seen.push_back(value);
    }
    return seen;
  });
  const Doubles expected{3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0};
  for (const Doubles& of_rank : rows) CHECK(of_rank == expected);
}

TEST_CASE("a backward on another stream reduces what it would on the forward's") {
  struct Three : Module<Three> {
    Parameter a{counting({64})}, b{counting({64})}, c{counting({64})};
    Tensor forward(const Tensor& x, bool with_c) const {
      const Tensor y = sum(square(x * a.on(x.device()))) + sum(x * b.on(x.device()));
      return with_c ? y + sum(c.on(x.device()) * x) : y;
    }
    void members(Members& m) override { m("a", a), m("b", b), m("c", c); }
  };
  const auto train = [](Communicator& communicator, DistributedDataParallelOptions options, bool aside) {
    options.bucket_cap_mb = options.first_bucket_mb = 0.0005;
    const DistributedDataParallel<Three> net(Three(), communicator, options);
    const Device device = communicator.device();
    const Stream here = current_stream(device), side(device);
    Doubles seen;
    for (int i = 0; i < 8; ++i) {
      const Tensor x = full({64}, 1.0 + i + communicator.rank(), {.dtype = DType::f64, .device = device});
      // The graph is the same where it is to be; gradients stay from step to step. The second forward lays out buckets.
      const auto forward = [&] { return net(x, !options.find_unused_parameters || i == 0); };
      Tensor loss;
      if (i % 3 != 1) loss = forward();
      const Stream& there = aside && i % 3 != 2 ? side : here;
      there.wait_for(here);
      {
        const StreamScope scope(there);
        if (i % 3 == 1) loss = forward();
        loss.backward();
      }
      here.wait_for(there);
      for (const Parameter& parameter : net.parameters()) seen.push_back(values(parameter.grad())[7]);
    }
    return seen;
  };
  std::vector<DistributedDataParallelOptions> all(4);
  all[1].static_graph = true;
  all[2].find_unused_parameters = true;
  all[3].gradient_as_bucket_view = false;
  for (std::size_t k = 0; k < all.size(); ++k) {
    CAPTURE(k);
    const auto expected = run_ranks(2, [&](Communicator& c) { return train(c, all[k], false); });
    CHECK(run_ranks(2, [&](Communicator& c) { return train(c, all[k], true); }) == expected);
  }
}
