// What DistributedDataParallel refuses, and that no rank is left waiting.
#include "parallel/ddp/support.h"
#include "support/devices.h"

using namespace parallel_test;
using support::first_devices;

namespace {

struct TwoLayers : Module<TwoLayers> {
  Parameter a{counting({2})}, b;
  explicit TwoLayers(const Shape& shape = {3}) : b(counting(shape)) {}
  Tensor forward(const Tensor& x, bool use_b) const {
    const Tensor y = sum(x * a.on(x.device()));
    return use_b ? y + sum(b.on(x.device())) : y;
  }
  void members(Members& m) override { m("a", a), m("b", b); }
};

std::string wrap(const std::function<TwoLayers(int)>& make, int ranks = 3,
                 DistributedDataParallelOptions options = {}) {
  std::string all;
  for (const std::string& message : messages_of_ranks(ranks, [&](Communicator& communicator) {
         DistributedDataParallel<TwoLayers> net(make(communicator.rank()), communicator, options);
       }))
    all += message + "\n";
  return all;
}
int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("models that differ are named on every rank") {
  const std::string shapes = wrap([](int rank) { return TwoLayers(rank == 1 ? Shape{3, 1} : Shape{3}); });
  CHECK(occurrences(shapes, "on rank 0 parameter 'b' f64[3]") == 3);
  CHECK(occurrences(shapes, "on rank 1 parameter 'b' f64[3, 1]") == 3);
  const std::string dtypes = wrap([](int rank) {
    TwoLayers net;
    if (rank == 2) net.to(DType::f32);
    return net;
  });
  CHECK(occurrences(dtypes, "on rank 2 parameter 'a' f32[2]") == 3);
  const std::string frozen = wrap([](int rank) {
    TwoLayers net;
    net.b.set_requires_grad(rank != 0);
    return net;
  });
  CHECK(occurrences(frozen, "'b' f64[3] with strides [1], frozen") == 3);
}

TEST_CASE("a module that cannot be trained by ranks") {
  const std::string nothing = wrap([](int) {
    TwoLayers net;
    net.set_requires_grad(false);
    return net;
  });
  CHECK(occurrences(nothing, "a parameter that requires a gradient") == 3);
  // Only on one rank: the others hear of it.
  const std::string one = wrap([](int rank) {
    TwoLayers net;
    if (rank == 1) net.b = Parameter::uninitialized({3}, DType::f64);
    return net;
  });
  CHECK(occurrences(one, "'b' is uninitialised") == 3);
  CHECK(occurrences(one, "rank 1: ") == 2);
  const std::string devices = wrap([](int) {
    TwoLayers net;
    net.a.tensor().set_data(counting({2}).to(first_devices(2)[1]));
    return net;
  });
  CHECK(occurrences(devices, "on one device") == 3);
  CHECK(occurrences(wrap([](int) { return TwoLayers(); }, 2, {.ignore = {"c"}}), "got 'c'") == 2);
  CHECK(occurrences(wrap([](int) { return TwoLayers(); }, 2, {.bucket_cap_mb = 0}), "bucket_cap_mb 0") == 2);
  CHECK(occurrences(wrap([](int) { return TwoLayers(); }, 2, {.backwards_per_forward = 0}), "backward per forward") ==
        2);
}

TEST_CASE("a parameter without a gradient is an error at the end of the backward") {
  const auto messages = messages_of_ranks(3, [](Communicator& communicator) {
    DistributedDataParallel<TwoLayers> net(TwoLayers(), communicator, small_buckets());
    net(counting({2}), communicator.rank() != 1).backward();
    synchronize(communicator.device());
  });
  CHECK(missing(messages[1], {"rank 1 has none for 'b' (number 1)", "find_unused_parameters"}) == "");
  for (const int other : {0, 2})
    CHECK(missing(messages[static_cast<std::size_t>(other)], {"CommError", "rank 1", "'b' (number 1)"}) == "");
}

TEST_CASE("a parameter that is ready twice") {
  const auto messages = messages_of_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<TwoLayers> net(TwoLayers(), communicator, {.find_unused_parameters = true});
    const Parameter &a = net.module().a, &b = net.module().b;
    // One backward: fine, also where the forward alone does not use it.
    (net(counting({2}), true) + sum(a.on(communicator.device()))).backward();
    net.zero_grad();
    (net(counting({2}), false) + sum(b.on(communicator.device()))).backward();
    if (values(b.grad()) != Doubles{1, 1, 1}) throw Error("another gradient");
    net.zero_grad();
    // In a backward within the backward that has given it away.
    a.tensor().register_hook([&](Tensor&) {
      const GradMode recorded(true);
      sum(b.tensor()).backward();
    });
    net(counting({2}), true).backward();
    synchronize(communicator.device());
  });
  for (const std::string& message : messages) CHECK(missing(message, {"'b' (number 1)"}) == "");
}

