#include "lockstep/runtime/thread/rendezvous.h"

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "runtime/text.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

Deadline far() { return Deadline::after(Milliseconds(60'000)); }
Deadline never() { return Deadline::after(Milliseconds::max()); }
Deadline now() { return Deadline::after(Milliseconds(0)); }

// Runs body(0) ... body(count - 1), each in its own thread, and returns what each threw.
std::vector<std::string> in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        messages[static_cast<std::size_t>(i)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return messages;
}

}  // namespace

TEST_CASE("nobody leaves a rendezvous before everybody has come, generation after generation") {
  constexpr int kThreads = 5, kRounds = 200;
  Rendezvous meeting(kThreads);
  int arrived[kThreads] = {};  // plain: the rendezvous orders them, and ThreadSanitizer looks on
  std::atomic<int> behind{0};
  const auto messages = in_threads(kThreads, [&](int me) {
    for (int round = 1; round <= kRounds; ++round) {
      arrived[me] = round;
      meeting.arrive_and_wait(me, far());
      for (const int other : arrived) behind += other < round ? 1 : 0;
      meeting.arrive_and_wait(me, never());
    }
  });
  CHECK(messages == std::vector<std::string>(kThreads));
  CHECK(behind == 0);
  CHECK_FALSE(meeting.aborted());
}

TEST_CASE("one participant waits for nobody") {
  Rendezvous meeting(1);
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(meeting.arrive_and_wait(0, now()));
}

TEST_CASE("an abort wakes everybody and stays") {
  Rendezvous meeting(4);
  std::atomic<int> waiting{0};
  const auto messages = in_threads(4, [&](int me) {
    if (me < 3) {
      ++waiting;
      meeting.arrive_and_wait(me, far());
    } else {
      while (waiting < 3) std::this_thread::yield();
      meeting.abort("rank 3 threw");
      meeting.abort("a later reason");
    }
  });
  CHECK(messages == std::vector<std::string>{"rank 3 threw", "rank 3 threw", "rank 3 threw", ""});
  CHECK(meeting.aborted());
  CHECK(message_of<Error>([&] { meeting.arrive_and_wait(3, far()); }) == "rank 3 threw");
}

TEST_CASE("the deadline names who is missing, and aborts for everybody") {
  Rendezvous meeting(4);
  CHECK(message_of<TimeoutError>([&] { meeting.arrive_and_wait(2, now()); }) ==
        "[Rendezvous] expected 4 participants before the deadline, got 1; missing: 0, 1, 3");
  CHECK(meeting.aborted());
  CHECK(message_of<Error>([&] { meeting.arrive_and_wait(0, far()); }) ==
        "[Rendezvous] expected 4 participants before the deadline, got 1; missing: 0, 1, 3");
}

TEST_CASE("one deadline releases those who would have waited longer") {
  Rendezvous meeting(3);
  std::atomic<bool> first_waits{false};
  const auto messages = in_threads(2, [&](int me) {
    if (me == 0) {
      first_waits = true;
      meeting.arrive_and_wait(0, far());
    } else {
      while (!first_waits) std::this_thread::yield();
      meeting.arrive_and_wait(1, now());
    }
  });
  CHECK_FALSE(messages[0].empty());
  CHECK(messages[0] == messages[1]);
}

TEST_CASE("a participant comes once per generation, and there is a most") {
  Rendezvous meeting(2);
  CHECK_THROWS_AS(meeting.arrive_and_wait(2, now()), InvalidArgument);
  CHECK_THROWS_AS(meeting.arrive_and_wait(-1, now()), InvalidArgument);
  CHECK_THROWS_AS(Rendezvous(0), InvalidArgument);
  CHECK_THROWS_AS(Rendezvous(257), InvalidArgument);

  // Of two that call themselves 0, the second to come is refused.
  std::atomic<int> refused{0};
  const auto messages = in_threads(2, [&](int) {
    try {
      meeting.arrive_and_wait(0, far());
    } catch (const InvalidArgument& error) {
      if (std::string(error.what()) == "[Rendezvous] expected each participant once, got 0 a second time") ++refused;
      meeting.abort("over");
    }
  });
  CHECK(refused == 1);
  CHECK(messages[0] + messages[1] == "over");
}

TEST_CASE("a rendezvous of many keeps them apart") {
  Rendezvous meeting(130);
  const std::string text = message_of<TimeoutError>([&] { meeting.arrive_and_wait(128, now()); });
  CHECK(text.find("missing: 0, 1, ") != text.npos);
  CHECK(text.find("127, 129") != text.npos);
}
