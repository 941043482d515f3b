// A module that changes while it is wrapped: what is followed, and what is an error that names it.
#include "lockstep/tensor/engine/leaf_node.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

struct ChangingNet : Module<ChangingNet> {
  Affine body{2, 2, 1}, head{2, 2, 2};
  Buffer factor{full({1}, 1, {.dtype = DType::f64})};
  std::optional<Buffer> more;
  Tensor forward(const Tensor& x, bool whole = true) const {
    const Tensor h = body(x) * factor.on(x.device());
    return whole ? head(h) : h;
  }
  void members(Members& m) override { m("body", body), m("head", head), m("factor", factor), m("more", more); }
};

Tensor one_number(double value, Device device) { return full({1}, value, {.dtype = DType::f64, .device = device}); }

// A step, a change, a step; what each rank throws.
std::vector<std::string> after_change(const std::function<void(ChangingNet&, int rank, Device)>& change,
                                      DistributedDataParallelOptions options = {}, int ranks = 2) {
  return messages_of_ranks(ranks, [&](Communicator& communicator) {
    DistributedDataParallel<ChangingNet> net(ChangingNet{}, communicator, options);
    loss_of(net(counting({2, 2}))).backward();
    communicator.barrier();
    change(net.module(), communicator.rank(), communicator.device());
    net.zero_grad();
    // With two steps: what one rank alone has done is noticed by the others at the next call.
    for (int step = 0; step < 2; ++step) loss_of(net(counting({2, 2}))).backward();
    synchronize(communicator.device());
  });
}
std::string lacks(const std::vector<std::string>& messages, const std::vector<std::string>& parts) {
  std::string result;
  for (const std::string& message : messages) {
    std::string all;
    for (const std::string& part : parts)
      if (message.find(part) == std::string::npos) all += cat("'", part, "' ");
    if (!all.empty()) result += cat(all, "in '", message, "'; ");
  }
  return result;
}

}  // namespace

TEST_CASE("a parameter that is frozen after it was wrapped is named") {
  const auto all = after_change([](ChangingNet& net, int, Device) { net.head.weight.set_requires_grad(false); });
  CHECK(lacks(all, {"'head.weight'", "frozen", "find_unused_parameters"}) == "");
  const auto submodule = after_change([](ChangingNet& net, int, Device) { net.head.set_requires_grad(false); });
  CHECK(lacks(submodule, {"'head.weight', 'head.bias'", "frozen"}) == "");
  for (const bool fixed : {false, true}) {
    const auto one = after_change(
        [](ChangingNet& net, int rank, Device) {
          if (rank == 1) net.head.weight.set_requires_grad(false);
        },
        {.static_graph = fixed}, 3);
    CHECK(lacks(one, {"'head.weight'"}) == "");
    CHECK(lacks(one, {fixed ? "fewer gradients" : "frozen"}) == "");
  }
  const auto fixed =
      after_change([](ChangingNet& net, int, Device) { net.head.set_requires_grad(false); }, {.static_graph = true});
  CHECK(lacks(fixed, {"'head.weight'", "fewer gradients"}) == "");
}

TEST_CASE("a parameter that was frozen when it was wrapped, and is no longer, is named") {
  for (const bool find : {false, true}) {
    const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
      ChangingNet module;
      module.body.set_requires_grad(false);
      DistributedDataParallel<ChangingNet> net(std::move(module), communicator, {.find_unused_parameters = find});
      loss_of(net(counting({2, 2}))).backward();
      if (communicator.rank() == 1) net.module().body.bias.set_requires_grad(true);
      for (int step = 0; step < 2; ++step) loss_of(net(counting({2, 2}))).backward();
      synchronize(communicator.device());
    });
    CHECK(lacks(messages, {"'body.bias'", "wrap the module again"}) == "");
  }
}

