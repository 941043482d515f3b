// DataParallel: errors, concurrent use, replicas that are late.
#include <atomic>
#include <thread>

#include "parallel/support.h"
#include "support/watched.h"

using namespace parallel_test;

namespace {

// Does something special on one device when it is told to.
struct Trouble : Module<Trouble> {
  enum class Kind { none, throws, waits, allocates };
  struct Shared {
    std::atomic<Kind> kind{Kind::none};
    std::atomic<int> device{1};
    std::atomic<int> entered{0};
    Latch latch;
  };
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  Parameter weight{tensor({1, 2}, {2})};
  Buffer state{tensor({0}, {1})};

  Tensor forward(const Tensor& x) const {
    ++shared->entered;
    if (shared->kind != Kind::none && (shared->device < 0 || x.device() == device_at(shared->device))) {
      if (shared->kind == Kind::throws) throw std::runtime_error("trouble on " + to_string(x.device()));
      if (shared->kind == Kind::waits) shared->latch.wait();
      if (shared->kind == Kind::allocates) empty({64 << 20}, {.device = x.device()});
    }
    return x * weight.on(x.device());
  }
  void members(Members& m) override { m("weight", weight), m("state", state); }
};
using Kind = Trouble::Kind;

const Tensor& batch() {
  static const Tensor x = counting({4, 2});
  return x;
}
const Doubles kExpected{1, 4, 3, 8, 5, 12, 7, 16};

}  // namespace

TEST_CASE("devices: duplicates, absent ones and bad options are errors") {
  support::needs_devices(2);
  CHECK(missing(message_of<InvalidArgument>([] {
                  DataParallel(Mlp{}, {.devices = devices_at({0, 1, 0})});
                }),
                {device_name(0), "twice"}) == "");
  CHECK_THROWS_AS(DataParallel(Mlp{}, {.devices = devices_at({0, 99})}), InvalidArgument);
  CHECK_THROWS_AS(DataParallel(Mlp{}, {.devices = first_devices(2), .output_device = device_at(99)}), InvalidArgument);
  CHECK_THROWS_AS(DataParallel(Mlp{}, {.devices = first_devices(2), .timeout = Milliseconds(0)}), InvalidArgument);
}

TEST_CASE("placement is checked at every call") {
  auto net = DataParallel(Trouble{}, {.devices = devices_at({2, 1})});
  net(batch());
  net.to(device_at(0));
  CHECK(
      missing(message_of<InvalidArgument>([&] { net(batch()); }),
              {"module must have its parameters and buffers on device " + device_name(2) + " (devices[0]) but found '",
               "weight' on device " + device_name(0)}) == "");
  net.to(device_at(2));
  CHECK(values(net(batch())) == kExpected);
  const auto single = DataParallel(Trouble{}, {.devices = devices_at({2})});
  const_cast<Trouble&>(single.module()).to(Device::cpu());  // NOLINT: the test's business
  CHECK_THROWS_AS(single(batch()), InvalidArgument);
}

TEST_CASE("a replica that throws: the error names it, the next call works") {
  for (const auto& devices : device_sets()) {
    const auto net = DataParallel(Trouble{}, {.devices = devices});
    const Tensor x = counting({120, 2});  // a piece for every device
    const Doubles expected = values(net(x));
    net.module().shared->kind = Kind::throws;
    net.module().shared->device = devices.back().index();
    try {
      net(x);
      FAIL("no error");
    } catch (const ReplicaError& error) {
      CHECK(error.failures.size() == 1);
      CHECK(error.device() == devices.back());
      CHECK(error.replica() == static_cast<int>(devices.size()) - 1);
      CHECK(missing(error.what(), {"trouble on " + to_string(devices.back())}) == "");
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::runtime_error);
    }
    net.module().shared->device = -1;  // all of them
    try {
      net(x);
      FAIL("no error");
    } catch (const ReplicaError& error) {
      CHECK(error.failures.size() == devices.size());
      CHECK(error.replica() == 0);
    }
    net.module().shared->kind = Kind::none;
    CHECK(values(net(x)) == expected);
  }
}

TEST_CASE("outputs that do not fit together, and inputs that do not, leave the wrapper usable") {
  struct Ragged : Module<Ragged> {
    Tensor forward(const Tensor& x) const { return x.sum({0}).expand({x.size(0), x.device().index() + 1}); }
  };
  const auto ragged = DataParallel(Ragged{}, {.devices = first_devices(2)});
  CHECK(missing(message_of<InvalidArgument>([&] {
                  ragged(counting({4, 1}));
                }),
                {"replica 1", "f64[2, 1]", "f64[2, 2]"}) == "");
  const auto net = DataParallel(Trouble{}, {.devices = first_devices(2)});
  CHECK_THROWS_AS(net(full({}, 1)), InvalidArgument);
  CHECK(values(net(batch())) == kExpected);
}

TEST_CASE("a replica that is late: TimeoutError; its device answers DeviceError until it returns") {
  support::needs_devices(4);
  auto net = DataParallel(Trouble{}, {.devices = first_devices(2), .timeout = Milliseconds(400)});
  const auto other = DataParallel(Trouble{}, {.devices = devices_at({2, 1})});
  net(batch());
  net.module().shared->kind = Kind::waits;
  CHECK(missing(message_of<TimeoutError>([&] { net(batch()); }), {"replica 1 on " + device_name(1), "400 ms"}) == "");
  {
    const NoGrad off;
    net.module().weight.tensor().add_(0);  // stale mirrors: a refresh would wait for the late reader
  }
  CHECK_THROWS_AS(net(batch()), DeviceError);
  CHECK_THROWS_AS(other(batch()), DeviceError);
  const auto shared = net.module().shared;
  net = DataParallel(Trouble{}, {.devices = devices_at({0, 3})});  // the late replica keeps the module
  CHECK(values(net(batch())) == kExpected);
  shared->latch.open();
  while (device_thread(device_at(1)).lost()) std::this_thread::yield();
  CHECK(values(other(batch())) == kExpected);
}

