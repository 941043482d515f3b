// ReplicaPool: devices that fail, replicas that hang, weights that are exchanged, threads that cannot be had.
#include <sched.h>

#include <future>

#include "parallel/serving/served.h"

using namespace parallel_test;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

TEST_CASE("a device that fails is taken out, and its requests go to another replica once") {
  support::needs_devices(2);
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = devices_at({0, 1, 1}), .max_batch_samples = 2});
  net.control->hold();
  std::vector<Answer<Tensor>> answers;
  for (int i = 0; i < 3; ++i) {
    answers.push_back(pool.submit(row(i)));
    net.control->await_held(i + 1);  // each replica has one
  }
  answers.push_back(pool.submit(row(3)));
  net.control->fail_on(device_at(1));
  net.control->hold(false);
  for (int i = 0; i < 4; ++i) CHECK(values(answers[static_cast<std::size_t>(i)].get()) == answer_to(i));
  const ReplicaPoolStats stats = pool.stats();
  CHECK(stats.answered == 4);
  CHECK(stats.moved == 2);
  CHECK(stats.replicas[0].state == ReplicaState::serving);
  for (const int lost : {1, 2}) {
    CHECK(stats.replicas[static_cast<std::size_t>(lost)].state == ReplicaState::lost);
    CHECK_THAT(stats.replicas[static_cast<std::size_t>(lost)].error, Contains("the device is gone"));
  }
  CHECK_THAT(log.await(1)[0], Contains("taken out") && Contains("the device is gone") && Contains(device_name(1)));

  net.control->fail_on(device_at(0));
  auto last = pool.submit(row(7));
  CHECK_THAT(message_of<DeviceError>([&] { last.get(); }), Contains("the device is gone"));
  CHECK_THAT(message_of<Refused>([&] { pool.submit(row(8)); }),
             Contains("a replica that serves") && Contains("the device is gone"));
  CHECK(pool.stats().failed == 1);
}

// Needs 1 MiB for each row while it computes.
struct Hungry : Module<Hungry> {
  Parameter weight{tensor({2, 3}, {2}), false};
  Tensor forward(const Tensor& x) const {
    const Tensor work = zeros({x.size(0), 1 << 18}, {.dtype = DType::f32, .device = x.device()});
    return x * weight.on(x.device()) + sum(work);
  }
  void members(Members& m) override { m("weight", weight); }
};

TEST_CASE("pools on devices with limits of their own do not take each other's memory") {
  support::needs_devices(2);
  const Device limited = device_at(1);
  empty_cache(limited);
  const MemoryStats stats = memory_stats(limited);
  set_memory_limit(limited,
                   stats.in_use_bytes + stats.cached_bytes + (std::size_t{64} << 20));  // products on CUDA take 32
  {
    ReplicaPool small(Hungry(), {.devices = {limited}}), large(Hungry(), {.devices = {device_at(0)}});
    const Tensor many = full({80, 2}, 1, {.dtype = DType::f32}), few = full({2, 2}, 1, {.dtype = DType::f32});
    for (int turn = 0; turn < 2; ++turn) {
      auto too_large = small.submit(many), fits = large.submit(many), little = small.submit(few);
      CHECK_THAT(message_of<OutOfMemory>([&] { too_large.get(); }), Contains(device_name(1)));
      CHECK(fits.get().shape() == Shape{80, 2});
      CHECK(values(little.get()) == std::vector<double>{2, 3, 2, 3});
    }
    CHECK(small.stats().failed == 2);
    CHECK(small.stats().replicas[0].state == ReplicaState::serving);
    CHECK(large.stats().answered == 2);
  }
  set_memory_limit(limited, 0);
  empty_cache(limited);
}

