// ReplicaPool: batches, queue, deadlines, cancelling. What happens when replicas fail is in replica_pool_failures_test.
#include <future>

#include "parallel/serving/served.h"

using namespace parallel_test;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

TEST_CASE("a pool answers each request as the module does, from many threads and on several devices") {
  for (const auto& devices : device_sets()) {
    Mlp net;
    const NoGrad no_grad;
    const Tensor all = noise({40, 3}, 5);
    const Tensor expected = net(all);
    ReplicaPool pool(net, {.devices = devices, .max_batch_samples = 7});
    std::vector<std::thread> clients;
    std::atomic<int> wrong{0};
    for (int client = 0; client < 4; ++client)
      clients.emplace_back([&, client] {
        for (int i = client; i < 40; i += 4) {
          auto answer = pool.submit(all.narrow(0, i, 1));
          wrong += largest_difference(answer.get(), expected.narrow(0, i, 1)) > 1e-12;
        }
      });
    for (std::thread& client : clients) client.join();
    CHECK(wrong == 0);
    const ReplicaPoolStats stats = pool.stats();
    CHECK(stats.submitted == 40);
    CHECK(stats.answered == 40);
    CHECK((stats.queued == 0 && stats.running == 0));
    CHECK(stats.latency_seconds.count == 40);
    CHECK(stats.batch_samples.sum == 40);
    CHECK(stats.replicas.size() == devices.size());
  }
}

TEST_CASE("requests wait for their window, by the pool's clock, and a full batch goes at once") {
  ManualClock clock;
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 4, .max_delay = 100us, .clock = &clock});
  auto a = pool.submit(row(1));
  clock.advance(60us);
  auto b = pool.submit(row(2));
  clock.advance(39us);
  CHECK_FALSE(a.wait(50ms));  // a microsecond is missing
  clock.advance(1us);
  CHECK(values(a.get()) == answer_to(1));
  CHECK(values(b.get()) == answer_to(2));
  CHECK(net.control->batches() == std::vector<std::int64_t>{2});

  std::vector<Answer<Tensor>> four;
  for (int i = 0; i < 4; ++i) four.push_back(pool.submit(row(i)));
  for (int i = 0; i < 4; ++i) CHECK(values(four[static_cast<std::size_t>(i)].get()) == answer_to(i));
  CHECK(net.control->batches() == std::vector<std::int64_t>{2, 4});

  auto large = pool.submit(counting({6, 2}));  // more than a batch may have: alone
  CHECK(large.get().shape() == Shape{6, 2});
  // Of 3 and 2 samples the second does not fit, and has a window of its own.
  auto three = pool.submit(counting({3, 2})), two = pool.submit(counting({2, 2}));
  CHECK(three.get().shape() == Shape{3, 2});
  CHECK_FALSE(two.wait(50ms));
  clock.advance(100us);
  CHECK(two.get().shape() == Shape{2, 2});
  CHECK(net.control->batches() == std::vector<std::int64_t>{2, 4, 6, 3, 2});
  CHECK(pool.stats().queue_seconds.count == 9);
  CHECK(pool.stats().queue_seconds.sum == Approx(100e-6 + 40e-6 + 100e-6));
}

TEST_CASE("what a busy replica finds waiting goes together, by size and dtype, by priority, then by age") {
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 3});
  net.control->hold();
  auto first = pool.submit(row(0));
  net.control->await_held(1);
  std::vector<Answer<Tensor>> answers;
  for (int i = 1; i <= 4; ++i) answers.push_back(pool.submit(row(i)));
  auto wide = pool.submit(tensor({1, 1, 1, 1}, {2, 2}), {.priority = 2});
  auto urgent = pool.submit(row(50), {.priority = 1});
  auto single = pool.submit(row(60).to(DType::f32), {.priority = 3});
  auto empty_one = pool.submit(counting({0, 2}), {.priority = -1});
  net.control->hold(false);
  CHECK(values(first.get()) == answer_to(0));
  for (int i = 1; i <= 4; ++i) CHECK(values(answers[static_cast<std::size_t>(i) - 1].get()) == answer_to(i));
  CHECK(wide.get().shape() == Shape{2, 2});
  CHECK(values(urgent.get()) == answer_to(50));
  CHECK(single.get().to_vector<float>()[1] == 610);
  CHECK(empty_one.get().shape() == Shape{0, 2});
  // The f32 row alone; `wide` (which has room for the urgent row); 1, 2, 3; 4 and the empty one.
  CHECK(net.control->batches() == std::vector<std::int64_t>{1, 1, 3, 3, 1});
}

