// Norms whose statistics the replicas of a call share: as one norm of the whole batch, and no replica waits for one
// that does not come.
#include "lockstep/parallel/sync_norm/replica_statistics.h"

#include <array>
#include <thread>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "parallel/sync_norm/support.h"
#include "support/watched.h"

using namespace parallel_test;

namespace {

// Two norms, one after the other; `before` is called in each replica.
struct TwoNorms : Module<TwoNorms> {
  Affine first{kChannels, kChannels, 1}, second{kChannels, 2, 2};
  BatchNorm1d norm{kChannels}, other{kChannels};
  std::function<Tensor(const TwoNorms&, const Tensor&)> call;
  TwoNorms() {
    norm.to(DType::f64), other.to(DType::f64);
    norm.weight.assign(noise({kChannels}, 21)), other.weight.assign(noise({kChannels}, 22));
    call = [](const TwoNorms& net, const Tensor& x) {
      return net.second(tanh(net.other(tanh(net.norm(net.first(x))))));
    };
  }
  Tensor forward(const Tensor& x) const { return call(*this, x); }
  void members(Members& m) override { m("first", first), m("second", second), m("norm", norm), m("other", other); }
};

std::vector<Doubles> state_and_gradients(const ModuleBase& module) {
  std::vector<Doubles> all{state_of(module)};
  for (const Parameter& parameter : module.parameters())
    all.push_back(parameter.grad().defined() ? values(parameter.grad()) : Doubles{});
  return all;
}
double distance_of(const std::vector<Doubles>& a, const std::vector<Doubles>& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, parallel_test::distance(a[i], b[i]));
  return largest;
}

// What a replica of `call` throws, all together; "" where none does.
std::string failure_of(std::function<Tensor(const TwoNorms&, const Tensor&)> call, int devices = 2) {
  TwoNorms net;
  net.call = std::move(call);
  DataParallel<TwoNorms> parallel(net, {.devices = first_devices(devices)});
  convert_replica_batchnorm(parallel);
  try {
    parallel(noise({2 * devices, kChannels}, 3));
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}
int replica_of(const Tensor& x) {
  const auto devices =
      first_devices(8 < static_cast<int>(accelerators().size()) ? 8 : static_cast<int>(accelerators().size()));
  return static_cast<int>(std::find(devices.begin(), devices.end(), x.device()) - devices.begin());
}

}  // namespace

TEST_CASE("replicas normalise by the statistics of all of them") {
  for (const std::vector<Device>& devices : device_sets()) {
    if (support::watched() && devices.size() > 3) continue;
    for (const std::int64_t rows : {2, 7}) {
      INFO(devices.size() << " devices, " << rows << " rows");
      TwoNorms one;
      DataParallel<TwoNorms> net(TwoNorms{}, {.devices = devices});
      CHECK(convert_replica_batchnorm(net) == 2);
      for (int step = 0; step < 2; ++step) {
        const Tensor x = noise({rows, kChannels}, 10 + static_cast<std::uint64_t>(step)) * 4.0 + 3.0;
        Tensor mine = x.clone().set_requires_grad(), whole = x.clone().set_requires_grad();
        const Tensor y = net(mine), expected = one(whole);
        CHECK(largest_difference(y.to(Device::cpu()), expected) < 1e-10);
        sum(y * y).backward();
        sum(expected * expected).backward();
        CHECK(largest_difference(mine.grad(), whole.grad()) < 1e-10);
      }
      CHECK(distance_of(state_and_gradients(net), state_and_gradients(one)) < 1e-9);
    }
  }
}

TEST_CASE("a norm that shares statistics rectifies what it computes by them") {
  const auto rectified = [](const TwoNorms& net, const Tensor& x) {
    return net.second(net.norm.activated(net.first(x), Activation::relu));
  };
  TwoNorms one, module;
  one.call = module.call = rectified;
  DataParallel<TwoNorms> net(module, {.devices = first_devices(3)});
  convert_replica_batchnorm(net);
  const Tensor x = noise({7, kChannels}, 10) * 4.0 + 3.0;
  Tensor mine = x.clone().set_requires_grad(), whole = x.clone().set_requires_grad();
  sum(square(net(mine))).backward();
  sum(square(one(whole))).backward();
  CHECK(largest_difference(mine.grad(), whole.grad()) < 1e-10);
  CHECK(distance_of(state_and_gradients(net), state_and_gradients(one)) < 1e-9);
}

