// Ranks that train on shares of a batch end with the parameters of one device that trains on all of it, and with the
// same bits on every rank.
#include "lockstep/tensor/data/distributed_sampler.h"
#include "parallel/ddp/support.h"

using namespace test;

namespace {

constexpr int kSteps = 20;

struct Variant {
  const char* name;
  DistributedDataParallelOptions options;
};
std::vector<Variant> variants() {
  DistributedDataParallelOptions copies = small_buckets(), unused = small_buckets(), fixed = small_buckets();
  copies.gradient_as_bucket_view = false;
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  return {{"one bucket", {}},
          {"small buckets", small_buckets()},
          {"copies", copies},
          {"find unused", unused},
          {"static graph", fixed}};
}

// Tied: the second layer is the first, transposed.
struct Tied : Module<Tied> {
  Parameter weight{noise({5, 3}, 7)};
  Tensor forward(const Tensor& x) const {
    const Tensor w = weight.on(x.device());
    return matmul(tanh(matmul(x, w.t())), w);
  }
  void members(Members& m) override { m("weight", weight), m("again", weight); }
};

// One branch or the other.
struct Branches : Module<Branches> {
  Affine shared{3, 4, 1}, left{4, 2, 2}, right{4, 2, 3};
  Tensor forward(const Tensor& x, bool go_left) const {
    const Tensor h = tanh(shared(x));
    return go_left ? left(h) : right(h);
  }
  void members(Members& m) override { m("shared", shared), m("left", left), m("right", right); }
};

struct TwoHeads : Module<TwoHeads> {
  Affine shared{3, 4, 1}, left{4, 2, 2}, right{4, 2, 3};
  std::vector<Tensor> forward(const Tensor& x) const {
    const Tensor h = tanh(shared(x));
    return {left(h), right(h)};
  }
  void members(Members& m) override { m("shared", shared), m("left", left), m("right", right); }
};

void check_same_as_whole(const std::vector<Doubles>& ranks, const Doubles& whole, double tolerance) {
  CHECK(different(ranks) == 0);
  CHECK(largest_difference(ranks[0], whole) <= tolerance);
}

}  // namespace