TEST_CASE("among equals the one that came first is computed first, whatever its sizes and however fine the clock") {
  ManualClock clock;
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1, .clock = &clock});
  const auto wide = [] { return counting({1, 3}); };  // Second refuses it; what counts is the order
  for (const bool wide_first : {true, false, true}) {
    net.control->hold();
    auto running = pool.submit(row(0));
    net.control->await_held(1);
    auto a = pool.submit(wide_first ? wide() : row(1)), b = pool.submit(wide_first ? row(1) : wide());
    net.control->hold(false);
    CHECK(values(running.get()) == answer_to(0));
    CHECK(a.wait(30s));
    CHECK(b.wait(30s));
    const std::size_t last = net.control->shapes.size() - 1;
    CHECK((net.control->shapes[last - 1][1] == 3) == wide_first);
    CHECK((net.control->shapes[last][1] == 3) == !wide_first);
  }
}

TEST_CASE("a full queue makes submitters wait, refuses them, or drops the oldest request of low priority") {
  Served net;
  const auto busy = [&](auto& pool) {
    net.control->hold();
    auto running = pool.submit(row(0));
    net.control->await_held(1);
    return running;
  };
  SECTION("refuse") {
    ReplicaPool pool(net, {.devices = first_devices(1), .max_queued = 2, .when_full = WhenFull::refuse});
    auto running = busy(pool);
    auto a = pool.submit(row(1)), b = pool.submit(row(2));
    CHECK_THAT(message_of<Refused>([&] { pool.submit(row(3)); }), Contains("fewer than 2") && Contains("got 2"));
    CHECK(pool.stats().refused == 1);
    CHECK(pool.stats().submitted == 3);
    CHECK(a.cancel());  // makes room
    auto c = pool.submit(row(3));
    net.control->hold(false);
    CHECK(values(b.get()) == answer_to(2));
    CHECK(values(c.get()) == answer_to(3));
  }
  SECTION("drop the oldest") {
    ReplicaPool pool(net, {.devices = first_devices(1), .max_queued = 2, .when_full = WhenFull::drop_oldest});
    auto running = busy(pool);
    auto a = pool.submit(row(1), {.priority = 1}), b = pool.submit(row(2)), c = pool.submit(row(3));
    CHECK_THAT(message_of<Refused>([&] { b.get(); }), Contains("dropped for a later request"));
    CHECK_THROWS_AS(pool.submit(row(4), {.priority = -1}), Refused);  // all that wait are above it
    auto d = pool.submit(row(4), {.priority = 1});                    // c goes, which is of lower priority than a
    CHECK_THROWS_AS(c.get(), Refused);
    auto e = pool.submit(row(5), {.priority = 1});
    CHECK_THROWS_AS(a.get(), Refused);
    net.control->hold(false);
    CHECK(values(d.get()) == answer_to(4));
    CHECK(values(e.get()) == answer_to(5));
    CHECK(pool.stats().dropped == 3);
  }
  SECTION("wait for room") {
    ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1, .max_queued = 1});
    auto running = busy(pool);
    auto a = pool.submit(row(1));
    CHECK_THROWS_AS(pool.submit(row(9), {.timeout = 20ms}), TimeoutError);
    auto waiting = std::async(std::launch::async, [&] { return values(pool.submit(row(2)).get()); });
    await(pool, [](const ReplicaPoolStats& stats) { return stats.waiting == 1; });
    CHECK(pool.stats().submitted == 2);  // who waits for room is not counted among those that run
    CHECK(pool.stats().running == 1);
    CHECK(a.cancel());  // makes room, although the replica takes nothing
    await(pool, [](const ReplicaPoolStats& stats) { return stats.waiting == 0; });
    net.control->hold(false);
    CHECK(waiting.get() == answer_to(2));
  }
  SECTION("those that wait for room are woken when the pool closes") {
    ReplicaPool pool(net, {.devices = first_devices(1), .max_queued = 1});
    auto running = busy(pool);
    auto a = pool.submit(row(1));
    auto waiting = std::async(std::launch::async, [&] { pool.submit(row(2)); });
    await(pool, [](const ReplicaPoolStats& stats) { return stats.waiting == 1; });
    pool.close();
    CHECK_THROWS_AS(waiting.get(), Refused);
    CHECK_THAT(message_of<Cancelled>([&] { a.get(); }), Contains("closed before a replica had the request"));
    CHECK_THROWS_AS(pool.submit(row(3)), Refused);
    net.control->hold(false);
    CHECK(values(running.get()) == answer_to(0));
  }
}

