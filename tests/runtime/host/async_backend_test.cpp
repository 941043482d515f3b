// What an asynchronous backend promises (docs/backend-contract.md), asked of the host modes async and strict.
#include "lockstep/runtime/host/async_backend.h"

#include <pthread.h>

#include <csignal>
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>

#include "runtime/backend_streams.h"
#include "runtime/text.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace backend_streams;
using support::device_at;
using support::device_name;

TEST_CASE("a stream runs its work in order") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    std::vector<int> seen;
    for (int i = 0; i < 200; ++i) stream.enqueue([&seen, i] { seen.push_back(i); });
    stream.synchronize();
    REQUIRE(seen.size() == 200);
    for (int i = 0; i < 200; ++i) CHECK(seen[static_cast<std::size_t>(i)] == i);
  }
}

TEST_CASE("enqueuing does not wait for the work, and streams run side by side") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream first(*backend, 0), second(*backend, 0), elsewhere(*backend, 1);
    Gate gate;
    first.enqueue(gate.waits());
    CHECK_FALSE(first.query());
    // Each waits for the other: only streams that run at the same time get through.
    Gate here, there;
    second.enqueue([&, wait = there.waits()] { here.open(), wait(); });
    elsewhere.enqueue([&, wait = here.waits()] { there.open(), wait(); });
    second.synchronize();
    elsewhere.synchronize();
    CHECK_FALSE(first.query());
    gate.open();
    first.synchronize();
    CHECK(first.query());
  }
}

TEST_CASE("an event marks the work before it and no more") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    TestEvent event(*backend);
    Gate before, after;
    bool done = false;
    stream.enqueue([&, wait = before.waits()] { wait(), done = true; });
    stream.record(event);
    stream.enqueue(after.waits());
    CHECK_FALSE(event.query());
    before.open();
    CHECK(event.wait());
    CHECK(event.query());
    CHECK(done);
    CHECK_FALSE(stream.query());
  }
}

TEST_CASE("a stream that waits for an event runs after what it marks") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream first(*backend, 0), second(*backend, 1);
    TestEvent event(*backend);
    Gate gate;
    int value = 0, seen = -1;
    first.enqueue([&, wait = gate.waits()] { wait(), value = 7; });
    first.record(event);
    second.wait(event);
    second.enqueue([&] { seen = value; });
    CHECK_FALSE(second.query());
    gate.open();
    second.synchronize();
    CHECK(seen == 7);
  }
}

TEST_CASE("waiting for an event that was never recorded holds nobody up") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    TestEvent event(*backend);
    stream.wait(event);
    stream.enqueue([] {});
    CHECK(event.query());
    CHECK(event.wait(Deadline::after(Milliseconds(0))));
    stream.synchronize();
  }
}

TEST_CASE("recording again does not disturb who waits for the record before") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream first(*backend, 0), second(*backend, 1);
    TestEvent event(*backend);
    Gate early, late;
    first.enqueue(early.waits());
    first.record(event);
    second.wait(event);  // for the first record
    first.enqueue(late.waits());
    first.record(event);
    early.open();
    second.synchronize();  // never ends if it waits for the second
    CHECK_FALSE(event.query());
    late.open();
    CHECK(event.wait());
  }
}

TEST_CASE("an event can go while streams wait for it") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream first(*backend, 0), second(*backend, 1);
    Gate gate;
    bool done = false, seen = false;
    first.enqueue([&, wait = gate.waits()] { wait(), done = true; });
    second.after(first);
    second.enqueue([&] { seen = done; });
    gate.open();
    second.synchronize();
    CHECK(seen);
  }
}

TEST_CASE("a host wait ends at its deadline, and later with the work") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    TestEvent event(*backend);
    Gate gate;
    stream.enqueue(gate.waits());
    stream.record(event);
    CHECK_FALSE(event.wait(Deadline::after(Milliseconds(1))));
    gate.open();
    CHECK(event.wait());
  }
}

TEST_CASE("a stream does not wait for another for ever") {
  detail::AsyncBackend* backend =
      new detail::AsyncBackend({{.memory_bytes = 4096, .multiprocessors = 1}}, {}, {.timeout = Milliseconds(1)});
  Backends::keep(backend);
  TestStream first(*backend, 0), second(*backend, 0);
  Gate gate;
  first.enqueue(gate.waits());
  second.after(first);
  CHECK(message_of<TimeoutError>([&] { second.synchronize(); }) ==
        "[stream] expected the work that " + device_name(0) + " waits for to finish within 1 ms, got nothing");
}

