#include "lockstep/runtime/host/faults.h"

#include <algorithm>
#include <thread>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/memory/allocator.h"
#include "runtime/backend_streams.h"
#include "runtime/text.h"
#include "support/catch.h"

using namespace backend_streams;
using detail::host_faults;

namespace {

// Leaves no fault behind, and no verdict on a link that had one.
struct Faults {
  Faults() : before(log_level()) {
    set_log_level(LogLevel::off);
    clear();
  }
  ~Faults() {
    clear();
    set_log_level(before);
  }
  static void clear() {
    host_faults().clear();
    detail::forget_peers();
  }
  LogLevel before;
};

using Bytes = std::vector<unsigned char>;

// What arrives when memory of one device is copied to another: more than one piece of the detour.
Bytes send(const Bytes& bytes, Device from, Device to) {
  const Stream source = default_stream(from);
  const Stream destination = default_stream(to);
  const Stream plain = default_stream(Device::cpu());
  MemoryBlock* here = allocate(source, bytes.size());
  MemoryBlock* there = allocate(destination, bytes.size());
  Bytes received(bytes.size());
  copy_bytes({here->data, from, bytes.data(), Device::cpu(), bytes.size()}, plain, source);
  copy_bytes({there->data, to, here->data, from, bytes.size()}, source, destination);
  source.backend().fill_bytes(here->data, 0, bytes.size(), source.handle());  // must not overtake the copy
  copy_bytes({received.data(), Device::cpu(), there->data, to, bytes.size()}, destination, plain);
  release(here);
  release(there);
  synchronize(source);  // a fault that is asked for next must not hit the fill
  return received;
}

Bytes numbered(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 31 + i / 256);
  return bytes;
}

bool asynchronous() { return !default_stream(Device::host(0)).synchronous(); }

}  // namespace

TEST_CASE("the k-th raw allocation fails and the later ones do not") {
  Faults faults;
  Backends backend({.mode = HostMode::async});
  host_faults().fail_allocation(3, 1);
  void* pieces[4];
  for (void*& piece : pieces) piece = backend->allocate(0, 100);
  CHECK(pieces[0]);
  CHECK(pieces[1]);
  CHECK_FALSE(pieces[2]);
  CHECK(pieces[3]);
  for (void* piece : pieces) backend->free(0, piece);
}

TEST_CASE("the allocator survives an allocation that fails, and reports a device that has no more") {
  Faults faults;
  const Device device = Device::host(5);
  const Stream stream = default_stream(device);
  empty_cache(device);
  host_faults().fail_allocation(1, 1);
  MemoryBlock* block = nullptr;
  CHECK_NOTHROW(block = allocate(stream, 1000));
  release(block);
  host_faults().fail_allocation(1);
  CHECK_THROWS_AS(allocate(stream, std::size_t{3} << 20), OutOfMemory);
  host_faults().clear();
  CHECK_NOTHROW(block = allocate(stream, std::size_t{3} << 20));
  release(block);
}

TEST_CASE("the k-th task throws") {
  Faults faults;
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 1);
    std::vector<int> ran;
    host_faults().throw_in_task(3);
    for (int i = 1; i <= 4; ++i) stream.enqueue([&ran, i] { ran.push_back(i); });
    CHECK(message_of<DeviceError>([&] { stream.synchronize(); }) ==
          "[fault] expected a task to succeed, got an injected failure (host:1)");
    CHECK(ran == std::vector<int>{1, 2});
    stream.enqueue([&ran] { ran.push_back(5); });
    stream.synchronize();
    CHECK(ran.back() == 5);
  }
}

TEST_CASE("an event that is done has been waited for, and says what failed") {
  if (!asynchronous()) return;
  Faults faults;
  Stream first(Device::host(2)), second(Device::host(2));
  Backend& backend = first.backend();
  const auto poll = [](const Event& event) {
    while (!event.query()) std::this_thread::yield();
  };
  MemoryBlock* block = allocate(first, 1000);
  Event event;
  backend.fill_bytes(block->data, 1, 1000, first.handle());
  event.record(first);
  poll(event);
  CHECK_NOTHROW(backend.fill_bytes(block->data, 2, 1000, second.handle()));  // needs no edge any more
  first.wait_for(second);
  release(block);
  synchronize(first);

  host_faults().throw_in_task(1);
  first.enqueue([] {});
  event.record(first);
  CHECK(message_of<DeviceError>([&] { poll(event); }) ==
        "[fault] expected a task to succeed, got an injected failure (host:2)");
}

TEST_CASE("a task that hangs holds its stream until it is released, and no other") {
  Faults faults;
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stuck(*backend, 0), free(*backend, 0);
    TestEvent event(*backend);
    host_faults().hang_task(1);
    bool ran = false;
    Gate entered;
    stuck.enqueue([&] { ran = true; });
    stuck.record(event);
    while (!host_faults().struck(0)) std::this_thread::yield();  // or the task of `free` might be the one that hangs
    CHECK_FALSE(event.wait(Deadline::after(Milliseconds(5))));
    free.enqueue([] {});
    free.synchronize();
    CHECK_FALSE(stuck.query());
    host_faults().release();
    CHECK(event.wait());
    CHECK(ran);
  }
}