TEST_CASE("a deadline ends a request that waits and one that is computed, by the pool's clock") {
  ManualClock clock;
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1, .clock = &clock});
  net.control->hold();
  auto running = pool.submit(row(1), {.timeout = 20ms});
  net.control->await_held(1);
  auto queued = pool.submit(row(2), {.timeout = 10ms}), patient = pool.submit(row(3));
  clock.advance(9ms);
  CHECK_FALSE(queued.wait(20ms));
  clock.advance(1ms);
  CHECK_THAT(message_of<TimeoutError>([&] { queued.get(); }), Contains("within 10 ms"));
  CHECK_FALSE(running.wait(20ms));
  clock.advance(10ms);
  CHECK_THROWS_AS(running.get(), TimeoutError);
  CHECK(pool.stats().late == 2);
  CHECK(pool.stats().running == 0);
  CHECK(pool.stats().queued == 1);
  net.control->hold(false);
  CHECK(values(patient.get()) == answer_to(3));
  CHECK(net.control->second_layers == 1);  // nobody waited for the first any more: it stopped between its modules
  CHECK_THROWS_AS(pool.submit(row(1), {.timeout = 0ms}), InvalidArgument);
}

TEST_CASE("a deadline is noticed although nothing else happens, and inputs are let go when a request ends") {
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1});
  net.control->hold();
  const Tensor used = row(1), waited = row(2);
  auto running = pool.submit(used);
  net.control->await_held(1);
  auto queued = pool.submit(waited, {.timeout = 20ms});
  CHECK(queued.wait(30s));
  CHECK_THROWS_AS(pool.submit(row(3), {.timeout = 20ms}).get(), TimeoutError);
  CHECK(waited.sole_owner());
  CHECK_FALSE(used.sole_owner());
  net.control->hold(false);
  CHECK(running.wait(30s));
  while (!used.sole_owner()) std::this_thread::sleep_for(1ms);  // by the replica, behind its answers
  CHECK(values(running.get()) == answer_to(1));
}

TEST_CASE("cancelling ends a request that waits and one that is computed, and stops a batch that nobody waits for") {
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 2});
  net.control->hold();
  auto running = pool.submit(row(1));
  net.control->await_held(1);
  auto a = pool.submit(row(2)), b = pool.submit(row(3)), c = pool.submit(row(4));
  CHECK(b.cancel());
  CHECK_FALSE(b.cancel());
  CHECK_THAT(message_of<Cancelled>([&] { b.get(); }), Contains("cancelled by its submitter"));
  const Canceller canceller = running.canceller();
  std::thread([&] { canceller(); }).join();
  CHECK_FALSE(canceller());
  CHECK(running.ready());
  CHECK_THROWS_AS(running.get(), Cancelled);
  CHECK_FALSE(running.valid());
  CHECK_THAT(message_of<Error>([&] { running.get(); }), Contains("fetched"));
  CHECK_FALSE(running.cancel());
  net.control->hold(false);
  CHECK(values(a.get()) == answer_to(2));
  CHECK(values(c.get()) == answer_to(4));
  CHECK_FALSE(c.cancel());
  CHECK(net.control->second_layers == 1);
  CHECK(net.control->batches() == std::vector<std::int64_t>{1, 2});
  CHECK(pool.stats().cancelled == 2);
}

TEST_CASE("a bad request fails alone: its neighbours have their answers") {
  Served net;
  ReplicaPool pool(net, {.devices = first_devices(1)});
  net.control->hold();
  auto first = pool.submit(row(0));
  net.control->await_held(1);
  auto a = pool.submit(row(1)), bad = pool.submit(row(-2)), b = pool.submit(row(3));
  net.control->hold(false);
  CHECK(values(a.get()) == answer_to(1));
  CHECK_THAT(message_of<std::runtime_error>([&] { bad.get(); }), Contains("begins with -2"));
  CHECK(values(b.get()) == answer_to(3));
  const ReplicaPoolStats stats = pool.stats();
  CHECK((stats.failed == 1 && stats.split == 1 && stats.answered == 3));
  CHECK(net.control->batches() == std::vector<std::int64_t>{1, 3, 1, 1, 1});
  CHECK_THAT(message_of<InvalidArgument>([&] { pool.submit(tensor({1}, {})); }), Contains("samples in dimension 0"));
}

TEST_CASE("drain answers what was taken and takes no more; the end of a pool cancels what waits") {
  Served net;
  std::vector<Answer<Tensor>> answers;
  {
    ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1, .max_delay = 1h});
    for (int i = 0; i < 3; ++i) answers.push_back(pool.submit(row(i)));
    CHECK(pool.drain());
    CHECK(pool.closed());
    CHECK_THAT(message_of<Refused>([&] { pool.submit(row(1)); }), Contains("closed or drains"));
    for (int i = 0; i < 3; ++i) CHECK(values(answers[static_cast<std::size_t>(i)].get()) == answer_to(i));
  }
  answers.clear();
  {
    ReplicaPool pool(net, {.devices = first_devices(1), .max_delay = 1h});
    answers.push_back(pool.submit(row(5)));  // its window is an hour
    CHECK(pool.drain());                     // which is not kept any more
    CHECK(values(answers[0].get()) == answer_to(5));
  }
  answers.clear();
  {
    ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1});
    net.control->hold();
    answers.push_back(pool.submit(row(1)));
    net.control->await_held(1);
    for (int i = 2; i < 4; ++i) answers.push_back(pool.submit(row(i)));
    CHECK_FALSE(pool.drain(20ms));
    std::thread release([&] {
      await(pool, [](const ReplicaPoolStats& stats) { return stats.cancelled == 2; });
      net.control->hold(false);
    });
    pool.close();
    release.join();
  }
  CHECK(values(answers[0].get()) == answer_to(1));  // the pool is gone
  CHECK_THROWS_AS(answers[1].get(), Cancelled);
  CHECK_FALSE(answers[2].cancel());
  CHECK_THROWS_AS(answers[2].get(), Cancelled);
}

