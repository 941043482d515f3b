// Waits, and what may come back when, on the manual devices: whichever stream could run first.
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "runtime/gate.h"
#include "runtime/manual_backend.h"
#include "runtime/text.h"
#include "support/catch.h"

using namespace lockstep;
using backend_streams::soon;

namespace {

using Bytes = std::vector<unsigned char>;

CopyArgs args_for(Bytes& destination, Device to, const Bytes& source, Device from) {
  return {.destination = destination.data(),
          .destination_device = to,
          .source = source.data(),
          .source_device = from,
          .bytes = source.size()};
}

void fill(const Stream& stream, Bytes& bytes, int value) {
  stream.backend().fill_bytes(bytes.data(), value, bytes.size(), stream.handle());
}

// Runs `body` on the thread and waits for it.
void run_on(DeviceThread& thread, UniqueFunction body) {
  auto join = std::make_shared<Join>(1);
  thread.post([join, task = std::move(body)]() mutable {
    task();
    join->done();
  });
  REQUIRE(join->wait(soon()));
}

}  // namespace

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

TEST_CASE("what a thread remembers of a stream outlives the object") {
  const Device device = Device::cuda(0);
  Stream remembered;
  MemoryBlock* block;
  bool done = false;
  {
    Stream stream(device);
    StreamScope scope(stream);
    remembered = current_stream(device);
    CHECK(remembered == stream);
    block = allocate(stream, 1000);
    CHECK(block->stream == &remembered.body());
  }
  remembered.enqueue([&] { done = true; });
  manual::backend().run_all();
  CHECK(done);
  release(block);
}

TEST_CASE("a stream is made of one that has nothing to do, or anew") {
  const Device device = Device::cuda(0);
  std::optional<Stream> first(std::in_place, device);
  const detail::StreamBody* const busy = &first->body();
  first->enqueue([] {});
  first.reset();
  {
    Stream second(device);
    CHECK(&second.body() != busy);
  }
  manual::backend().run_all();
  std::vector<std::unique_ptr<Stream>> all;  // more than the pool can have
  bool found = false;
  for (int i = 0; i < 100 && !found; ++i) {
    all.push_back(std::make_unique<Stream>(device));
    found = &all.back()->body() == busy;
    for (int k = 0; k < i; ++k) REQUIRE(*all[static_cast<std::size_t>(k)] != *all.back());
  }
  CHECK(found);
}

// The four edges: the source is written, the destination's earlier readers are done, and later work on both streams
// comes after the copy. Each order of the streams must give the same bytes.
TEST_CASE("a copy between devices is ordered with the work on both sides") {
  for (unsigned order = 0; order < 40; ++order) {
    Stream from(Device::cuda(0)), to(Device::cuda(1));
    Bytes source(16, 0), destination(16, 9), read_before(16, 0), read_after(16, 0);
    fill(from, source, 1);  // written before the copy
    to.enqueue([&] { read_before = destination; });
    copy_bytes(args_for(destination, Device::cuda(1), source, Device::cuda(0)), from, to);
    fill(from, source, 2);  // overwritten after the copy
    to.enqueue([&] { read_after = destination; });
    CHECK(manual::backend().run_all(order) == 0);
    CHECK(read_before == Bytes(16, 9));
    CHECK(read_after == Bytes(16, 1));
    CHECK(source == Bytes(16, 2));
  }
  manual::backend().reset();
}

TEST_CASE("a copy within one device is ordered with both streams") {
  const Device device = Device::cuda(0);
  for (unsigned order = 0; order < 40; ++order) {
    Stream from(device), to(device);
    Bytes source(16, 0), destination(16, 9), read_before, read_after;
    fill(from, source, 1);
    to.enqueue([&] { read_before = destination; });
    copy_bytes(args_for(destination, device, source, device), from, to);
    fill(from, source, 2);
    to.enqueue([&] { read_after = destination; });
    CHECK(manual::backend().run_all(order) == 0);
    CHECK(read_before == Bytes(16, 9));
    CHECK(read_after == Bytes(16, 1));
    Bytes third(16, 0);
    copy_bytes(args_for(third, device, source, device), to, to);
    CHECK(manual::backend().run_all(order) == 0);
    CHECK(third == Bytes(16, 2));
  }
}

TEST_CASE("a copy between devices leaves the compute streams free") {
  manual::ManualBackend& backend = manual::backend();
  Stream from(Device::cuda(0)), to(Device::cuda(1));
  Bytes source(16, 3), destination(16, 0);
  REQUIRE(peer_copies(Device::cuda(0), Device::cuda(1)));
  backend.reset();
  copy_bytes(args_for(destination, Device::cuda(1), source, Device::cuda(0)), from, to);
  backend.run(from.handle());
  backend.run(to.handle());
  CHECK(destination == Bytes(16, 0));
  backend.run(detail::copies_of(to).handle());
  CHECK(destination == Bytes(16, 3));
  CHECK(backend.host_waits == 0);
  backend.reset();
}