TEST_CASE("a task that is delayed takes at least that long") {
  Faults faults;
  Backends backend({.mode = HostMode::async});
  TestStream stream(*backend, 0);
  TestEvent begin(*backend, true), end(*backend, true);
  host_faults().delay_task(2, std::chrono::microseconds(3000));
  stream.enqueue([] {});
  stream.record(begin);
  stream.enqueue([] {});
  stream.record(end);
  stream.synchronize();
  CHECK(backend->elapsed_milliseconds(begin.handle(), end.handle()) >= 3);
}

TEST_CASE("a copy over a link that does not exist is refused") {
  Faults faults;
  Backends backend({.mode = HostMode::async});
  TestStream stream(*backend, 1);
  CHECK(backend->can_access_peer(1, 0));
  host_faults().deny_peer(1, 0);
  CHECK_FALSE(backend->can_access_peer(1, 0));
  CHECK(backend->can_access_peer(0, 1));
  Bytes here(8), there(8);
  const CopyArgs args{there.data(), Device::host(1), here.data(), Device::host(0), 8};
  CHECK(message_of<DeviceError>([&] { backend->copy(args, stream.handle()); }) ==
        "[copy] expected peer access from host:1 to host:0, got none (host:1)");
}

TEST_CASE("without peer access copies go through host memory, in order with the work on both sides") {
  Faults faults;
  const Bytes bytes = numbered((std::size_t{9} << 20) + 123);  // more pieces than the detour has
  CHECK(peer_copies(Device::host(0), Device::host(0)));
  CHECK(send(bytes, Device::host(0), Device::host(1)) == bytes);
  if (!asynchronous()) return;  // there is one memory, and nothing to reach
  CHECK(peer_copies(Device::host(0), Device::host(1)));
  Faults::clear();
  host_faults().deny_peer(1, 0);
  CHECK_FALSE(peer_copies(Device::host(0), Device::host(1)));
  CHECK(peer_copies(Device::host(1), Device::host(0)));
  for (int round = 0; round < 3; ++round) CHECK(send(bytes, Device::host(0), Device::host(1)) == bytes);
  CHECK(send(bytes, Device::host(1), Device::host(0)) == bytes);
}

// Nothing here waits on the host: the edges of the detour alone keep its order.
TEST_CASE("the detour comes after the work before it and before the work after it, on both sides") {
  if (!asynchronous()) return;
  Faults faults;
  host_faults().deny_peer(1, 0);
  const Device from = Device::host(0), to = Device::host(1);
  const std::size_t bytes = (std::size_t{5} << 20) + 7;
  Stream source(from), destination(to);
  MemoryBlock* here = allocate(source, bytes);
  MemoryBlock* there = allocate(destination, bytes);
  MemoryBlock* seen = allocate(destination, bytes);
  Backend& backend = source.backend();
  REQUIRE_FALSE(peer_copies(from, to));
  for (int round = 1; round <= 3; ++round) {
    backend.fill_bytes(here->data, round, bytes, source.handle());
    backend.fill_bytes(there->data, 9, bytes, destination.handle());
    copy_bytes({there->data, to, here->data, from, bytes}, source, destination);
    backend.fill_bytes(here->data, 8, bytes, source.handle());
    backend.copy({seen->data, to, there->data, to, bytes}, destination.handle());
    Bytes received(bytes);
    copy_bytes({received.data(), Device::cpu(), seen->data, to, bytes}, destination, default_stream(Device::cpu()));
    CHECK(received == Bytes(bytes, static_cast<unsigned char>(round)));
  }
  for (MemoryBlock* block : {here, there, seen}) release(block);
  synchronize(source);
}