TEST_CASE("waiting for a pool in one of its threads is an error at once") {
  ReplicaPool pool(Linear(3, 2), {.devices = {Device::host(0)}, .max_batch_samples = 1});
  std::string drained, warmed;
  pool.submit(ones({1, 3}), {}, [&](const Answer<Tensor>&) {
    drained = support::message_of<Error>([&] { pool.drain(); });
    warmed = support::message_of<Error>([&] { pool.warm_up(std::tuple(ones({1, 3}))); });
  });
  REQUIRE(pool.submit(ones({1, 3}), {.priority = -1}).get().shape() == Shape{1, 2});  // it still takes requests
  CHECK_THAT(drained, Contains("expected another thread than the pool's to wait for it, got one of them"));
  CHECK(warmed == drained);

  pool.close();
  CHECK_THROWS_AS(pool.warm_up(std::tuple(ones({1, 3}))), Refused);
  CHECK(pool.stats().refused == 0);  // which is no request
  CHECK_THROWS_AS(pool.submit(ones({1, 3})), Refused);
  CHECK(pool.stats().refused == 1);
}

TEST_CASE("callbacks hear of every end, may submit, and are logged when they throw") {
  Served net;
  const CapturedLog log;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_batch_samples = 1, .max_queued = 1});
  std::promise<Doubles> done;
  pool.submit(row(1), {},
              [&](Answer<Tensor> answer) { done.set_value(answer.ready() ? values(answer.get()) : Doubles()); });
  CHECK(done.get_future().get() == answer_to(1));

  // Where the queue is full, one that waited for room in a replica's thread would wait for ever.
  net.control->hold();
  std::promise<std::string> refused;
  pool.submit(row(2), {}, [&](Answer<Tensor>) {
    refused.set_value(message_of<Refused>([&] { pool.submit(row(4)); }));
    throw std::runtime_error("in the callback");
  });
  net.control->await_held(1);
  auto queued = pool.submit(row(3));
  net.control->hold(false);
  CHECK_THAT(refused.get_future().get(), Contains("fewer than 1"));
  CHECK(values(queued.get()) == answer_to(3));
  CHECK(pool.drain());
  REQUIRE(log.messages.size() == 1);
  CHECK_THAT(log.messages[0], Contains("a callback threw") && Contains("in the callback"));

  // A callback may compute, although nobody waits for its batch any more.
  Mlp mlp;
  ReplicaPool encoder(mlp, {.devices = {Device::cpu()}});
  std::promise<Doubles> decoded;
  encoder.submit(noise({1, 3}, 1), {}, [&](Answer<Tensor> answer) {
    try {
      const NoGrad no_grad;
      decoded.set_value(values(mlp(noise({1, 3}, 2)) + answer.get() * 0.0));
    } catch (...) {
      decoded.set_exception(std::current_exception());
    }
  });
  {
    const NoGrad no_grad;
    CHECK(decoded.get_future().get() == values(mlp(noise({1, 3}, 2))));
  }

  // One that hears of its deadline must not wait for room either: it is in the thread that ends the others.
  {
    ManualClock clock;
    Served held;
    ReplicaPool full(held, {.devices = first_devices(1), .max_batch_samples = 1, .max_queued = 1, .clock = &clock});
    held.control->hold();
    std::promise<std::string> again;
    full.submit(row(1), {.timeout = 50ms},
                [&](Answer<Tensor>) { again.set_value(message_of<Refused>([&] { full.submit(row(3)); })); });
    held.control->await_held(1);
    auto waits = full.submit(row(2));
    clock.advance(50ms);
    CHECK_THAT(again.get_future().get(), Contains("fewer than 1"));
    held.control->hold(false);
    CHECK(values(waits.get()) == answer_to(2));
  }

  std::promise<std::string> cancelled;
  ReplicaPool slow(net, {.devices = first_devices(1), .max_delay = 1h});
  slow.submit(row(2), {},
              [&](Answer<Tensor> answer) { cancelled.set_value(message_of<Cancelled>([&] { answer.get(); })); });
  slow.close();
  CHECK_THAT(cancelled.get_future().get(), Contains("closed"));
}