TEST_CASE("replicas share statistics on streams of their own") {
  // In mode strict the order checker sees a stream that nobody waits for.
  for (const std::vector<Device>& devices : device_sets()) {
    TwoNorms one, module;
    module.call = [call = module.call](const TwoNorms& net, const Tensor& x) {
      const Stream outer = current_stream(x.device()), own(x.device());
      const Tensor in = x * 1.0;
      own.wait_for(outer);
      in.storage()->record_use(own);
      Tensor y;
      {
        const StreamScope scope(own);
        y = call(net, in * 1.0);
      }
      outer.wait_for(own);
      y.storage()->record_use(outer);
      return y * 1.0;
    };
    DataParallel<TwoNorms> net(module, {.devices = devices});
    convert_replica_batchnorm(net);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = noise({64, kChannels}, 30 + static_cast<std::uint64_t>(step)) * 4.0 + 3.0;
      const Tensor y = net(x), expected = one(x);
      CHECK(largest_difference(y.to(Device::cpu()), expected) < 1e-10);
      sum(y * y).backward();
      sum(expected * expected).backward();
    }
    CHECK(distance_of(state_and_gradients(net), state_and_gradients(one)) < 1e-8);
  }
}

TEST_CASE("replicas share statistics of 16 bits, under autocast and without gradients") {
  support::needs_devices(2);
  const auto devices = first_devices(2);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    BatchNorm1d one(kChannels);
    DataParallel<BatchNorm1d> net(BatchNorm1d(kChannels), {.devices = devices});
    convert_replica_batchnorm(net);
    const Tensor x = (noise({6, kChannels}, 4) * 3.0 + 5.0).to(dtype), wide = x.to(DType::f32);
    const auto off = [&](const Tensor& y) {
      return largest_difference(y.detach().to(DType::f64).to(Device::cpu()), one(wide).detach().to(DType::f64));
    };
    CHECK(off(net(x)) < 0.02);
    {
      const Autocast casts(dtype);
      CHECK(off(net(x)) < 0.02);
    }
    {
      const NoGrad no_grad;
      const Tensor y = net(x);
      CHECK(!y.requires_grad());
      CHECK(off(y) < 0.02);
    }
    CHECK(parallel_test::distance(state_of(net), state_of(one)) < 1e-4);
  }
}

TEST_CASE("a graph goes through the replicas that record one, whoever comes last") {
  support::needs_devices(2);
  for (const int last : {0, 1})
    for (const int without : {0, 1}) {
      TwoNorms module;
      const auto seen = std::make_shared<std::array<bool, 2>>();
      module.call = [=](const TwoNorms& net, const Tensor& x) {
        const auto me = static_cast<std::size_t>(replica_of(x));
        if (replica_of(x) == last) std::this_thread::sleep_for(Milliseconds(2));  // likely to be the last
        const GradMode mode(replica_of(x) != without);
        const Tensor y = net.norm(net.first(x));
        (*seen)[me] = y.requires_grad();
        return y;
      };
      DataParallel<TwoNorms> net(module, {.devices = first_devices(2)});
      convert_replica_batchnorm(net);
      const Tensor y = net(noise({4, kChannels}, 1));
      CHECK((*seen)[static_cast<std::size_t>(1 - without)]);
      CHECK(!(*seen)[static_cast<std::size_t>(without)]);
      sum(y * y * y).backward();
      // By hand: the other replica's rows are numbers.
      TwoNorms one;
      const Tensor x = noise({4, kChannels}, 1);
      const auto rows = [&](int replica) { return x.narrow(0, 2 * replica, 2); };
      const Tensor mine = one.first(rows(1 - without)), other = one.first(rows(without)).detach();
      const Tensor all = without == 0 ? cat({other, mine}) : cat({mine, other});
      const Tensor whole = one.norm(all).narrow(0, 2 * (1 - without), 2);
      sum(whole * whole * whole).backward();
      CHECK(largest_difference(net.module().first.weight.grad(), one.first.weight.grad()) < 1e-10);
    }
}

