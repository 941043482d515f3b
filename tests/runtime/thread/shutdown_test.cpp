// shutdown(), in a process of its own: this program again, with a case that is hidden otherwise.
#include "lockstep/runtime/thread/shutdown.h"

#include <atomic>
#include <string>
#include <thread>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "support/catch.h"
#include "support/hidden_case.h"

using namespace lockstep;

TEST_CASE("what is shut down in a process of its own", "[.shutdown]") {
  std::atomic<int> done{0};
  Stream stream(Device::host(0));
  DeviceThread& thread = device_thread(Device::host(1));
  const auto work = [&] {
    std::this_thread::sleep_for(Milliseconds(50));
    ++done;
  };
  stream.enqueue(work);
  thread.post(work);
  std::atomic<bool> refused{false};  // from inside a replica
  thread.post([&] {
    try {
      shutdown();
    } catch (const Error&) {
      refused = true;
    }
  });
  shutdown(Milliseconds(100'000));
  CHECK(done == 2);
  CHECK(refused);
  shutdown();
  CHECK_THROWS_WITH(thread.post([] {}), Catch::Matchers::Contains("shutdown()"));
  if (stream.synchronous()) {
    CHECK_NOTHROW(stream.enqueue(work));
  } else {
    CHECK_THROWS_WITH(stream.enqueue(work), Catch::Matchers::Contains("shutdown()"));
  }
}

TEST_CASE("what does not end is named by shutdown", "[.shutdown]") {
  static std::atomic<bool> let_go{false};
  device_thread(Device::host(1)).post([] {
    while (!let_go) std::this_thread::yield();
  });
  CHECK_THROWS_WITH(shutdown(Milliseconds(20)), Catch::Matchers::Contains("a replica on host:1"));
  let_go = true;
}

TEST_CASE("what has ended with a time-out is not named by shutdown", "[.shutdown]") {
  Stream stream(Device::host(0)), other(Device::host(0));
  for (const Stream& each : {stream, other}) each.enqueue([] { throw TimeoutError("some wait of its own"); });
  std::atomic<bool> done{false};
  other.enqueue([] { throw Error("told as well"); });
  Stream last(Device::host(0));
  last.enqueue([&] {
    std::this_thread::sleep_for(Milliseconds(50));
    done = true;
  });
  CHECK_NOTHROW(shutdown(Milliseconds(100'000)));
  CHECK(done);
}

TEST_CASE("device threads that give each other work are at rest when there is none left", "[.shutdown]") {
  constexpr int kPasses = 20'000;
  static std::atomic<int> passes{0};
  struct Ball {
    static void pass() {
      if (++passes < kPasses) device_thread(Device::host(passes % 2)).post(pass);
    }
  };
  Ball::pass();
  shutdown(Milliseconds(100'000));
  CHECK(passes == kPasses);
}

namespace {
bool run_case(const std::string& name, const std::string& mode) {
  return test::run_hidden_case(name, "LOCKSTEP_HOST_MODE=" + mode);
}
}  // namespace

TEST_CASE("shutdown lets the work in flight run to its end, and refuses more") {
  for (const char* mode : {"inline", "async", "strict"})
    CHECK(run_case("what is shut down in a process of its own", mode));
  CHECK(run_case("what does not end is named by shutdown", "inline"));
  for (const char* mode : {"async", "strict"})  // inline, an error is the enqueuing call's
    CHECK(run_case("what has ended with a time-out is not named by shutdown", mode));
  CHECK(run_case("device threads that give each other work are at rest when there is none left", "inline"));
}