TEST_CASE("where parameters may be unused, they may be frozen and thawed on all ranks") {
  const auto result = run_ranks(3, [](Communicator& communicator) {
    DistributedDataParallel<ChangingNet> net(ChangingNet{}, communicator, {.find_unused_parameters = true});
    SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    Doubles seen;
    for (int step = 0; step < 6; ++step) {
      net.module().head.set_requires_grad(step / 2 != 1);
      optimizer.zero_grad();
      loss_of(net(share(batch(step, 3, DType::f64, communicator.device()), communicator.rank()).narrow(1, 0, 2)))
          .backward();
      const Doubles before = values(net.module().head.weight.tensor());
      optimizer.step();
      seen.push_back(before == values(net.module().head.weight.tensor()));
    }
    for (const double value : all_parameters(net.module())) seen.push_back(value);
    return seen;
  });
  CHECK(different(result) == 0);
  CHECK(Doubles(result[0].begin(), result[0].begin() + 6) == Doubles{0, 0, 1, 1, 0, 0});
  ChangingNet whole;
  SGD optimizer(whole.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 6; ++step) {
    whole.head.set_requires_grad(step / 2 != 1);
    optimizer.zero_grad();
    loss_of(whole(batch(step, 3, DType::f64, Device::cpu()).narrow(1, 0, 2))).backward();
    optimizer.step();
  }
  CHECK(largest_difference(Doubles(result[0].begin() + 6, result[0].end()), all_parameters(whole)) <= 1e-10);
}

TEST_CASE("a parameter that one rank has frozen and others train is named") {
  const auto messages = after_change(
      [](ChangingNet& net, int rank, Device) {
        if (rank == 2) net.head.weight.set_requires_grad(false);
      },
      {.find_unused_parameters = true}, 3);
  CHECK(lacks(messages, {"'head.weight'", "frozen on rank 2"}) == "");
  const auto from_start = messages_of_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<ChangingNet> net(ChangingNet{}, communicator, {.static_graph = true});
    if (communicator.rank() == 1) net.module().head.weight.set_requires_grad(false);
    for (int step = 0; step < 2; ++step) loss_of(net(counting({2, 2}))).backward();
    synchronize(communicator.device());
  });
  CHECK(lacks(from_start, {"'head.weight'", "frozen on rank 1"}) == "");
}

TEST_CASE("a parameter that is frozen between forward and backward still gets the average") {
  for (const bool one : {false, true}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<ChangingNet> net(ChangingNet{}, communicator);
      const Tensor loss = sum(net(full({1, 2}, communicator.rank() + 1.0, {.dtype = DType::f64})));
      const Parameter& bias = net.module().body.bias;
      if (!one || communicator.rank() == 0) bias.set_requires_grad(false);
      loss.backward();
      bias.set_requires_grad(true);
      Doubles seen = values(bias.grad());
      for (const double value : values(net.module().body.weight.grad())) seen.push_back(value);
      return seen;
    });
    CHECK(result[0].size() == 6);
    CHECK(different(result) == 0);
    for (const double value : result[0]) CHECK(value != 0);
  }
}

TEST_CASE("a wrapper over frozen parameters ends, and they can be wrapped again") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    ChangingNet module;
    module.to(communicator.device());
    {
      DistributedDataParallel<ChangingNet> net(module, communicator);
      loss_of(net(counting({2, 2}))).backward();
      module.head.set_requires_grad(false);
    }
    {
      DistributedDataParallel<ChangingNet> net(module, communicator);
      loss_of(net(counting({2, 2}))).backward();
      module.head.set_requires_grad(true);
    }
    module.zero_grad();
    if (const auto* leaf = module.head.weight.tensor().leaf(); !leaf->post_accumulate_hooks.empty())
      throw Error("a wrapper that has gone has left a hook");
    DistributedDataParallel<ChangingNet> net(module, communicator);
    sum(net(full({1, 2}, communicator.rank() + 1.0, {.dtype = DType::f64}))).backward();
    return values(module.head.bias.grad());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1, 1});
}

