#include "lockstep/runtime/thread/device_thread.h"

#include <pthread.h>

#include <csignal>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "runtime/text.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;
using support::device_name;

namespace {

Deadline far() { return Deadline::after(Milliseconds(60'000)); }
Deadline now() { return Deadline::after(Milliseconds(0)); }

// Runs `body` on the thread and waits for it.
void run_on(DeviceThread& thread, UniqueFunction body) {
  auto join = std::make_shared<Join>(1);
  thread.post([join, task = std::move(body)]() mutable {
    task();
    join->done();
  });
  REQUIRE(join->wait(far()));
}

}  // namespace

TEST_CASE("a device thread runs tasks in the order they were posted") {
  std::vector<int> seen;  // plain: the thread is one, and ThreadSanitizer looks on
  auto join = std::make_shared<Join>(1000);
  for (int i = 0; i < 1000; ++i) {
    device_thread(device_at(0)).post([&seen, join, i] {
      seen.push_back(i);
      join->done();
    });
  }
  REQUIRE(join->wait(far()));
  REQUIRE(seen.size() == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(seen[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("threads are found by device and know themselves") {
  support::needs_devices(3);
  DeviceThread& worker = device_thread(device_at(1));
  DeviceThread& backward = backward_thread(device_at(1));
  CHECK(&worker == &device_thread(device_at(1)));
  CHECK(&worker != &backward);
  CHECK(&worker != &device_thread(device_at(2)));
  CHECK(worker.device() == device_at(1));
  CHECK_THROWS_AS(device_thread(device_at(8)), InvalidArgument);

  CHECK(DeviceThread::current() == nullptr);
  DeviceThread* seen = nullptr;
  DeviceThread* seen_backward = nullptr;
  std::thread::id id, backward_id;
  run_on(worker, [&] { seen = DeviceThread::current(), id = std::this_thread::get_id(); });
  run_on(backward, [&] { seen_backward = DeviceThread::current(), backward_id = std::this_thread::get_id(); });
  CHECK(seen == &worker);
  CHECK(seen_backward == &backward);
  CHECK(id != backward_id);
  CHECK(id != std::this_thread::get_id());
}

TEST_CASE("a device thread has a name and leaves signals to the program") {
  char name[32] = "";
  bool blocks_interrupt = false, blocks_alarm = false;
  run_on(device_thread(device_at(3)), [&] {
    pthread_getname_np(pthread_self(), name, sizeof name);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocks_interrupt = sigismember(&mask, SIGINT) == 1;
    blocks_alarm = sigismember(&mask, SIGALRM) == 1;
  });
  CHECK(std::string(name) == "ls-" + device_name(3));
  CHECK(blocks_interrupt);
  CHECK(blocks_alarm);
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  CHECK(sigismember(&mine, SIGINT) == 0);
}

TEST_CASE("many threads may post to one thread") {
  constexpr int kPosters = 6, kTasks = 500;
  DeviceThread& worker = device_thread(device_at(4));
  std::vector<int> seen[kPosters];
  auto join = std::make_shared<Join>(kPosters * kTasks);
  std::vector<std::thread> posters;
  for (int poster = 0; poster < kPosters; ++poster) {
    posters.emplace_back([&, poster] {
      for (int i = 0; i < kTasks; ++i) {
        worker.post([&seen, join, poster, i] {
          seen[poster].push_back(i);
          join->done();
        });
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  REQUIRE(join->wait(far()));
  for (const std::vector<int>& of_one : seen) {
    REQUIRE(of_one.size() == kTasks);
    for (int i = 0; i < kTasks; ++i) CHECK(of_one[static_cast<std::size_t>(i)] == i);
  }
}

TEST_CASE("a thread that slept wakes up for a task") {
  DeviceThread& worker = device_thread(device_at(5));
  int runs = 0;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than it spins
    run_on(worker, [&] { ++runs; });
  }
  CHECK(runs == 20);
}

TEST_CASE("fan-out and join, over and over") {
  long total = 0;
  long parts[4] = {};
  for (int round = 1; round <= 2000; ++round) {
    auto join = std::make_shared<Join>(4);
    for (int device = 0; device < 4; ++device) {
      device_thread(device_at(device)).post([&parts, join, device, round] {
        parts[device] = round;
        join->done();
      });
    }
    REQUIRE(join->wait(far()));
    for (const long part : parts) total += part;
  }
  CHECK(total == 4L * 2000 * 2001 / 2);
}

TEST_CASE("a task may post to its own thread and to others") {
  support::needs_devices(2);
  DeviceThread& worker = device_thread(device_at(0));
  std::string seen;
  auto join = std::make_shared<Join>(3);
  worker.post([&seen, join, &worker] {
    worker.post([&seen, join] { seen += 'b', join->done(); });
    seen += 'a';
    device_thread(device_at(1)).post([join] { join->done(); });
    join->done();
  });
  REQUIRE(join->wait(far()));
  CHECK(seen == "ab");
}

TEST_CASE("what a task holds is released by the thread") {
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  DeviceThread& worker = device_thread(device_at(0));
  worker.post([moved = std::move(held)] { (void)*moved; });
  run_on(worker, [] {});  // the one before is over, and gone
  CHECK(watch.expired());
}

TEST_CASE("what a task holds may post when it goes") {
  DeviceThread& worker = device_thread(device_at(0));
  auto join = std::make_shared<Join>(1);
  auto poster = [&worker, join](int*) { worker.post([join] { join->done(); }); };
  int value = 0;
  worker.post([held = std::unique_ptr<int, decltype(poster)>(&value, poster)] {});
  CHECK(join->wait(far()));
}

TEST_CASE("a queue that grows keeps its order") {
  // A thread of its own (it outlives the test), so that the queue starts small.
  DeviceThread& worker = *new DeviceThread(device_at(0), "test");
  std::vector<int> seen;
  std::vector<int> expected;
  for (int burst = 1; burst < 200; burst = 2 * burst + 3) {
    auto release = std::make_shared<std::latch>(1);
    auto join = std::make_shared<Join>(burst);
    worker.post([release] { release->wait(); });
    for (int i = 0; i < burst; ++i) {
      expected.push_back(i);
      worker.post([&seen, join, i] {
        seen.push_back(i);
        join->done();
      });
    }
    release->count_down();
    REQUIRE(join->wait(far()));
  }
  CHECK(seen == expected);
}

TEST_CASE("a thread whose task outlives its deadline is lost until the task returns") {
  support::needs_devices(8);
  DeviceThread& worker = device_thread(device_at(6));
  auto release = std::make_shared<std::latch>(1);
  auto started = std::make_shared<Join>(1);
  auto finished = std::make_shared<Join>(1);
  auto queued = std::make_shared<Join>(1);
  worker.post([=] {
    started->done();
    release->wait();
    finished->done();
  });
  worker.post([=] { queued->done(); });
  REQUIRE(started->wait(far()));
  CHECK_FALSE(finished->wait(now()));
  CHECK(finished->remaining() == 1);
  CHECK_FALSE(worker.lost());

  worker.abandon("[parallel_apply] expected an answer within 5 ms, got none");
  CHECK(worker.lost());
  CHECK(message_of<DeviceError>([&] { worker.post([] {}); }) ==
        "[parallel_apply] expected an answer within 5 ms, got none (" + device_name(6) + ")");
  // Others go on.
  int other = 0;
  run_on(device_thread(device_at(7)), [&] { other = 1; });
  run_on(backward_thread(device_at(6)), [&] { other += 1; });
  CHECK(other == 2);

  release->count_down();
  REQUIRE(finished->wait(far()));
  REQUIRE(queued->wait(far()));  // what was posted before still runs, and by then the thread is back
  CHECK_FALSE(worker.lost());
  bool works = false;
  run_on(worker, [&] { works = true; });
  CHECK(works);
}

TEST_CASE("abandoning an idle thread does nothing") {
  DeviceThread& worker = device_thread(device_at(6));
  run_on(worker, [] {});
  worker.abandon("too late");
  // The thread may have been on its way out of the task: then it was lost for that moment only.
  const Deadline deadline = far();
  while (worker.lost() && !deadline.passed()) std::this_thread::yield();
  REQUIRE_FALSE(worker.lost());
  bool works = false;
  run_on(worker, [&] { works = true; });
  CHECK(works);
}

TEST_CASE("a join ends when its tasks are done, or at its deadline") {
  Join none(0);
  CHECK(none.wait(now()));
  CHECK(none.remaining() == 0);
  Join two(2);
  CHECK(two.remaining() == 2);
  CHECK_FALSE(two.wait(now()));
  two.done();
  CHECK(two.remaining() == 1);
  CHECK_FALSE(two.wait(Deadline::after(Milliseconds(3))));
  two.done();
  CHECK(two.remaining() == 0);
  CHECK(two.wait(now()));  // what is done is done, also after the deadline
  CHECK_THROWS_AS(Join(-1), InvalidArgument);
}

TEST_CASE("a sleeping join is woken by the last task") {
  for (int round = 0; round < 20; ++round) {
    Join join(2);
    std::thread late([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300));  // longer than the join spins
      join.done();
      join.done();
    });
    CHECK(join.wait(round % 2 ? far() : Deadline::after(Milliseconds::max())));
    late.join();
  }
}