TEST_CASE("replicas share statistics where losses are reduced in them") {
  for (const std::vector<Device>& devices : device_sets()) {
    TwoNorms one;
    DataParallel<TwoNorms> net(TwoNorms{}, {.devices = devices});
    convert_replica_batchnorm(net);
    const auto loss = [](const Tensor& y) { return mean(y * y); };
    const Tensor x = noise({7, kChannels}, 5);
    net.reduce_with(loss, x).backward();
    loss(one(x)).backward();
    CHECK(distance_of(state_and_gradients(net), state_and_gradients(one)) < 1e-10);
  }
}

TEST_CASE("the same replicas give the same bits") {
  support::needs_devices(3);
  std::vector<std::vector<Doubles>> runs;
  for (int run = 0; run < 20; ++run) {
    // Its gradient is a sum over the replicas, whichever of them came to the norms last.
    Tensor factor = noise({32, 1, 1}, 9).to(first_devices(1)[0]).set_requires_grad();
    TwoNorms module;
    module.call = [factor, run, call = module.call](const TwoNorms& net, const Tensor& x) {
      if (replica_of(x) == run % 4) std::this_thread::sleep_for(Milliseconds(2));  // likely to be the last
      return call(net, mean(tanh(net.norm(x) * factor.to(x.device())), {0}));
    };
    DataParallel<TwoNorms> net(module, {.devices = first_devices(3)});
    convert_replica_batchnorm(net);
    const Tensor y = net(noise({8, kChannels}, 6));
    sum(y * y).backward();
    runs.push_back(state_and_gradients(net));
    runs.back().push_back(values(factor.grad()));
  }
  for (const auto& run : runs) CHECK(run == runs[0]);
}

TEST_CASE("second derivatives go through all replicas") {
  support::needs_devices(2);
  const auto penalty = [](const auto& net) {
    Tensor x = noise({5, kChannels}, 8).set_requires_grad();
    const Tensor y = net(x), dx = grad(sum(y * y), {x}, {.create_graph = true})[0];
    sum(dx * dx).backward();
    return values(x.grad());
  };
  DataParallel<TwoNorms> net(TwoNorms{}, {.devices = first_devices(2)});
  convert_replica_batchnorm(net);
  TwoNorms one;
  CHECK(parallel_test::distance(penalty(net), penalty(one)) < 1e-9);
  CHECK(distance_of(state_and_gradients(net), state_and_gradients(one)) < 1e-9);
}

TEST_CASE("a lone replica, evaluation and a plain call share nothing") {
  support::needs_devices(2);
  TwoNorms one;
  DataParallel<TwoNorms> net(TwoNorms{}, {.devices = first_devices(2)});
  convert_replica_batchnorm(net);
  const Tensor lone = noise({1, kChannels}, 1), x = noise({4, kChannels}, 2);
  CHECK(missing(message_of<ReplicaError>([&] { net(lone); }), {"more than one value per channel"}) == "");
  net.eval(), one.eval();
  CHECK(largest_difference(net(x).to(Device::cpu()), one(x)) < 1e-12);
  net.train(), one.train();
  CHECK(largest_difference(net.module()(x.to(net.devices()[0])).to(Device::cpu()), one(x)) < 1e-12);
}

TEST_CASE("a replica that throws or skips a norm ends the waits of the others") {
  support::needs_devices(3);
  const std::string thrown = failure_of(
      [](const TwoNorms& net, const Tensor& x) {
        if (replica_of(x) == 1) throw std::runtime_error("the dog ate it");
        return net.norm(x);
      },
      3);
  CHECK(missing(thrown, {"replica 1", "the dog ate it", "'module.norm'", "replica 1 on", "threw: the dog ate it"}) ==
        "");
  const std::string skipped =
      failure_of([](const TwoNorms& net, const Tensor& x) { return replica_of(x) == 2 ? x : net.norm(x); }, 3);
  CHECK(missing(skipped, {"come to 'module.norm'", "replica 2 on", "has returned"}) == "");
  const std::string once = failure_of([](const TwoNorms& net, const Tensor& x) {
    const Tensor y = net.norm(x);
    return replica_of(x) == 0 ? net.norm(y) : y;
  });
  CHECK(missing(once, {"come to 'module.norm'", "replica 1 on", "has returned"}) == "");
}