TEST_CASE("a buffer that is replaced after it was wrapped is rank 0's from then on") {
  for (const bool broadcasts : {true, false}) {
    const auto result = run_ranks(3, [&](Communicator& communicator) {
      DistributedDataParallel<ChangingNet> net(ChangingNet{}, communicator, {.broadcast_buffers = broadcasts});
      Doubles seen;
      for (int step = 0; step < 3; ++step) {
        if (step > 0) net.module().factor = Buffer(one_number(10 * step + communicator.rank(), communicator.device()));
        net(counting({2, 2}));
        seen.push_back(values(net.module().factor.tensor())[0]);
        if (step > 0) net.module().factor.tensor().add_(communicator.rank() + 1.0);  // in the new one
        net(counting({2, 2}));
        seen.push_back(values(net.module().factor.tensor())[0]);
      }
      return seen;
    });
    for (int rank = 0; rank < 3; ++rank) {
      const double own = broadcasts ? 0 : rank;
      CHECK(result[static_cast<std::size_t>(rank)] == Doubles{1, 1, 10 + own, 11 + 2 * own, 20 + own, 21 + 2 * own});
    }
  }
}

TEST_CASE("members that are added, removed, reshaped or replaced after they were wrapped are named") {
  const auto added =
      after_change([](ChangingNet& net, int, Device device) { net.more.emplace(one_number(1, device)); });
  CHECK(lacks(added, {"buffer 'more'", "added"}) == "");
  const auto removed = after_change([](ChangingNet& net, int, Device) { net.factor = Buffer(); });
  CHECK(lacks(removed, {"buffer 'factor'", "removed"}) == "");
  const auto reshaped = after_change([](ChangingNet& net, int, Device device) {
    net.factor = Buffer(full({2}, 1, {.dtype = DType::f64, .device = device}));
  });
  CHECK(lacks(reshaped, {"buffer 'factor'", "f64[1]", "f64[2]"}) == "");
  const auto elsewhere =
      after_change([](ChangingNet& net, int, Device) { net.factor = Buffer(one_number(1, Device::cpu())); });
  CHECK(lacks(elsewhere, {"buffer 'factor'", "cpu"}) == "");
  const auto parameter = after_change([](ChangingNet& net, int, Device device) {
    net.head.weight = Parameter(counting({2, 2}, device));
  });
  CHECK(lacks(parameter, {"parameter 'head.weight'", "replaced", "wrap the module again"}) == "");
  const auto one = after_change([](ChangingNet& net, int rank, Device device) {
    if (rank == 1) net.head.weight = Parameter(counting({2, 2}, device));
  });
  CHECK(lacks(one, {"parameter 'head.weight'", "replaced"}) == "");
  const auto dtype = after_change([](ChangingNet& net, int, Device) { net.to(DType::f32); });
  CHECK(lacks(dtype, {"parameter 'body.weight'", "f64[2, 2]", "f32[2, 2]"}) == "");
  const auto device = after_change([](ChangingNet& net, int, Device) { net.head.to(Device::cpu()); });
  CHECK(lacks(device, {"parameter 'head.weight'", "cpu"}) == "");
}

TEST_CASE("what is left alone may be replaced") {
  const auto messages = after_change(
      [](ChangingNet& net, int rank, Device device) {
        net.factor = Buffer(full({1}, rank, {.dtype = DType::f64, .device = device}));
        net.head.bias = Parameter(counting({2}, device));
        net.head.bias.set_requires_grad(false);
      },
      {.ignore = {"head.bias", "factor"}});
  for (const std::string& message : messages) CHECK(message.empty());
  // Under each of its names.
  struct Tied : Module<Tied> {
    Parameter used{counting({2})}, first{counting({3})}, second{first};
    Tensor forward(const Tensor& x) const { return x * used.on(x.device()); }
    void members(Members& m) override { m("used", used), m("first", first), m("second", second); }
  };
  for (const std::string& message : messages_of_ranks(2, [](Communicator& communicator) {
         DistributedDataParallel<Tied> net(Tied(), communicator, {.ignore = {"first"}});
         sum(net(counting({1, 2}))).backward();
         net.module().first.set_requires_grad(false);
         sum(net(counting({1, 2}))).backward();
       }))
    CHECK(message.empty());
}