TEST_CASE("a replica that runs out of memory: ReplicaError around OutOfMemory, the next call works") {
  const auto net = DataParallel(Trouble{}, {.devices = devices_at({0, 5})});
  const Device device = device_at(5);
  net(batch());
  empty_cache(device);
  const MemoryStats stats = memory_stats(device);
  set_memory_limit(device, stats.in_use_bytes + stats.cached_bytes + (std::size_t{8} << 20));
  net.module().shared->kind = Kind::allocates;
  net.module().shared->device = 5;
  try {
    net(batch());
    FAIL("no error");
  } catch (const ReplicaError& error) {
    CHECK(error.device() == device);
    CHECK_THROWS_AS(std::rethrow_if_nested(error), OutOfMemory);
  }
  set_memory_limit(device, 0);
  net.module().shared->kind = Kind::none;
  CHECK(values(net(batch())) == kExpected);
}

TEST_CASE("two wrappers over one module, called from two threads in inference, are correct") {
  support::needs_devices(4);
  Mlp module;
  const auto a = DataParallel(module, {.devices = devices_at({0, 1, 2})}),
             b = DataParallel(module, {.devices = devices_at({0, 2, 3})});
  const Tensor x = noise({9, 3}, 1), y = noise({5, 3}, 2);
  const int rounds = support::watched() ? 2 : 5;
  for (int round = 0; round < rounds; ++round) {
    std::array<int, 2> wrong{};
    Doubles expected_x, expected_y;
    {
      const NoGrad off;
      for (const Parameter& parameter : module.parameters()) parameter.tensor().mul_(1.25);  // everything is stale
      expected_x = values(module(x.to(device_at(0))));
      expected_y = values(module(y.to(device_at(0))));
    }
    const auto use = [&](const auto& net, const Tensor& input, const Doubles& expected, int& failures) {
      const NoGrad off;
      for (int i = 0; i < 100; ++i) {
        const Doubles got = values(net(input));
        for (std::size_t k = 0; k < got.size(); ++k) failures += std::abs(got[k] - expected[k]) > 1e-12;
      }
    };
    std::thread other([&] { use(b, y, expected_y, wrong[1]); });
    use(a, x, expected_x, wrong[0]);
    other.join();
    CHECK(wrong == std::array<int, 2>{0, 0});
  }
}

TEST_CASE("one wrapper, called from several threads in inference") {
  const auto net = DataParallel(Mlp{}, {.devices = first_devices(3)});
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const NoGrad off;
      const Tensor x = noise({7, 3}, t);
      const Doubles expected = values(net(x));
      for (int i = 0; i < 100; ++i) wrong[t] += values(net(x)) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(3));
  CHECK(net.stats().calls == 303);
}

TEST_CASE("training through one body from two threads at once throws") {
  for (const int count : {1, 2}) {
    const Trouble module;
    const auto a = DataParallel(module, {.devices = first_devices(count)}),
               b = DataParallel(module, {.devices = devices_at({0, 3})});
    const auto shared = module.shared;
    const int before = shared->entered;
    shared->kind = Kind::waits;
    shared->device = -1;
    Doubles result;
    std::thread other([&] { result = values(a(batch())); });
    while (shared->entered < before + count) std::this_thread::yield();  // it is in the middle of its call
    CHECK(missing(message_of<Error>([&] { b(batch()); }), {"weight", "another thread"}) == "");
    shared->kind = Kind::none;
    {
      // Inference is allowed at the same time (a lone replica: the device threads are taken).
      const NoGrad off;
      CHECK(values(DataParallel(module, {.devices = first_devices(1)})(batch())) == kExpected);
    }
    shared->latch.open();
    other.join();
    CHECK(result == kExpected);
    CHECK(values(b(batch())) == kExpected);  // one after the other is fine
  }
}

TEST_CASE("a call from inside a replica throws") {
  const auto inner = std::make_shared<DataParallel<Mlp>>(Mlp{}, DataParallelOptions{.devices = devices_at({4, 5})});
  struct Outer : Module<Outer> {
    std::shared_ptr<DataParallel<Mlp>> net;
    Tensor forward(const Tensor& x) const { return (*net)(x); }
  };
  Outer module;
  module.net = inner;
  for (const int count : {1, 2}) {
    const auto outer = DataParallel(module, {.devices = first_devices(count)});
    try {
      outer(noise({4, 3}, 1));
      FAIL("no error");
    } catch (const ReplicaError& error) {
      CHECK(missing(error.what(), {"DataParallel", "inside a replica"}) == "");
      CHECK_THROWS_AS(std::rethrow_if_nested(error), Error);
    }
  }
  CHECK((*inner)(noise({4, 3}, 1)).size(0) == 4);
}

TEST_CASE("nothing is left behind by calls that fail") {
  const auto net = DataParallel(Trouble{}, {.devices = first_devices(3)});
  const Tensor x = counting({9, 2}, device_at(0));
  net.module().shared->device = 2;
  const auto in_use = [] {
    std::size_t bytes = 0;
    for (const Device device : first_devices(3)) bytes += memory_stats(device).in_use_bytes;
    return bytes;
  };
  net(x);
  const std::size_t before = in_use();
  net.module().shared->kind = Kind::throws;
  for (int i = 0; i < 20; ++i) CHECK_THROWS_AS(net(x), ReplicaError);
  CHECK(in_use() == before);
}
