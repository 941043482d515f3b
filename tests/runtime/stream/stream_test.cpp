#include "lockstep/runtime/stream/stream.h"

#include <atomic>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;
using support::device_type;

TEST_CASE("a synchronous stream has done its work when the call returns") {
  Stream stream(Device::cpu());
  CHECK(stream.device() == Device::cpu());
  CHECK(stream.synchronous());
  int steps = 0;
  stream.enqueue([&] { ++steps; });
  CHECK(steps == 1);
  CHECK(stream.query());
}

TEST_CASE("copies of a handle are the same stream, and the last one gives it back") {
  const Device device = device_at(3);
  Stream first(device), none;
  CHECK_FALSE(none);
  CHECK(first);
  CHECK_FALSE(first == none);
  Stream second = first, third;
  third = second;
  Stream fourth = std::move(third);
  CHECK(second == first);
  CHECK(fourth == first);
  third = fourth;
  CHECK(third == first);
  detail::StreamBody& body = first.body();
  // Another is not given out while any of them is there, whichever went first.
  first = Stream(device);
  CHECK_FALSE(first == second);
  second = {};
  third = fourth;
  {
    const Stream other(device);
    CHECK_FALSE(other == fourth);
    const Stream unheld = body;  // what the library refers to it by: does not count
    CHECK(unheld == fourth);
  }
  fourth = std::move(third);
  fourth.enqueue([] {});
  synchronize(fourth);
  fourth = {};
  CHECK_FALSE(Stream(device) == none);
  // In the pool once, not twice.
  Stream a(device), b(device), c(device);
  CHECK_FALSE(a == b);
  CHECK_FALSE(b == c);
  CHECK_FALSE(a == c);
}

TEST_CASE("only a device of a vendor has streams of other libraries") {
  for (const Device device : {Device::cpu(), Device::host(1)})
    CHECK_THROWS_WITH(Stream::foreign(device, nullptr), Catch::Matchers::Contains(to_string(device)));
  CHECK_THROWS_AS(Stream::foreign(Device::host(0), nullptr), NotSupported);
  CHECK_THROWS_AS(Stream::foreign(device_at(8), nullptr), InvalidArgument);
}

TEST_CASE("an event that was never recorded holds nobody up") {
  Event event;
  CHECK_FALSE(event.recorded());
  CHECK(event.query());
  wait(event, Deadline::after(Milliseconds(0)));
  for (const Device device : {device_at(0), Device::cuda(0)}) {
    Stream stream(device);
    stream.wait(event);
    CHECK(stream.query());
  }
}

TEST_CASE("each device has one default stream and one copy stream") {
  for (const Device device : all_devices()) {
    CHECK(default_stream(device) == default_stream(device));
    CHECK(default_stream(device).device() == device);
    CHECK(copy_stream(device) == copy_stream(device));
    CHECK(copy_stream(device) != default_stream(device));
    CHECK(copy_stream(device).device() == device);
    CHECK(current_stream(device) == default_stream(device));
  }
  CHECK_THROWS_AS(default_stream(device_at(8)), InvalidArgument);
  CHECK_THROWS_AS(current_stream(device_at(8)), InvalidArgument);
  CHECK_THROWS_AS(Stream(Device::cuda(-1)), InvalidArgument);
}

TEST_CASE("a scope makes a stream current for its device and its thread") {
  support::needs_devices(3);
  const Device device = device_at(1), other = device_at(2);
  Stream outer(device), inner(device), elsewhere(other);
  {
    StreamScope outer_scope(outer);
    CHECK(current_stream(device) == outer);
    {
      StreamScope inner_scope(inner);
      StreamScope elsewhere_scope(elsewhere);
      CHECK(current_stream(device) == inner);
      CHECK(current_stream(other) == elsewhere);
      CHECK(current_stream(Device::cpu()) == default_stream(Device::cpu()));
      Stream seen;
      std::thread([&] { seen = current_stream(device); }).join();
      CHECK(seen == default_stream(device));
    }
    CHECK(current_stream(device) == outer);
    CHECK(current_stream(other) == default_stream(other));
  }
  CHECK(current_stream(device) == default_stream(device));
}