TEST_CASE("copies that different streams wait for do not wait for each other") {
  manual::ManualBackend& backend = manual::backend();
  const Device near = Device::cuda(0), far = Device::cuda(1);
  CHECK(detail::copies_of(default_stream(far)) == copy_stream(far));
  Stream from(near), other_from(near), to(far), other_to(far);
  CHECK(detail::copies_of(to) == detail::copies_of(to));
  Bytes source(16, 3), held(16, 0), free(16, 0);
  REQUIRE(peer_copies(near, far));
  backend.reset();
  copy_bytes(args_for(held, far, source, near), from, to);
  copy_bytes(args_for(free, far, source, near), other_from, other_to);
  // Nothing of the first two streams runs.
  for (const Stream& stream : {other_from, other_to, detail::copies_of(other_to)}) backend.run(stream.handle());
  CHECK(free == Bytes(16, 3));
  CHECK(held == Bytes(16, 0));
  backend.reset();
}

TEST_CASE("a copy into a device does not wait for one out of it") {
  manual::ManualBackend& backend = manual::backend();
  const Device device = Device::cuda(0);
  const Stream plain = current_stream(Device::cpu());
  for (const bool is_default : {false, true}) {
    const Stream stream = is_default ? default_stream(device) : Stream(device);
    Bytes pinned(16, 3), here(16, 0), source(16, 5), destination(16, 0), meanwhile;
    backend.reset();
    backend.on_host_wait = [&] {  // another thread, while this one waits for the copy out
      start_copy(args_for(here, device, pinned, Device::cpu()), plain, stream);
      backend.run(stream.handle());
      backend.run(detail::copies_of(stream).handle());
      meanwhile = destination;
    };
    copy_bytes(args_for(destination, Device::cpu(), source, device), stream, plain);
    CHECK(here == Bytes(16, 3));
    CHECK(meanwhile == Bytes(16, 0));
    CHECK(destination == Bytes(16, 5));
    CHECK(backend.run_all() == 0);
  }
  backend.reset();
}

TEST_CASE("a stream of high priority is one to its backend, and so are those for its copies") {
  manual::ManualBackend& backend = manual::backend();
  const Device device = Device::cuda(1);
  std::vector<Stream> held;  // until new ones have to be made
  const auto priority_of_a_new_one = [&](StreamPriority wanted) {
    const StreamHandle last = backend.last_made;
    while (backend.last_made == last) held.emplace_back(device, wanted);
    return backend.last_priority;
  };
  CHECK(priority_of_a_new_one(StreamPriority::high) == StreamPriority::high);
  const StreamHandle before = backend.last_made;
  (void)detail::copies_of(held.back());
  CHECK(backend.last_made != before);
  CHECK(backend.last_priority == StreamPriority::high);
  CHECK(priority_of_a_new_one(StreamPriority::normal) == StreamPriority::normal);
}

TEST_CASE("a copy into plain memory has finished when the call returns") {
  Stream from(Device::cuda(0));
  Bytes source(16, 0), destination(16, 0);
  fill(from, source, 5);
  copy_bytes(args_for(destination, Device::cpu(), source, Device::cuda(0)), from, current_stream(Device::cpu()));
  CHECK(destination == Bytes(16, 5));
  manual::backend().reset();
}

TEST_CASE("a copy from plain memory does not block") {
  Stream to(Device::cuda(0));
  Bytes source(16, 6), destination(16, 0);
  bool waited = manual::backend().host_waits != 0;
  copy_bytes(args_for(destination, Device::cuda(0), source, Device::cpu()), current_stream(Device::cpu()), to);
  // The caller's stream is of plain memory, where work runs at once: it can only wait by blocking.
  CHECK_FALSE(waited);
  CHECK(manual::backend().run_all() == 0);
  CHECK(destination == Bytes(16, 6));
  manual::backend().reset();
}

// More pieces than there are, twice, so that each is used again.
TEST_CASE("copies from and to pageable memory are ordered with the pinned pieces they go through") {
  manual::ManualBackend& backend = manual::backend();
  backend.all_pageable = true;
  const std::size_t bytes = (std::size_t{6} << 20) + 5;
  for (unsigned order = 0; order < 6; ++order) {
    Stream stream(Device::cuda(0));
    const Stream plain = current_stream(Device::cpu());
    Bytes sent(bytes), there(bytes, 0), back(bytes, 0), received(bytes, 0);
    for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<unsigned char>(i * 7 + (i >> 20) * 37 + order);
    const Bytes expected = sent;
    fill(stream, there, 9);
    copy_bytes(args_for(there, Device::cuda(0), sent, Device::cpu()), plain, stream);
    sent.assign(bytes, 0);  // it has been read
    stream.enqueue([&] { back = there; });
    CHECK(backend.run_all(order) == 0);
    CHECK(back == expected);

    copy_bytes(args_for(received, Device::cpu(), there, Device::cuda(0)), stream, plain);
    CHECK(received == expected);  // nothing else has run the streams
    CHECK(backend.run_all(order) == 0);
    // From the one to the other, with nothing in between.
    copy_bytes(args_for(there, Device::cuda(0), back, Device::cpu()), plain, stream);
    received.assign(bytes, 0);
    copy_bytes(args_for(received, Device::cpu(), there, Device::cuda(0)), stream, plain);
    CHECK(received == expected);
  }
  backend.reset();
}

TEST_CASE("a device thread is bound to its device before its first task") {
  for (const int index : {1, 0}) {
    int bound = -1;
    run_on(device_thread(Device::cuda(index)), [&] { bound = manual::ManualBackend::bound_index; });
    CHECK(bound == index);
    run_on(backward_thread(Device::cuda(index)), [&] { bound = 10 + manual::ManualBackend::bound_index; });
    CHECK(bound == 10 + index);
  }
  CHECK(manual::ManualBackend::bound_index == -1);
}