TEST_CASE("the error of a call is the one that was there first") {
  support::needs_devices(3);
  TwoNorms module;
  module.call = [](const TwoNorms& net, const Tensor& x) {
    if (replica_of(x) == 1) throw OutOfMemory(x.device(), 1, 2, 3);
    return net.norm(x);
  };
  DataParallel<TwoNorms> net(module, {.devices = first_devices(3)});
  convert_replica_batchnorm(net);
  try {
    net(noise({6, kChannels}, 3));
    FAIL_CHECK("no error");
  } catch (const ReplicaError& error) {
    CHECK(error.failures.size() == 3);
    CHECK_THROWS_AS(std::rethrow_if_nested(error), OutOfMemory);
  }
}

TEST_CASE("replicas that come to norms in another order say so") {
  support::needs_devices(2);
  const std::string crossed = failure_of([](const TwoNorms& net, const Tensor& x) {
    return replica_of(x) == 0 ? net.other(net.norm(x)) : net.norm(net.other(x));
  });
  CHECK(missing(crossed, {"in the same order", "replica 0 on", "is at 'module.norm'", "replica 1 on",
                          "is at 'module.other'"}) == "");
}

TEST_CASE("a call after one that failed shares statistics again") {
  support::needs_devices(2);
  TwoNorms one, module;
  auto fails = std::make_shared<bool>(true);
  module.call = [fails, call = module.call](const TwoNorms& net, const Tensor& x) {
    if (*fails && replica_of(x) == 1) throw std::runtime_error("no");
    return call(net, x);
  };
  DataParallel<TwoNorms> net(module, {.devices = first_devices(2)});
  convert_replica_batchnorm(net);
  const Tensor x = noise({5, kChannels}, 4);
  const Doubles before = state_of(net);
  CHECK_THROWS(net(x));
  CHECK(state_of(net) == before);
  *fails = false;
  CHECK(largest_difference(net(x).to(Device::cpu()), one(x)) < 1e-10);
  CHECK(parallel_test::distance(state_of(net), state_of(one)) < 1e-10);
}

TEST_CASE("who waits for a replica that is late is let go at the deadline of the call") {
  support::needs_devices(2);
  // As long as it takes until replica 0 has come to the norm before the deadline.
  for (int milliseconds = 50;; milliseconds *= 2) {
    REQUIRE(milliseconds < 100'000);
    const auto latch = std::make_shared<Latch>();
    const auto said = std::make_shared<std::string>();
    TwoNorms module;
    module.call = [=](const TwoNorms& net, const Tensor& x) {
      if (replica_of(x) == 1) {
        latch->wait();
        return x;
      }
      try {
        return net.norm(x);
      } catch (const Error& error) {
        *said = error.what();
        throw;
      }
    };
    std::string message;
    {
      DataParallel<TwoNorms> net(module, {.devices = first_devices(2), .timeout = Milliseconds(milliseconds)});
      convert_replica_batchnorm(net);
      message = message_of<TimeoutError>([&] { net(noise({4, kChannels}, 1)); });
    }
    latch->open();
    for (const Device device : first_devices(2)) {  // its thread answers again
      for (;;) {
        try {
          detail::check_answering({&device, 1});
          break;
        } catch (const DeviceError&) {
          std::this_thread::yield();
        }
      }
    }
    CHECK(missing(message, {"replica 1 on " + device_name(1), cat(milliseconds, " ms")}) == "");
    CHECK(missing(message, {"replica 1 on " + device_name(1) + " (which waits"}) != "");
    if (missing(message, {"replica 0 on " + device_name(0) + " (which waits for others)"}) != "") continue;
    CHECK(missing(*said, {"before the deadline of the call"}) == "");
    break;
  }
}

TEST_CASE("replicas that share statistics run no backward of their own, and no checkpoint") {
  support::needs_devices(2);
  const std::string backward = failure_of([](const TwoNorms& net, const Tensor& x) {
    const Tensor y = net.norm(net.first(x));
    sum(y * y).backward();
    return y;
  });
  CHECK(missing(backward, {"[BatchNorm] expected the backward through 'module.norm' after the replicas"}) == "");
  const std::string again = failure_of([](const TwoNorms& net, const Tensor& x) {
    return checkpoint([&net](const Tensor& in) { return net.norm(in); }, x);
  });
  CHECK(missing(again, {"expected 'module.norm' outside of checkpoint()"}) == "");
}