TEST_CASE("default streams are made once, also by many threads") {
  const Device device = device_at(6);
  Stream seen[8];
  std::vector<std::thread> threads;
  for (Stream& slot : seen) threads.emplace_back([&slot, device] { slot = copy_stream(device); });
  for (std::thread& thread : threads) thread.join();
  for (const Stream& stream : seen) CHECK(stream == seen[0]);
}

TEST_CASE("a stream that comes back has the priority that is asked for, as those for its copies") {
  const Device device = device_at(4);
  for (int round = 0; round < 3; ++round) {
    std::vector<Stream> normal, high;
    for (int i = 0; i < 4; ++i) {
      normal.emplace_back(device);
      high.emplace_back(device, StreamPriority::high);
      CHECK(normal.back().priority() == StreamPriority::normal);
      CHECK(high.back().priority() == StreamPriority::high);
      CHECK(detail::copies_of(high.back()).priority() == StreamPriority::high);
      CHECK(detail::copies_of(high.back(), detail::CopyDirection::out).priority() == StreamPriority::high);
      CHECK(detail::copies_of(normal.back()).priority() == StreamPriority::normal);
    }
  }
  CHECK(default_stream(device).priority() == StreamPriority::normal);
  CHECK(copy_stream(device).priority() == StreamPriority::normal);
}

TEST_CASE("streams that nobody holds, but a graph still works on, have others than each other for their copies") {
  const Device device = device_at(4);
  std::vector<Stream> gone;
  {
    const std::vector<Stream> held{Stream(device), Stream(device), Stream(device)};
    for (const Stream& stream : held) gone.emplace_back(stream.body());
  }
  for (const Stream& stream : gone)
    for (const auto direction : {detail::CopyDirection::in, detail::CopyDirection::out}) {
      const Stream copies = detail::copies_of(stream, direction);
      for (const Stream& other : gone) CHECK(copies != other);
      CHECK(copies == detail::copies_of(stream, direction));
    }
  synchronize(device);
}

TEST_CASE("waiting for an event is what orders two threads on host devices") {
  support::needs_devices(2);
  // The flag is relaxed: only the event makes the value visible, and ThreadSanitizer knows.
  for (int round = 0; round < 50; ++round) {
    int value = 0, seen = 0;
    std::atomic<bool> recorded{false};
    Event event;
    {
      Stream warm_up(device_at(0));
      event.record(warm_up);
    }
    std::thread writer([&] {
      Stream stream(device_at(0));
      stream.enqueue([&] { value = 42; });
      event.record(stream);
      recorded.store(true, std::memory_order_relaxed);
    });
    while (!recorded.load(std::memory_order_relaxed)) std::this_thread::yield();
    const Stream stream = default_stream(device_at(1));
    stream.wait(event);
    stream.enqueue([&] { seen = value; });
    synchronize(stream);
    CHECK(seen == 42);
    writer.join();
  }
}

TEST_CASE("timing events measure") {
  Backend& host = backend(device_type());
  const Stream stream = default_stream(device_at(0));
  EventHandle begin = host.create_event(0, true), end = host.create_event(0, true), plain = host.create_event(0, false);
  host.record_event(begin, stream.handle());
  CHECK_THROWS_AS(host.elapsed_milliseconds(begin, end), InvalidArgument);
  host.record_event(end, stream.handle());
  host.record_event(plain, stream.handle());
  CHECK(host.elapsed_milliseconds(begin, end) >= 0);
  CHECK(host.elapsed_milliseconds(end, begin) <= 0);
  CHECK_THROWS_AS(host.elapsed_milliseconds(begin, plain), InvalidArgument);
  for (EventHandle event : {begin, end, plain}) host.destroy_event(event);
}