// In the thread of a replica, and in the one that watches the time. Who waits for itself does so for an hour.
TEST_CASE("a callback may end its pool") {
  for (const bool is_late : {false, true}) {
    CAPTURE(is_late);
    Served net;
    ManualClock clock;
    auto pool = std::make_unique<ReplicaPool<Served, Tensor(const Tensor&)>>(
        net, ReplicaPoolOptions{
                 .devices = first_devices(1), .max_batch_samples = 1, .hang_timeout = 3'600'000ms, .clock = &clock});
    net.control->hold();
    std::promise<void> ended;
    auto first = pool->submit(row(1));
    net.control->await_held(1);
    auto behind = is_late ? pool->submit(row(2)) : Answer<Tensor>();
    pool->submit(row(3), {.timeout = 1000ms}, [&](const Answer<Tensor>&) {
      pool.reset();
      ended.set_value();
    });
    if (is_late) {
      clock.advance(2000ms);
      // The pool's end waits for the replica, which must not have a turn before the pool is closed.
      CHECK_THAT(message_of<Cancelled>([&] { behind.get(); }), Contains("closed"));
    }
    net.control->hold(false);
    REQUIRE(ended.get_future().wait_for(60s) == std::future_status::ready);
    CHECK(!pool);
    CHECK(values(first.get()) == answer_to(1));
  }
}

TEST_CASE("a request that changes replicas does not wait for a window again") {
  support::needs_devices(2);
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = first_devices(2), .max_batch_samples = 2, .max_delay = 1h});
  net.control->hold();
  std::vector<Answer<Tensor>> answers;
  for (int i = 0; i < 4; ++i) {
    answers.push_back(pool.submit(row(i)));
    if (i % 2 == 1) net.control->await_held(i / 2 + 1);  // each replica has a full batch
  }
  for (const std::size_t i : {0, 2}) CHECK(answers[i].cancel());  // of which a half is left
  net.control->fail_on(device_at(1));
  net.control->hold(false);
  for (const std::size_t i : {1, 3}) CHECK(values(answers[i].get()) == answer_to(static_cast<double>(i)));
  CHECK(pool.stats().moved == 1);
}

TEST_CASE("a request whose second replica fails too ends in that error, and the third replica serves") {
  support::needs_devices(3);
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = first_devices(3)});
  net.control->failing_calls = 2;
  auto unlucky = pool.submit(row(1));
  CHECK_THROWS_AS(unlucky.get(), DeviceError);
  CHECK(values(pool.submit(row(2)).get()) == answer_to(2));
  const ReplicaPoolStats stats = pool.stats();
  CHECK((stats.moved == 1 && stats.failed == 1 && stats.answered == 1));
}

TEST_CASE("a device that fails takes its idle replicas along") {
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = devices_at({0, 0})});
  net.control->failing_calls = 1;
  CHECK_THROWS_AS(pool.submit(row(1)).get(), DeviceError);  // no other device has a replica
  CHECK_THROWS_AS(pool.submit(row(2)), Refused);
}

TEST_CASE("when the last replica fails, what waits ends in its error") {
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1});
  net.control->hold();
  auto running = pool.submit(row(0));
  net.control->await_held(1);
  auto queued = pool.submit(row(1));
  net.control->fail_on(device_at(0));
  net.control->hold(false);
  CHECK_THROWS_AS(running.get(), DeviceError);
  CHECK_THROWS_AS(queued.get(), DeviceError);
  CHECK(pool.stats().dropped == 1);
  CHECK(pool.drain());
}

TEST_CASE("a replica that hangs is taken out until it returns, and others answer its requests") {
  support::needs_devices(2);
  ManualClock clock;
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = first_devices(2), .hang_timeout = 100ms, .clock = &clock});
  net.control->hold();
  auto stuck = pool.submit(row(1));
  net.control->await_held(1);
  {  // only calls that are inside stay there
    const std::lock_guard lock(net.control->mutex);
    net.control->entered = 0;
  }
  clock.advance(99ms);
  CHECK_FALSE(stuck.wait(20ms));
  CHECK(pool.stats().moved == 0);
  clock.advance(1ms);
  net.control->await_held(2);  // the other one has it now
  ReplicaPoolStats stats = pool.stats();
  CHECK(stats.moved == 1);
  CHECK(std::count_if(stats.replicas.begin(), stats.replicas.end(),
                      [](const ReplicaStats& replica) { return replica.state == ReplicaState::hung; }) == 1);
  const std::vector<std::string> logged = log.await(1);
  CHECK(logged.size() == 1);
  CHECK_THAT(logged[0], Contains("is taken out") && Contains("has not ended in 100 ms"));
  net.control->hold(false);
  CHECK(values(stuck.get()) == answer_to(1));
  await(pool, [](const ReplicaPoolStats& now) {
    return std::all_of(now.replicas.begin(), now.replicas.end(),
                       [](const ReplicaStats& replica) { return replica.state == ReplicaState::serving; });
  });
  CHECK(values(pool.submit(row(2)).get()) == answer_to(2));
  CHECK(pool.stats().answered == 2);
}

