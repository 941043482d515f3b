// The order checker where the library itself calls it: streams, the caching allocator, copies. Only mode strict has
// one: in the other modes these cases have nothing to ask.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/retained.h"
#include "lockstep/runtime/stream/declare.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "runtime/order/order_programs.h"
#include "runtime/text.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using backend_streams::contains;
using support::device_at;
using support::device_name;

namespace {

constexpr int kRounds = 50;
constexpr std::size_t kBytes = 3000;

bool strict() { return default_stream(device_at(0)).checked(); }

void fill(const Stream& stream, void* data, std::size_t bytes = kBytes) {
  stream.backend().fill_bytes(data, 1, bytes, stream.handle());
}

struct SilentLog {
  SilentLog() : before(log_level()) { set_log_level(LogLevel::off); }
  ~SilentLog() { set_log_level(before); }
  LogLevel before;
};

}  // namespace

TEST_CASE("declaring nothing wrong costs nothing, and nothing is declared where nobody checks") {
  support::needs_devices(2);
  Stream stream(device_at(0));
  const MemoryUse elsewhere = MemoryUse::write(&stream, 1, device_at(1));
  if (!strict()) {
    CHECK_NOTHROW(declare(stream, "kernel", std::span(&elsewhere, 1)));
    CHECK(order_stats().operations == order_stats().operations);
    return;
  }
  CHECK(message_of<InvalidArgument>([&] { declare(stream, "kernel", std::span(&elsewhere, 1)); }) ==
        "[kernel] expected memory of " + device_name(0) + ", got " + device_name(1));
  std::byte own[8];
  const MemoryUse fine = MemoryUse::write(own, 8, device_at(0));
  const std::uint64_t before = order_stats().operations;
  CHECK_NOTHROW(declare(stream, "kernel", std::span(&fine, 1)));
  CHECK(order_stats().operations == before + 1);
}

TEST_CASE("a block that another stream still uses must not be given back without a word") {
  support::needs_devices(2);
  if (!strict()) return;
  SilentLog silent;
  for (int round = 0; round < kRounds; ++round) {
    Stream home(device_at(0)), user(device_at(0));
    const auto use_and_release = [&](auto before_release) {
      MemoryBlock* block = allocate(home, kBytes);
      user.wait_for(home);
      fill(user, block->data);
      before_release(block);
      release(block);
      fill(home, &home, 0);  // any call that may throw
      MemoryBlock* next = allocate(home, 1);
      release(next);
      synchronize(home);
      synchronize(user);
    };
    const std::string report = message_of<RaceError>([&] { use_and_release([](MemoryBlock*) {}); });
    CAPTURE(report);
    CHECK(contains(report, "[release] expected an event edge from stream "));
    CHECK(contains(report, " (after 'fill') to stream "));
    CHECK(contains(report, " (before 'release') or a record_use, got none: "));
    synchronize(user);
    CHECK_NOTHROW(use_and_release([&](MemoryBlock* block) { record_use(block, user); }));
    CHECK_NOTHROW(use_and_release([&](MemoryBlock*) { home.wait_for(user); }));
    CHECK_NOTHROW(use_and_release([&](MemoryBlock*) { synchronize(user); }));
    // A stream that has waited for the user speaks for it; one that has not, does not.
    Stream delegate(device_at(1)), stranger(device_at(1));
    CHECK_NOTHROW(use_and_release([&](MemoryBlock* block) {
      record_use(block, delegate);
      delegate.wait_for(user);
    }));
    CHECK_THROWS_AS(use_and_release([&](MemoryBlock* block) { record_use(block, stranger); }), RaceError);
    synchronize(user);
  }
}

TEST_CASE("a block is not used after it was given back") {
  if (!strict()) return;
  for (int round = 0; round < kRounds; ++round) {
    Stream stream(device_at(0));
    MemoryBlock* block = allocate(stream, kBytes);
    void* const data = block->data;
    fill(stream, data);
    release(block);
    const std::string report = message_of<RaceError>([&] { fill(stream, data, 16); });
    CAPTURE(report);
    CHECK(contains(report, "[fill] expected memory that is in use, got memory after its release: 'fill' on stream "));
    CHECK(contains(report, " writes 16 bytes at 0x"));
    CHECK(contains(report, " given back by 'release' on stream "));
    MemoryBlock* again = allocate(stream, kBytes);
    CHECK(again->data == data);
    CHECK_NOTHROW(fill(stream, data, 16));
    release(again);
    synchronize(stream);
  }
}

TEST_CASE("memory that was allocated for one stream is another's only after an edge") {
  if (!strict()) return;
  Stream home(device_at(0)), other(device_at(0));
  MemoryBlock* first = allocate(home, kBytes);
  fill(home, first->data);
  release(first);
  MemoryBlock* block = allocate(home, kBytes);  // work on it may be in flight on its stream
  CHECK(contains(message_of<RaceError>([&] { fill(other, block->data); }), " (after 'allocate') to stream "));
  other.wait_for(home);
  fill(other, block->data);
  home.wait_for(other);
  release(block);
  synchronize(home);
}

