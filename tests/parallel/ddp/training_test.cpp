// Ranks that train on shares of a batch end with the parameters of one device that trains on all of it, and with the
// same bits on every rank.
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/tensor/data/distributed_sampler.h"
#include "parallel/ddp/scenarios.h"
#include "support/watched.h"

using namespace parallel_test;

namespace {

// One branch or the other.
struct BranchingNet : Module<BranchingNet> {
  Affine shared{3, 4, 1}, left{4, 2, 2}, right{4, 2, 3};
  Tensor forward(const Tensor& x, bool go_left) const {
    const Tensor h = tanh(shared(x));
    return go_left ? left(h) : right(h);
  }
  void members(Members& m) override { m("shared", shared), m("left", left), m("right", right); }
};

}  // namespace

TEST_CASE("ranks train as one device does on the whole batch") {
  using Make = decltype(RunRanksOptions::make);
  const Make peers = [](std::span<const Device> devices, Milliseconds timeout) {
    return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
  };
  for (const auto& [name, make] : {std::pair<const char*, Make>("shared memory", {}), {"peers", peers}}) {
    for (const int ranks : {1, 2, 3, 4, 5}) {
      if (support::watched() && ranks != 3) continue;
      int number = 0;
      for (const Scenario& scenario : scenarios()) {
        if (support::watched() && make && number++ % 4 != 0) continue;
        INFO(scenario.name << ", " << name << ", " << ranks << " ranks");
        const auto result = run_ranks(ranks, scenario.rank, {.make = make});
        CHECK(different(result) == 0);
        CHECK(largest_difference(result[0], scenario.whole(ranks)) <= scenario.tolerance);
      }
    }
  }
}

TEST_CASE("ranks start with rank 0's parameters") {
  const auto result = run_ranks(3, [](Communicator& communicator) {
    Affine module(3, 2, static_cast<std::uint64_t>(communicator.rank() + 1));
    DistributedDataParallel<Affine> net(std::move(module), communicator);
    return all_parameters(net.module());
  });
  CHECK(different(result) == 0);
  Affine first(3, 2, 1);
  CHECK(result[0] == all_parameters(first));
}

TEST_CASE("ranks that take different branches average over all of them") {
  DistributedDataParallelOptions options = small_buckets();
  options.find_unused_parameters = true;
  const auto grads = run_ranks(2, [&](Communicator& communicator) {
    DistributedDataParallel<BranchingNet> net(BranchingNet{}, communicator, options);
    sum(net(counting({2, 3}), communicator.rank() == 0)).backward();
    return std::vector<Doubles>{values(net.module().left.bias.grad()), values(net.module().right.bias.grad())};
  });
  // Two rows of ones on one of two ranks.
  for (const auto& rank : grads) {
    CHECK(rank[0] == Doubles{1, 1});
    CHECK(rank[1] == Doubles{1, 1});
  }
}

TEST_CASE("gradients that stay from step to step are averaged with the new ones") {
  const auto grads = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
    for (int step = 0; step < 2; ++step)
      sum(net(full({1, 2}, communicator.rank() + 1.0, {.dtype = DType::f64}))).backward();
    return values(net.module().weight.grad());
  });
  // First 1.5 on both; then (1.5 + 1 + 1.5 + 2) / 2.
  for (const Doubles& rank : grads) CHECK(rank == Doubles{3, 3});
}

TEST_CASE("gradients are divided before they are added") {
  const auto grads = run_ranks(2, [](Communicator& communicator) {
    Scale module(from_data(std::vector<float>{1, 1}, {2}).to(DType::f16));
    DistributedDataParallel<Scale> net(std::move(module), communicator);
    const Tensor x = full({1, 2}, 32768.0, {.dtype = DType::f16});
    sum(net(x)).backward();
    return values(net.module().weight.grad().to(DType::f64));
  });
  for (const Doubles& rank : grads) CHECK(rank == Doubles{32768, 32768});
}

TEST_CASE("gradients are parts of the buckets, or tensors of their own") {
  const auto views = run_ranks(2, [](Communicator& communicator) {
    Doubles result;
    for (const bool view : {true, false}) {
      DistributedDataParallel<Mlp> net(Mlp{}, communicator, {.gradient_as_bucket_view = view});
      loss_of(net(counting({2, 3}))).backward();
      // In one bucket the gradients of bias and weight are neighbours, each at a multiple of 256 bytes. (Tensors of
      // their own may lie side by side too, by chance.)
      const Tensor weight = net.module().second.weight.grad(), bias = net.module().second.bias.grad();
      const bool neighbours = static_cast<const std::byte*>(bias.data()) + 256 == weight.data();
      result.push_back(weight.storage()->block() == bias.storage()->block() && neighbours);
    }
    return result;
  });
  for (const Doubles& rank : views) CHECK(rank == Doubles{1, 0});
}

TEST_CASE("the shares of an epoch") {
  for (const bool drop_last : {false, true}) {
    for (const std::int64_t count : {0, 1, 7, 12}) {
      for (const int size : {1, 3, 4}) {
        std::vector<int> seen(static_cast<std::size_t>(count));
        std::int64_t each = -1;
        for (int rank = 0; rank < size; ++rank) {
          const DistributedSampler sampler(count, rank, size, {.seed = 5, .drop_last = drop_last});
          const auto indices = sampler.indices(2);
          CHECK(static_cast<std::int64_t>(indices.size()) == sampler.size());
          if (each >= 0) CHECK(sampler.size() == each);
          each = sampler.size();
          for (const std::int64_t index : indices) ++seen[static_cast<std::size_t>(index)];
        }
        const std::int64_t total = drop_last ? count / size * size : (count + size - 1) / size * size;
        CHECK(std::accumulate(seen.begin(), seen.end(), std::int64_t{0}) == total);
        for (const int times : seen) CHECK((drop_last ? times <= 1 : times >= 1));
      }
    }
  }
  const DistributedSampler a(100, 1, 4, {.seed = 5}), b(100, 1, 4, {.seed = 6}), plain(10, 1, 3, {.shuffle = false});
  CHECK(a.indices(0) == a.indices(0));
  CHECK(a.indices(0) != a.indices(1));
  CHECK(a.indices(0) != b.indices(0));
  CHECK(plain.indices(0) == std::vector<std::int64_t>{1, 4, 7, 0});
  CHECK(missing(message_of<InvalidArgument>([] { DistributedSampler(5, 3, 3); }), {"rank 3 of 3"}) == "");
}