TEST_CASE("a request that was moved is not failed by the replica that it was moved from") {
  support::needs_devices(2);
  ManualClock clock;
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = first_devices(2), .hang_timeout = 100ms, .clock = &clock});
  net.control->hold();
  auto stuck = pool.submit(row(1));
  net.control->await_held(1);
  CHECK(pool.stats().replicas[0].state == ReplicaState::serving);
  clock.advance(100ms);
  net.control->await_held(2);
  CHECK_THAT(message_of<Error>([&] { pool.update([](Served&) {}); }), Contains("which hangs"));
  const Device first = net.control->devices[0];  // gives up at last, as a driver does
  net.control->fail_on(first);
  net.control->let_go(first);
  await(pool, [](const ReplicaPoolStats& stats) {
    return std::any_of(stats.replicas.begin(), stats.replicas.end(),
                       [](const ReplicaStats& replica) { return replica.state == ReplicaState::lost; });
  });
  CHECK_FALSE(stuck.wait(50ms));
  net.control->hold(false);
  CHECK(values(stuck.get()) == answer_to(1));
  CHECK(pool.stats().failed == 0);
  pool.update([](Served&) {});
}

TEST_CASE("a replica that hangs is noticed although nothing else happens") {
  support::needs_devices(2);
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = first_devices(2), .hang_timeout = 20ms});
  net.control->hold();
  auto stuck = pool.submit(row(1));
  net.control->await_held(2);  // the other one has it too
  net.control->hold(false);
  CHECK(values(stuck.get()) == answer_to(1));
}

TEST_CASE("a pool whose replica never returns ends all the same, and says so") {
  ManualClock clock;  // the thread that is left to itself looks at it
  Served net;
  const CapturedLog log;
  Answer<Tensor> answer;
  {
    ReplicaPool pool(net, {.devices = first_devices(1), .timeout = 20ms, .hang_timeout = 50ms, .clock = &clock});
    net.control->hold();
    answer = pool.submit(row(1));
    net.control->await_held(1);
    clock.advance(20ms);
    CHECK_THROWS_AS(answer.get(), TimeoutError);
    answer = pool.submit(row(2), {.timeout = 1h});  // nobody will have it
  }
  CHECK_THROWS_AS(answer.get(), Cancelled);
  REQUIRE_FALSE(log.messages.empty());
  CHECK_THAT(log.messages.back(), Contains("1 replicas did not return") && Contains("left to themselves"));
  net.control->hold(false);
  while (net.control.use_count() > 2) std::this_thread::sleep_for(1ms);  // the thread has let go of the module
}

TEST_CASE("a request that a lost replica computes ends with the pool") {
  Served net;
  const CapturedLog log;
  Answer<Tensor> answer;
  {
    ReplicaPool pool(net, {.devices = first_devices(1), .hang_timeout = 50ms});
    net.control->hold();
    answer = pool.submit(row(1), {.timeout = 1h});
    net.control->await_held(1);
  }
  CHECK_THAT(message_of<Cancelled>([&] { answer.get(); }), Contains("before a replica had answered"));
  net.control->hold(false);
  while (net.control.use_count() > 2) std::this_thread::sleep_for(1ms);
}

TEST_CASE("times that are meant as never are that") {
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1),
                         .max_batch_samples = 2,
                         .max_delay = std::chrono::microseconds::max(),
                         .timeout = Milliseconds::max(),
                         .hang_timeout = Milliseconds::max()});
  auto a = pool.submit(row(1));
  CHECK_FALSE(a.wait(20ms));
  auto b = pool.submit(row(2));
  CHECK(values(a.get()) == answer_to(1));
  CHECK(values(b.get()) == answer_to(2));
  CHECK(pool.stats().moved == 0);
}