TEST_CASE("a stream that is destroyed finishes its work") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestEvent event(*backend);
    Gate gate;
    int steps = 0;
    {
      TestStream stream(*backend, 0);
      stream.enqueue(gate.waits());
      for (int i = 0; i < 10; ++i) stream.enqueue([&] { ++steps; });
      stream.record(event);
    }
    gate.open();
    CHECK(event.wait());
    CHECK(steps == 10);
  }
}

TEST_CASE("many threads may enqueue on one stream") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    int count = 0;  // only the stream touches it
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; ++k) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) stream.enqueue([&] { ++count; });
      });
    }
    for (std::thread& thread : threads) thread.join();
    stream.synchronize();
    CHECK(count == 400);
  }
}

TEST_CASE("the threads of streams leave signals to the program") {
  Backends backend({.mode = HostMode::async});
  TestStream stream(*backend, 0);
  sigset_t mask;
  stream.enqueue([&] { pthread_sigmask(SIG_SETMASK, nullptr, &mask); });
  stream.synchronize();
  for (const int sent : {SIGINT, SIGTERM, SIGUSR1}) CHECK(sigismember(&mask, sent) == 1);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) CHECK(sigismember(&mask, own) == 0);  // its faults
}

TEST_CASE("copies and fills are work of their stream") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    Gate gate;
    std::vector<unsigned char> source(100'000), destination(source.size());
    stream.enqueue(gate.waits());
    backend->fill_bytes(source.data(), 3, source.size(), stream.handle());
    backend->copy({destination.data(), device_at(0), source.data(), Device::cpu(), source.size()}, stream.handle());
    CHECK(source[0] == 0);
    gate.open();
    stream.synchronize();
    CHECK(source[99'999] == 3);
    CHECK(destination == source);
    // Pieces of one memory may overlap.
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7);
    const std::vector<unsigned char> before = source;
    backend->copy({source.data() + 1, device_at(0), source.data(), device_at(0), source.size() - 1}, stream.handle());
    stream.synchronize();
    CHECK(std::equal(source.begin() + 1, source.end(), before.begin()));
    CHECK_NOTHROW(backend->copy({nullptr, device_at(0), nullptr, device_at(0), 0}, stream.handle()));
    CHECK_NOTHROW(backend->fill_bytes(nullptr, 0, 0, stream.handle()));
  }
}

TEST_CASE("timing events measure, at least as long as the link takes") {
  support::needs_devices(3);
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode,
                      .bandwidth_bytes_per_second = 10'000'000,
                      .latency_microseconds = 2000,
                      .links = {{Device::cpu(), device_at(1), 0, 0}}});
    TestStream stream(*backend, 0);
    TestEvent begin(*backend, true), end(*backend, true), plain(*backend);
    std::vector<unsigned char> source(100'000), destination(source.size());
    const auto copy = [&](Device from, Device to, std::size_t bytes) {
      backend->copy({destination.data(), to, source.data(), from, bytes}, stream.handle());
    };
    CHECK_THROWS_AS(backend->elapsed_milliseconds(begin.handle(), end.handle()), InvalidArgument);
    stream.record(begin);
    copy(device_at(1), device_at(0), source.size());
    stream.record(end);
    stream.record(plain);
    stream.synchronize();
    CHECK(backend->elapsed_milliseconds(begin.handle(), end.handle()) >= 12);
    CHECK(backend->elapsed_milliseconds(end.handle(), begin.handle()) <= -12);
    CHECK_THROWS_AS(backend->elapsed_milliseconds(begin.handle(), plain.handle()), InvalidArgument);
  }
  CHECK_THROWS_AS(
      detail::make_host_backend({.devices = 2, .mode = HostMode::async, .links = {{device_at(2), Device::cpu()}}}),
      InvalidArgument);
}

TEST_CASE("copies over one link take turns, other links do not mind") {
  support::needs_devices(2);
  // Times far apart: nothing sleeps here.
  constexpr std::size_t kHour = 3'600'000'000;
  constexpr std::chrono::hours hour(1);
  detail::HostLinks links({.bandwidth_bytes_per_second = 1'000'000, .latency_microseconds = 500}, 3);
  const auto begin = Clock::now();
  const auto first = links.finish_time(device_at(0), device_at(1), kHour);
  const auto second = links.finish_time(device_at(0), device_at(1), kHour);
  const auto back = links.finish_time(device_at(1), device_at(0), kHour);
  CHECK(first >= begin + hour + std::chrono::microseconds(500));
  CHECK(second >= first + hour);
  CHECK(back < second);
  CHECK(links.finish_time(device_at(1), device_at(1), 1000 * kHour) < first);  // within one memory
}