TEST_CASE("a static graph that changes") {
  for (const bool first : {false, true}) {
    const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<TwoLayers> net(TwoLayers(), communicator, {.static_graph = true});
      for (const bool use_b : {first, first, !first}) {
        net.zero_grad();
        net(counting({2}), use_b).backward();
      }
      synchronize(communicator.device());
    });
    // Both find out by themselves; who is told of the other's abort first says that.
    for (const std::string& message : messages)
      CHECK(missing(message, {"expected a static graph", "'b'", first ? "fewer gradients" : "was unused"}) == "");
  }
}

TEST_CASE("a static graph that changes in no_sync") {
  const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
    DistributedDataParallel<TwoLayers> net(TwoLayers(), communicator, {.static_graph = true});
    net(counting({2}), false).backward();
    {
      const auto scope = net.no_sync();
      net(counting({2}), false).backward();
      net(counting({2}), communicator.rank() == 1).backward();
    }
    net(counting({2}), false).backward();
    synchronize(communicator.device());
  });
  for (const std::string& message : messages)
    CHECK(missing(message, {"expected a static graph", "'b' (number 1)", "was unused"}) == "");
}

TEST_CASE("a module that moves between forward and backward") {
  for (const bool there_and_back : {false, true}) {
    for (const bool type : {false, true}) {
      const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
        DistributedDataParallel<TwoLayers> net(TwoLayers(), communicator);
        const Tensor loss = net(full({2}, communicator.rank() + 1.0, {.dtype = DType::f64}), true);
        if (type) {
          net.module().to(DType::f32);
          if (there_and_back) net.module().to(DType::f64);
        } else {
          net.module().to(Device::cpu());
          if (there_and_back) net.module().to(communicator.device());
        }
        loss.backward();
        synchronize(communicator.device());
        if (values(net.module().a.grad().to(DType::f64)) == Doubles{1.5, 1.5}) throw Error("the average");
      });
      for (const std::string& message : messages) {
        INFO("type " << type << ", back " << there_and_back << ": " << message);
        if (there_and_back)
          CHECK(message == "the average");
        else
          CHECK(missing(message, {"expected the gradient of 'b'", "moved between forward and backward"}) == "");
      }
    }
  }
}

TEST_CASE("a gradient that stayed, and has moved between forward and backward, is named") {
  const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
    DistributedDataParallel<TwoLayers> net(TwoLayers(), communicator, {.find_unused_parameters = true});
    net(counting({2}), true).backward();
    net.module().a.zero_grad();
    const Tensor loss = net(counting({2}), false);
    net.module().to(Device::cpu());
    loss.backward();
    synchronize(communicator.device());
  });
  for (const std::string& message : messages) CHECK(missing(message, {"'b'", "cpu"}) == "");
}

TEST_CASE("a backward that fails half way is noticed at the next forward") {
  const auto messages = messages_of_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<TwoLayers> net(TwoLayers(), communicator, small_buckets());
    Tensor x = counting({2}, communicator.device());
    const auto hook = net.module().a.tensor().register_hook([](Tensor&) { throw Error("a hook fails"); });
    try {
      net(x, true).backward();
      throw Error("the hook did not fail");
    } catch (const Error& error) {
      if (std::string(error.what()) != "a hook fails") throw;
    }
    net.module().a.tensor().remove_hook(hook);
    net(x, true);
  });
  int noticed = 0;
  for (const std::string& message : messages)
    noticed += message.find("expected the reduction of the last iteration") != std::string::npos;
  CHECK(noticed >= 1);
}

TEST_CASE("a backward that has failed on all ranks alike leaves the communicator to the next wrapper") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    TwoLayers module;
    module.to(communicator.device());
    const Tensor x = counting({2}, communicator.device());
    {
      DistributedDataParallel<TwoLayers> net(module, communicator, small_buckets());
      const auto hook = module.a.tensor().register_hook([](Tensor&) { throw Error("a hook fails"); });
      try {
        net(x, true).backward();
        throw Error("the hook did not fail");
      } catch (const Error& error) {
        if (std::string(error.what()) != "a hook fails") throw;
      }
      module.a.tensor().remove_hook(hook);
    }
    module.zero_grad();
    DistributedDataParallel<TwoLayers> again(module, communicator, small_buckets());
    again(x, true).backward();
    return values(module.b.grad());
  });
  for (const Doubles& gradient : result) CHECK(gradient == Doubles{1, 1, 1});
}

TEST_CASE("after an error the module can be wrapped again") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    TwoLayers module;
    module.to(communicator.device());
    std::string message;
    {
      const auto first = communicator.split(0);
      DistributedDataParallel<TwoLayers> net(module, *first);
      try {
        net(counting({2}), false).backward();
        synchronize(communicator.device());
      } catch (const Error& error) {
        message = error.what();
      }
    }
    drain(communicator.device());
    communicator.barrier();
    module.zero_grad();
    DistributedDataParallel<TwoLayers> again(module, communicator);
    again(counting({2}), true).backward();
    return std::pair(message.empty(), values(module.b.grad()));
  });
  for (const auto& [silent, gradient] : result) {
    CHECK_FALSE(silent);
    CHECK(gradient == Doubles{1, 1, 1});
  }
}