TEST_CASE("a stream comes back to who knows all that happened on it, and to nobody else") {
  if (!strict()) return;
  const Device device = device_at(0);
  MemoryBlock* const block = allocate(default_stream(device), kBytes);
  StreamHandle first = nullptr;
  {
    Stream stream(device);
    first = stream.handle();
    stream.wait_for(default_stream(device));
    fill(stream, block->data);
    synchronize(stream);
  }
  {
    Stream again(device);  // this thread has waited for it
    CHECK(again.handle() == first);
    fill(again, block->data);
    while (!again.query()) std::this_thread::yield();  // done, which tells the checker nothing
  }
  for (int round = 0; round < kRounds; ++round) {
    Stream other(device);  // nobody has waited for the second fill: with the same stream it would be in order
    CHECK(other.handle() != first);
    CHECK(contains(message_of<RaceError>([&] { fill(other, block->data); }), "expected an event edge from stream "));
  }
  synchronize(device);
  const int kept = detail::retained_streams(device).streams;
  for (int round = 0; round < kRounds; ++round) {
    Stream stream(device);
    fill(stream, block->data);
    synchronize(stream);
  }
  CHECK(detail::retained_streams(device).streams <= kept + 1);
  release(block);
}

TEST_CASE("a use must not reach beyond its block") {
  if (!strict()) return;
  Stream stream(device_at(0));
  MemoryBlock* block = allocate(stream, kBytes);
  CHECK(contains(message_of<InvalidArgument>([&] { fill(stream, block->data, block->bytes + 1); }),
                 cat("[fill] expected to use at most the ", block->bytes, " bytes up to the end of the allocation")));
  CHECK_NOTHROW(fill(stream, block->data, block->bytes));
  release(block);
  synchronize(stream);
}

TEST_CASE("blocks go round between streams without a report") {
  if (!strict()) return;
  const Device device = device_at(2);
  Stream streams[] = {Stream(device), Stream(device), Stream(device)};
  for (int round = 0; round < 300; ++round) {
    const Stream& home = streams[round % 3];
    const Stream& user = streams[(round + 1) % 3];
    MemoryBlock* block = allocate(home, 1000 + 700 * static_cast<std::size_t>(round % 5));
    fill(home, block->data, 1000);
    if (round % 2 == 0) {
      user.wait_for(home);
      fill(user, block->data, 1000);
      record_use(block, user);
    }
    release(block);
    if (round % 50 == 49) empty_cache(device);
  }
  synchronize(device);
  CHECK(memory_stats(device).in_use_bytes == 0);
}

TEST_CASE("reports of copies name the caller, and the default streams") {
  support::needs_devices(5);
  if (!strict()) return;
  const Device from = device_at(3), to = device_at(4);
  const Stream source = default_stream(from);
  const Stream destination = default_stream(to);
  Stream stranger(to);
  MemoryBlock* here = allocate(source, kBytes);
  MemoryBlock* there = allocate(destination, kBytes);
  fill(source, here->data);
  const int line = __LINE__ + 1;
  copy_bytes({there->data, to, here->data, from, kBytes}, source, destination);
  const std::string report = message_of<RaceError>([&] { fill(stranger, there->data); });
  CAPTURE(report);
  CHECK(contains(report, cat("'copy' (stream/strict_stream_test.cpp:", line, ") on stream ")));
  CHECK(contains(report, " of " + device_name(4) + " (copies) by thread "));
  Stream third(from);
  CHECK(contains(message_of<RaceError>([&] { fill(third, here->data); }), " of " + device_name(3) + " (default)"));
  release(here);
  release(there);
  synchronize(source);
  synchronize(destination);
}

TEST_CASE("plain memory is watched too") {
  if (!strict()) return;
  const Device device = device_at(0);
  Stream stream(device);
  const Stream plain = default_stream(Device::cpu());
  MemoryBlock* there = allocate(stream, kBytes);
  MemoryBlock* here = allocate(plain, kBytes);
  fill(stream, there->data);
  // As copy_bytes does it, and as it must not be done.
  stream.backend().copy({here->data, Device::cpu(), there->data, device, kBytes}, stream.handle());
  CHECK(contains(message_of<RaceError>([&] { fill(plain, here->data); }), "[fill] expected a wait of thread "));
  copy_bytes({here->data, Device::cpu(), there->data, device, kBytes}, stream, plain);
  CHECK_NOTHROW(fill(plain, here->data));
  CHECK(static_cast<unsigned char*>(here->data)[kBytes - 1] == 1);
  release(here);
  release(there);
}

TEST_CASE("device threads that do it right are never reported") {
  const std::uint64_t assumed = order_stats().assumed_handovers;
  for (int round = 0; round < 100; ++round) {
    const Device home = device_at(0);
    const Stream at_home = default_stream(home);
    MemoryBlock* source = allocate(at_home, kBytes);
    fill(at_home, source->data);
    constexpr int kReplicas = 3;
    MemoryBlock* pieces[kReplicas];
    auto join = std::make_shared<Join>(kReplicas);
    std::atomic<int> failures{0};
    for (int replica = 0; replica < kReplicas; ++replica) {
      const Device device = device_at(replica + 1);
      const Stream stream = default_stream(device);
      pieces[replica] = allocate(stream, kBytes);
      copy_bytes({pieces[replica]->data, device, source->data, home, kBytes}, at_home, stream);
      device_thread(device).post([&, replica, device, join] {
        try {
          const Stream mine = current_stream(device);
          MemoryBlock* scratch = allocate(mine, kBytes);
          copy_bytes({scratch->data, device, pieces[replica]->data, device, kBytes}, mine, mine);
          fill(mine, pieces[replica]->data);
          release(scratch);
        } catch (const std::exception&) {
          ++failures;
        }
        join->done();
      });
    }
    REQUIRE(join->wait(Deadline::after(Milliseconds(60'000))));
    CHECK(failures == 0);
    for (MemoryBlock* piece : pieces) {
      copy_bytes({source->data, home, piece->data, piece->device, kBytes}, *piece->stream, at_home);
      release(piece);
    }
    release(source);
  }
  for (int i = 0; i < 4; ++i) synchronize(device_at(i));
  CHECK(order_stats().assumed_handovers == assumed);
}
