#include "lockstep/runtime/stream.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/error.h"
#include "manual_backend.h"
#include "support/catch.h"
#include "text.h"

using namespace lockstep;

namespace {
const Deadline soon() { return Deadline::after(Milliseconds(60'000)); }
}  // namespace

TEST_CASE("a synchronous stream has done its work when the call returns") {
  Stream stream(Device::cpu());
  CHECK(stream.device() == Device::cpu());
  CHECK(stream.synchronous());
  int steps = 0;
  stream.enqueue([&] { ++steps; });
  CHECK(steps == 1);
  CHECK(stream.query());
}

TEST_CASE("an event that was never recorded holds nobody up") {
  Event event;
  CHECK_FALSE(event.recorded());
  CHECK(event.query());
  wait(event, Deadline::after(Milliseconds(0)));
  for (const Device device : {Device::host(0), Device::cuda(0)}) {
    Stream stream(device);
    stream.wait(event);
    CHECK(stream.query());
  }
}

TEST_CASE("an event is done once what it marks is done") {
  Stream stream(Device::cuda(0));
  int steps = 0;
  Event event;
  stream.enqueue([&] { ++steps; });
  event.record(stream);
  stream.enqueue([&] { ++steps; });
  CHECK(event.recorded());
  CHECK(event.device() == Device::cuda(0));
  CHECK_FALSE(event.query());
  CHECK(event.progress() == Event::Progress::pending);
  CHECK_FALSE(stream.query());
  manual::backend().run(stream.handle());
  CHECK(event.query());
  CHECK(event.progress() == Event::Progress::done);
  CHECK(stream.query());
  CHECK(steps == 2);
}

TEST_CASE("recording again does not disturb earlier waits") {
  Stream first(Device::cuda(0)), second(Device::cuda(1));
  bool waited = false;
  Event event;
  event.record(first);
  second.wait(event);
  second.enqueue([&] { waited = true; });
  manual::backend().run(first.handle());
  event.record(first);  // not done yet, but the wait above meant the record before
  manual::backend().run(second.handle());
  CHECK(waited);
  CHECK_FALSE(event.query());
  manual::backend().reset();
}

TEST_CASE("an event can move to a stream of another device") {
  Event event;
  Stream first(Device::cuda(0)), second(Device::cuda(1)), third(Device::host(0));
  event.record(first);
  event.record(second);
  CHECK(event.device() == Device::cuda(1));
  CHECK_FALSE(event.query());
  event.record(third);
  CHECK(event.device() == Device::host(0));
  CHECK(event.query());
  manual::backend().reset();
}

TEST_CASE("moving an event moves what it marks") {
  Stream stream(Device::cuda(0));
  Event event;
  event.record(stream);
  Event moved = std::move(event);
  CHECK_FALSE(event.recorded());
  CHECK_FALSE(moved.query());
  Event assigned;
  assigned.record(stream);
  assigned = std::move(moved);
  CHECK_FALSE(assigned.query());
  manual::backend().reset();
  CHECK(assigned.query());
}

TEST_CASE("events are pooled") {
  Stream first(Device::cuda(0)), second(Device::cuda(0));
  second.wait_for(first);
  const int made = manual::backend().native_events;
  for (int i = 0; i < 100; ++i) second.wait_for(first);
  CHECK(manual::backend().native_events == made);
  manual::backend().reset();
}

TEST_CASE("a stream waits for another, whichever could run first") {
  for (unsigned order = 0; order < 8; ++order) {
    Stream first(Device::cuda(0)), second(Device::cuda(1));
    std::string seen;
    first.enqueue([&] { seen += 'a'; });
    second.wait_for(first);
    second.enqueue([&] { seen += 'b'; });
    first.wait_for(second);
    first.enqueue([&] { seen += 'c'; });
    first.wait_for(first);  // nothing to do
    CHECK(manual::backend().run_all(order) == 0);
    CHECK(seen == "abc");
  }
}

TEST_CASE("between kinds of device the host waits") {
  Stream device(Device::cuda(0)), host(Device::host(0));
  bool done = false;
  device.enqueue([&] { done = true; });
  host.wait_for(device);
  CHECK(done);
  manual::backend().reset();
  device.enqueue([] {});
  device.wait_for(host);  // a synchronous stream has nothing in flight
  CHECK(manual::backend().host_waits == 0);
  manual::backend().reset();
}

TEST_CASE("a host wait ends with the work or at its deadline") {
  manual::ManualBackend& backend = manual::backend();
  Stream stream(Device::cuda(1));
  bool done = false;
  stream.enqueue([&] { done = true; });
  Event event;
  event.record(stream);
  backend.waits_help = false;
  CHECK(message_of<TimeoutError>([&] { wait(event, soon()); }) ==
        "[wait] expected the work on cuda:1 to finish before the deadline, got none");
  CHECK_THROWS_AS(synchronize(stream), TimeoutError);
  CHECK_FALSE(done);
  backend.waits_help = true;
  wait(event, soon());
  CHECK(done);
  wait(event, soon());
  backend.reset();
}

TEST_CASE("synchronize waits for a stream, or for all streams of a device") {
  Stream first(Device::cuda(0)), second(Device::cuda(0)), elsewhere(Device::cuda(1));
  int done = 0;
  first.enqueue([&] { ++done; });
  second.enqueue([&] { ++done; });
  synchronize(Device::cuda(0));
  CHECK(done == 2);
  CHECK(first.query());
  elsewhere.enqueue([&] { ++done; });
  synchronize(elsewhere);
  CHECK(done == 3);
  synchronize(Device::host(0));
  manual::backend().reset();
}

TEST_CASE("a stream can go while it has work") {
  bool done = false;
  {
    Stream stream(Device::cuda(0));
    stream.enqueue([&] { done = true; });
  }
  CHECK_FALSE(done);
  CHECK(manual::backend().run_all() == 0);
  CHECK(done);
}

TEST_CASE("each device has one default stream and one copy stream") {
  for (const Device device : all_devices()) {
    CHECK(&default_stream(device) == &default_stream(device));
    CHECK(default_stream(device).device() == device);
    CHECK(&copy_stream(device) == &copy_stream(device));
    CHECK(&copy_stream(device) != &default_stream(device));
    CHECK(copy_stream(device).device() == device);
    CHECK(&current_stream(device) == &default_stream(device));
  }
  CHECK_THROWS_AS(default_stream(Device::host(8)), InvalidArgument);
  CHECK_THROWS_AS(current_stream(Device::host(8)), InvalidArgument);
  CHECK_THROWS_AS(Stream(Device::cuda(-1)), InvalidArgument);
}

TEST_CASE("a scope makes a stream current for its device and its thread") {
  const Device device = Device::host(1), other = Device::host(2);
  Stream outer(device), inner(device), elsewhere(other);
  {
    StreamScope outer_scope(outer);
    CHECK(current_stream(device) == outer);
    {
      StreamScope inner_scope(inner);
      StreamScope elsewhere_scope(elsewhere);
      CHECK(current_stream(device) == inner);
      CHECK(current_stream(other) == elsewhere);
      CHECK(&current_stream(Device::cpu()) == &default_stream(Device::cpu()));
      Stream* seen = nullptr;
      std::thread([&] { seen = &current_stream(device); }).join();
      CHECK(seen == &default_stream(device));
    }
    CHECK(current_stream(device) == outer);
    CHECK(&current_stream(other) == &default_stream(other));
  }
  CHECK(&current_stream(device) == &default_stream(device));
}

TEST_CASE("what a thread remembers of a stream outlives the object") {
  const Device device = Device::cuda(0);
  Stream* remembered;
  Block* block;
  bool done = false;
  {
    Stream stream(device);
    StreamScope scope(stream);
    remembered = &current_stream(device);
    CHECK(remembered == &stream.lasting());
    CHECK(*remembered == stream);
    block = allocate(stream, 1000);
    CHECK(block->stream == remembered);
  }
  remembered->enqueue([&] { done = true; });
  manual::backend().run_all();
  CHECK(done);
  release(block);
}

TEST_CASE("a stream is made of one that has nothing to do, or anew") {
  const Device device = Device::cuda(0);
  std::optional<Stream> first(std::in_place, device);
  Stream* const busy = &first->lasting();
  first->enqueue([] {});
  first.reset();
  {
    Stream second(device);
    CHECK(&second.lasting() != busy);
  }
  manual::backend().run_all();
  std::vector<std::unique_ptr<Stream>> all;  // more than the pool can have
  bool found = false;
  for (int i = 0; i < 100 && !found; ++i) {
    all.push_back(std::make_unique<Stream>(device));
    found = &all.back()->lasting() == busy;
    for (int k = 0; k < i; ++k) REQUIRE(*all[static_cast<std::size_t>(k)] != *all.back());
  }
  CHECK(found);
}

TEST_CASE("default streams are made once, also by many threads") {
  const Device device = Device::host(6);
  Stream* seen[8] = {};
  std::vector<std::thread> threads;
  for (Stream*& slot : seen) threads.emplace_back([&slot, device] { slot = &copy_stream(device); });
  for (std::thread& thread : threads) thread.join();
  for (Stream* stream : seen) CHECK(stream == seen[0]);
}

TEST_CASE("waiting for an event is what orders two threads on host devices") {
  // The flag is relaxed: only the event makes the value visible, and ThreadSanitizer knows.
  for (int round = 0; round < 50; ++round) {
    int value = 0, seen = 0;
    std::atomic<bool> recorded{false};
    Event event;
    {
      Stream warm_up(Device::host(0));
      event.record(warm_up);
    }
    std::thread writer([&] {
      Stream stream(Device::host(0));
      stream.enqueue([&] { value = 42; });
      event.record(stream);
      recorded.store(true, std::memory_order_relaxed);
    });
    while (!recorded.load(std::memory_order_relaxed)) std::this_thread::yield();
    Stream& stream = default_stream(Device::host(1));
    stream.wait(event);
    stream.enqueue([&] { seen = value; });
    synchronize(stream);
    CHECK(seen == 42);
    writer.join();
  }
}

TEST_CASE("timing events measure") {
  Backend& host = backend(DeviceType::host);
  Stream& stream = default_stream(Device::host(0));
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
