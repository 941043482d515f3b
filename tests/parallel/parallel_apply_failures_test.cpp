// parallel_apply: replicas that throw, that do not return, devices that are lost.
#include <atomic>
#include <thread>

#include "lockstep/parallel/parallel_apply.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct Odd : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void wait_until_found(Device device) {
  while (device_thread(device).lost()) std::this_thread::yield();
}
int identity(int i) { return i; }
std::vector<int (*)(int)> identities(std::size_t count) { return std::vector<int (*)(int)>(count, identity); }

}  // namespace

TEST_CASE("a failure comes as ReplicaError with the original nested, after all have returned") {
  for (const auto& devices : device_sets()) {
    std::atomic<int> finished{0};
    const auto work = [&](int i) {
      if (i % 2 == 0) throw Odd("number " + std::to_string(i));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return ++finished;
    };
    std::vector<int> numbers;
    for (std::size_t i = 0; i < devices.size(); ++i) numbers.push_back(static_cast<int>(i));
    bool nested = false;
    try {
      parallel_apply(std::vector(devices.size(), work), numbers, devices);
      FAIL("no error");
    } catch (const ReplicaError& error) {
      CHECK(finished == static_cast<int>(devices.size() / 2));  // all were joined
      REQUIRE(error.failures.size() == (devices.size() + 1) / 2);
      CHECK(error.replica() == 0);
      CHECK(error.device() == devices[0]);
      for (std::size_t k = 0; k < error.failures.size(); ++k) {  // lowest first, every one listed
        CHECK(error.failures[k].replica == static_cast<int>(2 * k));
        CHECK(error.failures[k].device == devices[2 * k]);
        CHECK(missing(error.what(), {cat("replica ", 2 * k, " on ", devices[2 * k]), cat("number ", 2 * k)}) == "");
      }
      try {
        std::rethrow_if_nested(error);
      } catch (const Odd& original) {
        nested = std::string(original.what()) == "number 0";
      }
    }
    CHECK(nested);
    CHECK(parallel_apply(identities(devices.size()), numbers, devices) == numbers);  // usable afterwards
  }
}

TEST_CASE("what is not an exception of the standard library is reported too") {
  const auto work = [](int i) -> int { throw i; };
  try {
    parallel_apply(std::vector{work, work}, std::vector{3, 4}, first_devices(2));
    FAIL("no error");
  } catch (const ReplicaError& error) {
    CHECK(error.failures.size() == 2);
    CHECK_THROWS_AS(std::rethrow_if_nested(error), int);
  }
}

TEST_CASE("a replica that does not return in time makes a TimeoutError; it keeps what it uses") {
  support::needs_devices(3);
  const auto latch = std::make_shared<Latch>();
  const auto seen = std::make_shared<std::atomic<double>>(0);
  auto kept = std::make_shared<int>(41);
  const std::weak_ptr<int> watch = kept;
  using Input = std::tuple<Tensor, std::shared_ptr<int>>;
  const auto work = [latch, seen](const Tensor& x, const std::shared_ptr<int>& number) {
    if (x.device() == device_at(1)) {
      latch->wait();
      *seen = x.sum().item<double>() + *number;
    }
  };
  const std::string message = message_of<TimeoutError>([&] {
    std::vector<Input> inputs{{counting({3}, device_at(0)), nullptr}, {counting({3}, device_at(1)), std::move(kept)}};
    parallel_apply(std::vector{work, work}, std::move(inputs), std::nullopt, Milliseconds(300));
  });
  CHECK(missing(message, {"replica 1 on " + device_name(1), "300 ms"}) == "");
  CHECK(message.find("replica 0") == std::string::npos);

  // Its device answers DeviceError at once, before anything runs elsewhere; other devices work.
  std::atomic<int> ran{0};
  const auto count = [&](int) { ++ran; };
  CHECK(missing(message_of<DeviceError>([&] {
                  parallel_apply(std::vector{count, count}, std::vector{0, 1}, devices_at({2, 1}));
                }),
                {"replica 1 on " + device_name(1)}) == "");
  CHECK(ran == 0);
  CHECK(parallel_apply(identities(2), std::vector{0, 1}, devices_at({2, 0})) == std::vector<int>{0, 1});

  CHECK_FALSE(watch.expired());
  latch->open();
  wait_until_found(device_at(1));
  CHECK(*seen == 6 + 41);
  CHECK(parallel_apply(identities(2), std::vector{0, 1}, devices_at({2, 1})) == std::vector<int>{0, 1});
  CHECK(watch.expired());  // dropped when it returned
}