TEST_CASE("ranks train as one device does on the whole batch") {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const Doubles whole = train_whole<Mlp>(Mlp{}, ranks, kSteps, dtype,
                                             [](const Mlp& net, const Tensor& x, int) { return loss_of(net(x)); });
      for (const Variant& variant : variants()) {
        INFO(variant.name << ", " << ranks << " ranks, " << to_string(dtype));
        const auto result = train_ranks<Mlp>([] { return Mlp{}; }, ranks, kSteps, dtype, variant.options,
                                             [](const auto& net, const Tensor& x, int) { return loss_of(net(x)); });
        check_same_as_whole(result, whole, dtype == DType::f64 ? 1e-10 : 1e-4);
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

TEST_CASE("tied weights are one parameter") {
  const Doubles whole = train_whole<Tied>(Tied{}, 3, kSteps, DType::f64,
                                          [](const Tied& net, const Tensor& x, int) { return loss_of(net(x) - x); });
  const auto result = train_ranks<Tied>(
      [] { return Tied{}; }, 3, kSteps, DType::f64, small_buckets(),
      [](const auto& net, const Tensor& x, int) { return loss_of(net(x) - x.to(net.communicator().device())); });
  check_same_as_whole(result, whole, 1e-10);
}

TEST_CASE("frozen parameters stay") {
  const auto make = [] {
    Mlp net;
    net.first.set_requires_grad(false);
    return net;
  };
  const Doubles whole = train_whole<Mlp>(make(), 2, kSteps, DType::f64,
                                         [](const Mlp& net, const Tensor& x, int) { return loss_of(net(x)); });
  const auto result = train_ranks<Mlp>(make, 2, kSteps, DType::f64, small_buckets(),
                                       [](const auto& net, const Tensor& x, int) { return loss_of(net(x)); });
  check_same_as_whole(result, whole, 1e-10);
}

TEST_CASE("a branch that is not used in a step") {
  const auto left = [](int step) { return step % 3 != 1; };
  const Doubles whole = train_whole<Branches>(
      Branches{}, 3, kSteps, DType::f64,
      [&](const Branches& net, const Tensor& x, int step) { return loss_of(net(x, left(step))); });
  DistributedDataParallelOptions options = small_buckets();
  options.find_unused_parameters = true;
  for (const bool view : {true, false}) {
    options.gradient_as_bucket_view = view;
    const auto result =
        train_ranks<Branches>([] { return Branches{}; }, 3, kSteps, DType::f64, options,
                              [&](const auto& net, const Tensor& x, int step) { return loss_of(net(x, left(step))); });
    check_same_as_whole(result, whole, 1e-10);
  }
}

TEST_CASE("ranks that take different branches average over all of them") {
  DistributedDataParallelOptions options = small_buckets();
  options.find_unused_parameters = true;
  const auto grads = run_ranks(2, [&](Communicator& communicator) {
    DistributedDataParallel<Branches> net(Branches{}, communicator, options);
    sum(net(counting({2, 3}), communicator.rank() == 0)).backward();
    return std::vector<Doubles>{values(net.module().left.bias.grad()), values(net.module().right.bias.grad())};
  });
  // Two rows of ones on one of two ranks.
  for (const auto& rank : grads) {
    CHECK(rank[0] == Doubles{1, 1});
    CHECK(rank[1] == Doubles{1, 1});
  }
}

TEST_CASE("accumulating without synchronisation") {
  constexpr int kAccumulate = 3;
  const Device device = hosts(1)[0];
  Mlp reference;
  reference.to(device);
  SGD optimizer(reference.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < kSteps; ++step) {
    loss_of(reference(batch(step, 2, DType::f64, device))).backward();
    if (step % kAccumulate == kAccumulate - 1 || step == kSteps - 1) optimizer.step(), optimizer.zero_grad();
  }
  for (const Variant& variant : variants()) {
    INFO(variant.name);
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Mlp> net(Mlp{}, communicator, variant.options);
      SGD mine(net.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < kSteps; ++step) {
        const Tensor x = share(batch(step, 2, DType::f64, communicator.device()), communicator.rank());
        if (step % kAccumulate == kAccumulate - 1 || step == kSteps - 1) {
          loss_of(net(x)).backward();
          mine.step();
          mine.zero_grad();
        } else {
          const NoSync scope = net.no_sync();
          loss_of(net(x)).backward();
        }
      }
      return all_parameters(net.module());
    });
    check_same_as_whole(result, all_parameters(reference), 1e-10);
  }
}

TEST_CASE("several backwards for a forward") {
  const auto both = [](const std::vector<Tensor>& heads) { return loss_of(heads[0]) + loss_of(heads[1]); };
  const Doubles whole = train_whole<TwoHeads>(TwoHeads{}, 2, kSteps, DType::f64,
                                              [&](const TwoHeads& net, const Tensor& x, int) { return both(net(x)); });
  DistributedDataParallelOptions options = small_buckets();
  options.backwards_per_forward = 2;
  for (const bool fixed : {false, true}) {
    options.static_graph = fixed;
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<TwoHeads> net(TwoHeads{}, communicator, options);
      SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const auto heads = net(share(batch(step, 2, DType::f64, communicator.device()), communicator.rank()));
        loss_of(heads[0]).backward({}, {.retain_graph = true});
        loss_of(heads[1]).backward();
        optimizer.step();
      }
      return all_parameters(net.module());
    });
    INFO("static graph: " << fixed);
    check_same_as_whole(result, whole, 1e-10);
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
      // In one bucket the gradients of bias and weight are neighbours.
      const Tensor weight = net.module().second.weight.grad(), bias = net.module().second.bias.grad();
      result.push_back(static_cast<const std::byte*>(bias.data()) + bias.bytes() == weight.data());
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