TEST_CASE("weights are exchanged under load: every answer is of one version, on all replicas after update") {
  struct Layers : Module<Layers> {
    std::vector<Parameter> parts;
    Layers() {
      for (int i = 0; i < 6; ++i) parts.emplace_back(zeros({1}, {.dtype = DType::f64}), false);
    }
    Tensor forward(const Tensor& x) const {
      std::vector<Tensor> seen;
      for (const Parameter& part : parts) seen.push_back(x * part.on(x.device()));
      return cat(seen, 1);
    }
    void members(Members& m) override { m("parts", parts); }
  };
  const auto version = [](double number) {
    std::vector<NamedTensor> state;
    for (int i = 0; i < 6; ++i)
      state.push_back({"parts." + std::to_string(i), full({1}, number, {.dtype = DType::f64})});
    return state;
  };
  const auto devices = first_devices(2);
  ReplicaPool pool(Layers(), {.devices = {devices[0], devices[1], devices[1]}, .max_batch_samples = 3});
  std::atomic<int> torn{0}, answered{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back([&] {
      while (!stop) {
        const Doubles seen = values(pool.submit(full({1, 1}, 1, {.dtype = DType::f64})).get());
        torn += std::any_of(seen.begin(), seen.end(), [&](double value) { return value != seen[0]; });
        ++answered;
      }
    });
  for (int number = 1; number <= 20; ++number) {
    pool.update([&](Layers& net) { net.load_state_dict(version(number)); });
    std::vector<Answer<Tensor>> answers;
    for (int i = 0; i < 6; ++i) answers.push_back(pool.submit(full({3, 1}, 1, {.dtype = DType::f64})));
    for (auto& answer : answers) CHECK(values(answer.get()) == Doubles(18, number));
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  CHECK(torn == 0);
  CHECK(answered > 0);
  CHECK(pool.stats().updates == 20);
  CHECK_THROWS_AS(pool.update([](Layers& net) { net.load_state_dict({}); }), InvalidArgument);
  CHECK(values(pool.submit(full({1, 1}, 1, {.dtype = DType::f64})).get()) == Doubles(6, 20));
}

TEST_CASE("threads of a pool have their name, cores and start, and a pool without them is an error") {
  struct Where : Module<Where> {
    std::shared_ptr<std::vector<std::string>> names = std::make_shared<std::vector<std::string>>(2);
    Tensor forward(const Tensor& x) const {
      char name[16] = {};
      pthread_getname_np(pthread_self(), name, sizeof name);
      cpu_set_t set;
      CPU_ZERO(&set);
      sched_getaffinity(0, sizeof set, &set);
      (*names)[0] = name;
      (*names)[1] = std::to_string(CPU_COUNT(&set));
      return x.clone();
    }
  } where;
  int core = 0;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  REQUIRE(sched_getaffinity(0, sizeof mine, &mine) == 0);
  while (!CPU_ISSET(static_cast<std::size_t>(core), &mine)) ++core;
  std::atomic<int> started{0};
  {
    ReplicaPool pool(where,
                     {.devices = first_devices(1),
                      .threads = {.name = "classifier", .cpus = {{core}}, .nice = 1, .started = [&](int replica) {
                                    started += replica + 1;
                                  }}});
    pool.submit(row(1)).get();
    CHECK((*where.names)[0] == "classifi-0");
    CHECK((*where.names)[1] == "1");
    CHECK(started == 1);
  }
  const auto pool_of = [&](const ReplicaPoolOptions& options) { ReplicaPool pool(where, options); };
  const auto devices = first_devices(1);
  CHECK_THAT(
      message_of<InvalidArgument>([&] { pool_of({.devices = devices, .threads = {.cpus = {{CPU_SETSIZE - 1}}}}); }),
      Contains("cores that this process may use") && Contains(std::to_string(CPU_SETSIZE - 1)));
  CHECK_THAT(message_of<InvalidArgument>([&] { pool_of({.devices = devices, .threads = {.cpus = {{-1}}}}); }),
             Contains("got -1"));
  CHECK_THAT(message_of<InvalidArgument>([&] {
               pool_of({.devices = devices, .threads = {.started = [](int) { throw std::runtime_error("no"); }}});
             }),
             Contains("no"));
  CHECK_THROWS_AS(pool_of({.devices = {}}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = {device_at(99)}}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = devices, .max_batch_samples = 0}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = devices, .max_queued = 0}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = devices, .max_delay = -1us}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = devices, .timeout = 0ms}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = devices, .padding = Padding{.dim = 0}}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = devices, .padding = Padding{.sizes = {8, 4}}}), InvalidArgument);
  CHECK_THROWS_AS(pool_of({.devices = devices, .clock = nullptr}), InvalidArgument);
}