TEST_CASE("a late replica outlives the substitutes of its caller") {
  const auto latch = std::make_shared<Latch>();
  const auto seen = std::make_shared<std::atomic<double>>(0);
  const Parameter weight(tensor({1, 2}, {2}, device_at(1)));
  const auto work = [=](int i) {
    if (i == 0) return;
    latch->wait();
    *seen = weight.on(device_at(1)).sum().item<double>();
  };
  {
    const SubstituteScope scope({weight}, {tensor({30, 40}, {2}, device_at(1))});
    CHECK_THROWS_AS(parallel_apply(std::vector{work, work}, std::vector{0, 1}, first_devices(2), Milliseconds(100)),
                    TimeoutError);
  }
  latch->open();
  wait_until_found(device_at(1));
  CHECK(*seen == 70);
}

TEST_CASE("a late replica that throws in the end harms nobody; the failures of the others are told") {
  support::needs_devices(2);
  const auto latch = std::make_shared<Latch>();
  const auto work = [latch](int i) {
    if (i == 1) throw Odd("early");
    latch->wait();
    throw Odd("late");
  };
  const std::string message = message_of<TimeoutError>([&] {
    parallel_apply(std::vector{work, work}, std::vector{0, 1}, first_devices(2), Milliseconds(300));
  });
  CHECK(missing(message, {"replica 0 on " + device_name(0), "replica 1 on " + device_name(1) + " threw", "early"}) ==
        "");
  latch->open();
  wait_until_found(device_at(0));
  CHECK(parallel_apply(identities(2), std::vector{0, 1}, first_devices(2)) == std::vector<int>{0, 1});
}

TEST_CASE("a task that waits behind a late one is not run after its call has given up") {
  const auto latch = std::make_shared<Latch>();
  const auto ran = std::make_shared<std::atomic<bool>>(false);
  device_thread(device_at(3)).post([latch] { latch->wait(); });
  const auto work = [ran](int i) {
    if (i == 1) *ran = true;
  };
  CHECK(missing(message_of<TimeoutError>([&] {
                  parallel_apply(std::vector{work, work}, std::vector{0, 1}, devices_at({2, 3}), Milliseconds(100));
                }),
                {"replica 1 on " + device_name(3)}) == "");
  latch->open();
  wait_until_found(device_at(3));
  CHECK(parallel_apply(identities(2), std::vector{0, 1}, devices_at({2, 3})) == std::vector<int>{0, 1});
  CHECK_FALSE(*ran);
}

TEST_CASE("a replica that runs out of memory") {
  const Device device = device_at(5);
  empty_cache(device);
  const MemoryStats stats = memory_stats(device);
  set_memory_limit(device, stats.in_use_bytes + stats.cached_bytes + (std::size_t{1} << 20));
  const auto work = [](int i) { return empty({i == 1 ? 64 << 20 : 1}, {.device = device_at(4 + i)}).count(); };
  try {
    parallel_apply(std::vector{work, work}, std::vector{0, 1}, devices_at({4, 5}));
    FAIL("no error");
  } catch (const ReplicaError& error) {
    CHECK(error.replica() == 1);
    CHECK_THROWS_AS(std::rethrow_if_nested(error), OutOfMemory);
  }
  set_memory_limit(device, 0);
  CHECK(parallel_apply(std::vector{work, work}, std::vector{0, 1}, devices_at({4, 5}))[1] == 64 << 20);
  empty_cache(device);
}

TEST_CASE("inputs and outputs are gone when the call is over") {
  const auto number = std::make_shared<int>(3);
  const auto work = [](const std::shared_ptr<int>& given) { return given; };
  for (int round = 0; round < 50; ++round) {
    parallel_apply(std::vector{work, work}, std::vector{number, number}, first_devices(2));
    REQUIRE(number.use_count() == 1);
    CHECK_THROWS_AS(parallel_apply(std::vector(2, [](const std::shared_ptr<int>&) -> int { throw 1; }),
                                   std::vector{number, number}, first_devices(2)),
                    ReplicaError);
    REQUIRE(number.use_count() == 1);
  }
}