TEST_CASE("the detour waits for what either side has waited for, as the straight way does") {
  if (!asynchronous()) return;
  for (const bool denied : {false, true}) {
    Faults faults;
    if (denied) host_faults().deny_peer(1, 0);
    const Device from = Device::host(0), to = Device::host(1);
    const Stream source = default_stream(from), destination = default_stream(to), plain = default_stream(Device::cpu());
    Stream writer(from);
    const std::size_t bytes = 5000;
    Bytes received(bytes);
    MemoryBlock* here = allocate(writer, bytes);
    MemoryBlock* there = allocate(destination, bytes);
    peer_copies(from, to);
    host_faults().delay_task(1, std::chrono::microseconds(20'000));
    writer.backend().fill_bytes(here->data, 7, bytes, writer.handle());
    destination.wait_for(writer);  // and `source` does not
    copy_bytes({there->data, to, here->data, from, bytes}, source, destination);
    copy_bytes({received.data(), Device::cpu(), there->data, to, bytes}, destination, plain);
    CHECK(received == Bytes(bytes, 7));
    release(here);
    release(there);
  }
}

TEST_CASE("a link that claims to work and loses writes is found out before it is used") {
  if (!asynchronous()) return;
  Faults faults;
  host_faults().lose_writes(2, 3);
  const Bytes bytes = numbered(100'000);
  CHECK(send(bytes, Device::host(2), Device::host(3)) == bytes);
  CHECK(send(bytes, Device::host(3), Device::host(2)) == bytes);
  CHECK_FALSE(peer_copies(Device::host(2), Device::host(3)));
  CHECK(peer_copies(Device::host(3), Device::host(2)));
  // Whoever does not ask is not saved.
  Stream stream(Device::host(3));
  Bytes here = numbered(16), there(16, 9);
  stream.backend().copy({there.data(), Device::host(3), here.data(), Device::host(2), 16}, stream.handle());
  synchronize(stream);
  CHECK(there == Bytes(16, 9));
}

TEST_CASE("a link on which the trial fails is not used") {
  if (!asynchronous()) return;
  Faults faults;
  host_faults().throw_in_task(1);
  CHECK_FALSE(peer_copies(Device::host(4), Device::host(6)));
  const Bytes bytes = numbered(1000);
  CHECK(send(bytes, Device::host(4), Device::host(6)) == bytes);
}

TEST_CASE("a trial that does not end in time keeps its memory until it does") {
  if (!asynchronous()) return;
  Faults faults;
  detail::forget_peers(Milliseconds(5));
  host_faults().hang_task(1);
  CHECK_FALSE(peer_copies(Device::host(4), Device::host(6)));
  while (!host_faults().struck(4) && !host_faults().struck(6))
    std::this_thread::yield();  // the trial, and nothing else
  Stream other(Device::host(4));
  MemoryBlock* block = nullptr;
  CHECK_NOTHROW(block = allocate(other, 64 << 10));  // not the trial's
  CHECK_NOTHROW(other.backend().fill_bytes(block->data, 1, block->bytes, other.handle()));
  release(block);
  CHECK_NOTHROW(synchronize(other));
  host_faults().release();
  for (const int device : {4, 6}) CHECK_NOTHROW(synchronize(Device::host(device)));
}

TEST_CASE("several threads may be the first to use a link") {
  Faults faults;
  if (asynchronous()) host_faults().lose_writes(5, 6);
  const Bytes bytes = numbered(5000);
  std::vector<Bytes> received(4);
  std::vector<std::thread> threads;
  for (Bytes& each : received) {
    threads.emplace_back([&] {
      Stream source(Device::host(5)), destination(Device::host(6));
      StreamScope here(source), there(destination);
      MemoryBlock* from = allocate(source, bytes.size());
      MemoryBlock* to = allocate(destination, bytes.size());
      each.resize(bytes.size());
      const Stream plain = default_stream(Device::cpu());
      copy_bytes({from->data, Device::host(5), bytes.data(), Device::cpu(), bytes.size()}, plain, source);
      copy_bytes({to->data, Device::host(6), from->data, Device::host(5), bytes.size()}, source, destination);
      copy_bytes({each.data(), Device::cpu(), to->data, Device::host(6), bytes.size()}, destination, plain);
      release(from);
      release(to);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Bytes& each : received) CHECK(each == bytes);
}

TEST_CASE("faults can be written down, or drawn") {
  Faults faults;
  detail::HostFaults own;
  own.inject("allocation=2, throw=1 ,deny=0-1,lose=2-3", 4);
  CHECK(own.peer_denied(0, 1));
  CHECK_FALSE(own.peer_denied(1, 0));
  CHECK(own.writes_lost(2, 3));
  CHECK_FALSE(own.allocation_fails(1));
  CHECK(own.allocation_fails(1));
  CHECK_THROWS_AS(own.before_task(Device::host(0)), DeviceError);
  CHECK(own.struck(0));
  CHECK(own.struck(1));
  CHECK_FALSE(own.struck(3));
  own.clear();
  CHECK_FALSE(own.struck(0));
  CHECK_FALSE(own.peer_denied(0, 1));
  CHECK_FALSE(own.allocation_fails(1));
  CHECK_NOTHROW(own.before_task(Device::host(0)));
  for (const char* text : {"allocation", "allocation=0", "deny=0", "deny=0-4", "lose=x-1", "explode=1", "throw=-1"}) {
    CHECK_THROWS_AS(own.inject(text, 4), InvalidArgument);
  }
  CHECK_THROWS_AS(detail::make_host_backend({.devices = 1, .faults = "nonsense"}), InvalidArgument);
  for (int seed = 0; seed < 50; ++seed) CHECK_NOTHROW(own.inject(cat("seed=", seed), 1 + seed % 4));
  own.clear();
}
