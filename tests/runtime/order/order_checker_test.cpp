// The order checker on programs that are right and on programs that lack one edge, each under many schedules.
#include <functional>
#include <thread>

#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/runtime/thread/rendezvous.h"
#include "runtime/order/order_programs.h"
#include "runtime/text.h"
#include "support/catch.h"

using namespace backend_streams;

namespace {

constexpr std::size_t kBytes = 256;
constexpr int kSeeds = 50;

// What a program may use.
struct World {
  explicit World(std::uint64_t seed) : backend({.mode = HostMode::strict, .seed = seed}) {}
  Backends backend;
  StrictStream a{*backend, 0}, other{*backend, 0}, b{*backend, 1}, copies{*backend, 1};
  DeviceMemory on_a{*backend, 0, kBytes}, on_b{*backend, 1, kBytes};

  void copy() { backend->copy({on_b, Device::host(1), on_a, Device::host(0), kBytes}, copies.handle()); }
  void finish() {
    for (StrictStream* stream : {&a, &other, &b, &copies}) stream->synchronize();
  }
};

// The report of a program; empty when there is none. The checker must say the same under every schedule (but for the
// numbers of streams and addresses, which differ).
template <class Program>
std::string report_of(Program program) {
  std::string first;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    World world(static_cast<std::uint64_t>(seed));
    std::string report = message_of<RaceError>([&] { program(world); });
    world.finish();
    if (report == "(no exception)") report.clear();
    if (seed == 1) first = report;
    CHECK(report.empty() == first.empty());
  }
  return first;
}

struct SilentLog {
  SilentLog() : before(log_level()) { set_log_level(LogLevel::off); }
  ~SilentLog() { set_log_level(before); }
  LogLevel before;
};

}  // namespace

TEST_CASE("a program with all its edges is not reported") {
  CHECK(report_of([](World& w) {
          w.a.run("produce", {w.a.write(w.on_a, kBytes)});
          w.copies.after(w.a);
          w.copies.after(w.b);
          w.copy();
          w.b.after(w.copies);
          w.a.after(w.copies);
          w.b.run("consume", {w.b.read(w.on_b, kBytes)});
          w.a.run("produce", {w.a.write(w.on_a, kBytes)});
        }) == "");
}

TEST_CASE("a missing wait before a read is reported with both operations and the edge") {
  const std::string report = report_of([](World& w) {
    w.a.run("produce", {w.a.write(w.on_a, kBytes)});
    w.copy();
  });
  CAPTURE(report);
  CHECK(contains(report, "[copy] expected an event edge from stream "));
  CHECK(contains(report, " of host:0 (after 'produce') to stream "));
  CHECK(contains(report, " of host:1 (before 'copy'), got none: 'copy' on stream "));
  CHECK(contains(report, " by thread "));
  CHECK(contains(report, " reads 256 bytes at 0x"));
  CHECK(contains(report, " that 'produce' (test.cpp:1) on stream "));
  CHECK(contains(report, " writes"));
}

TEST_CASE("a missing wait before an overwrite is reported") {
  CHECK(contains(report_of([](World& w) {
                   w.b.run("consume", {w.b.read(w.on_b, kBytes)});
                   w.copy();
                 }),
                 "'consume'"));
  CHECK(contains(report_of([](World& w) {
                   w.copy();
                   w.a.run("overwrite", {w.a.write(w.on_a, kBytes)});
                 }),
                 "'overwrite'"));
  CHECK(contains(report_of([](World& w) {
                   w.b.run("fill", {w.b.write(w.on_b, kBytes)});
                   w.copy();
                 }),
                 " writes 256 bytes"));
}

TEST_CASE("a missing wait after a copy is reported") {
  CHECK(contains(report_of([](World& w) {
                   w.copy();
                   w.b.run("consume", {w.b.read(w.on_b, kBytes)});
                 }),
                 "[consume] expected an event edge from stream "));
}

TEST_CASE("an event recorded too early orders nothing that comes after it") {
  CHECK(contains(report_of([](World& w) {
                   TestEvent event(*w.backend);
                   w.a.record(event);
                   w.a.run("produce", {w.a.write(w.on_a, kBytes)});
                   w.copies.wait(event);
                   w.copy();
                 }),
                 "(after 'produce')"));
  CHECK(report_of([](World& w) {
          TestEvent event(*w.backend);
          w.a.run("produce", {w.a.write(w.on_a, kBytes)});
          w.a.record(event);
          w.a.run("look", {w.a.read(w.on_a, kBytes)});
          w.copies.wait(event);
          w.copy();
        }) == "");
}

TEST_CASE("recording again does not change what was waited for") {
  CHECK(contains(report_of([](World& w) {
                   TestEvent event(*w.backend);
                   w.a.record(event);
                   w.copies.wait(event);
                   w.a.run("produce", {w.a.write(w.on_a, kBytes)});
                   w.a.record(event);
                   w.copy();
                 }),
                 "(after 'produce')"));
}

TEST_CASE("edges lead on from stream to stream") {
  CHECK(report_of([](World& w) {
          w.a.run("produce", {w.a.write(w.on_a, kBytes)});
          w.b.after(w.a);
          w.copies.after(w.b);
          w.copy();
        }) == "");
}

TEST_CASE("a host wait orders what the thread enqueues from then on, and a time-out does not") {
  CHECK(report_of([](World& w) {
          w.a.run("produce", {w.a.write(w.on_a, kBytes)});
          w.a.synchronize();
          w.copy();
        }) == "");
  CHECK(contains(report_of([](World& w) {
                   Gate gate;
                   TestEvent event(*w.backend);
                   w.a.run("produce", {w.a.write(w.on_a, kBytes)}, gate.waits());
                   w.a.record(event);
                   CHECK_FALSE(event.wait(Deadline::after(Milliseconds(0))));
                   w.copy();
                 }),
                 "(after 'produce')"));
  // A question whether an event is through is not a wait for it: whoever gets lucky would hide the missing edge.
  CHECK(contains(report_of([](World& w) {
                   TestEvent event(*w.backend);
                   w.a.run("produce", {w.a.write(w.on_a, kBytes)});
                   w.a.record(event);
                   while (!event.query()) std::this_thread::yield();
                   w.copy();
                 }),
                 "(after 'produce')"));
}

TEST_CASE("reads do not conflict with each other, nor bytes with their neighbours") {
  CHECK(report_of([](World& w) {
          w.a.run("look", {w.a.read(w.on_a, kBytes)});
          w.other.run("look", {w.other.read(w.on_a, kBytes)});
          w.other.synchronize();
          w.a.synchronize();
          w.a.run("left", {w.a.write(w.on_a, 100)});
          w.other.run("right", {w.other.write(w.on_a + 100, 156)});
          // Even and odd columns of a matrix of 8 rows of 16 bytes.
          const auto columns = [&](int first) {
            return MemoryUse{.data = w.on_b + 2 * first,
                             .device = Device::host(1),
                             .writes = true,
                             .element_bytes = 2,
                             .rank = 2,
                             .sizes = {16, 4},
                             .byte_strides = {16, 4}};
          };
          w.b.run("even", {columns(0)});
          w.copies.run("odd", {columns(1)});
        }) == "");
  CHECK(contains(report_of([](World& w) {
                   w.a.run("left", {w.a.write(w.on_a, 100)});
                   w.other.run("right", {w.other.write(w.on_a + 99, 1)});
                 }),
                 " writes 1 bytes at 0x"));
}

TEST_CASE("each read since the last write must be waited for") {
  CHECK(contains(report_of([](World& w) {
                   StrictStream writer(*w.backend, 0);
                   w.a.run("look here", {w.a.read(w.on_a, kBytes)});
                   w.other.run("look there", {w.other.read(w.on_a, kBytes)});
                   writer.after(w.a);
                   writer.run("overwrite", {writer.write(w.on_a, kBytes)});
                 }),
                 "'look there'"));
}

TEST_CASE("work on another device's memory is refused, outside copies") {
  World w(1);
  CHECK(contains(
      message_of<InvalidArgument>([&] { w.b.run("consume", {w.b.read(w.on_a, kBytes)}); }),
      "[consume] expected memory of host:1, got 256 bytes in the memory of host:0: 'consume' (test.cpp:1) on "));
  CHECK(contains(message_of<InvalidArgument>([&] {
                   w.backend->copy({w.on_a, Device::host(1), w.on_b, Device::host(1), 8}, w.b.handle());
                 }),
                 "[copy] expected memory of host:1, got 8 bytes in the memory of host:0"));
  CHECK_THROWS_AS(w.backend->fill_bytes(w.on_a, 0, 8, w.b.handle()), InvalidArgument);
  CHECK(contains(message_of<InvalidArgument>([&] { w.a.run("produce", {w.a.write(w.on_a, kBytes + 1)}); }),
                 "[produce] expected to use at most the 256 bytes up to the end of the allocation on host:0, got 257"));
}

TEST_CASE("what was refused is not held against anybody") {
  World w(1);
  w.a.run("produce", {w.a.write(w.on_a, kBytes)});
  CHECK_THROWS_AS(w.copy(), RaceError);
  w.b.run("consume", {w.b.read(w.on_b, kBytes)});  // would have to wait for the copy, had there been one
  w.a.synchronize();
  w.b.synchronize();
  w.copy();
  w.finish();
}

TEST_CASE("memory that is freed in flight is reported by the next operation or wait") {
  SilentLog silent;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    World w(static_cast<std::uint64_t>(seed));
    DeviceMemory scratch(*w.backend, 0, kBytes);
    w.a.run("produce", {w.a.write(scratch, kBytes)});
    scratch.free();
    const std::string report = message_of<RaceError>([&] { w.a.synchronize(); });
    CAPTURE(report);
    CHECK(contains(report, "[free] expected a wait of thread "));
    CHECK(contains(report, " of host:0 (after 'produce'), got none: "));
    CHECK(contains(report, " frees 256 bytes at 0x"));
    CHECK_NOTHROW(w.a.synchronize());
    DeviceMemory other(*w.backend, 0, kBytes);
    w.a.run("produce", {w.a.write(other, kBytes)});
    w.a.synchronize();
    other.free();
    CHECK_NOTHROW(w.a.synchronize());
  }
}

TEST_CASE("memory comes without a past") {
  World w(1);
  for (int i = 0; i < 20; ++i) {
    DeviceMemory scratch(*w.backend, 0, kBytes);
    StrictStream stream(*w.backend, 0);
    stream.run("produce", {stream.write(scratch, kBytes)});
    stream.synchronize();
  }
  w.finish();
}

TEST_CASE("plain memory belongs to the threads that work on it") {
  std::vector<std::byte> memory(kBytes);
  const auto on_cpu = [&](const char* name, bool writes) {
    MemoryUse use = writes ? MemoryUse::write(memory.data(), kBytes, Device::cpu())
                           : MemoryUse::read(memory.data(), kBytes, Device::cpu());
    detail::OrderChecker::active()->use(nullptr, name, std::span(&use, 1), {});
  };
  const auto fetch = [&](World& w) {
    w.backend->copy({memory.data(), Device::cpu(), w.on_a, Device::host(0), kBytes}, w.a.handle());
  };
  const std::string report = report_of([&](World& w) {
    fetch(w);
    on_cpu("print", false);
  });
  CAPTURE(report);
  CHECK(contains(report, "[print] expected a wait of thread "));
  CHECK(contains(report, " of host:0 (after 'copy'), got none: 'print' by thread "));
  CHECK(report_of([&](World& w) {
          on_cpu("prepare", true);
          w.backend->copy({w.on_a, Device::host(0), memory.data(), Device::cpu(), kBytes}, w.a.handle());
          fetch(w);
          w.a.synchronize();
          on_cpu("print", false);
        }) == "");
}

TEST_CASE("what a thread has waited for, those it hands over to know") {
  const std::uint64_t assumed = order_stats().assumed_handovers;
  CHECK(report_of([](World& w) {
          // Posted work knows what the poster knew; who joins it knows what it learned.
          w.a.run("produce", {w.a.write(w.on_a, kBytes)});
          w.a.synchronize();
          auto join = std::make_shared<Join>(1);
          device_thread(Device::cpu()).post([&, join] {
            w.copy();
            w.copies.synchronize();
            join->done();
          });
          CHECK(join->wait(soon()));
          w.b.run("consume", {w.b.read(w.on_b, kBytes)});
          w.b.synchronize();
          // Both sides of a rendezvous.
          Rendezvous meeting(2);
          std::thread other([&] {
            w.a.run("produce", {w.a.write(w.on_a, kBytes)});
            w.a.synchronize();
            meeting.arrive_and_wait(1, soon());
          });
          meeting.arrive_and_wait(0, soon());
          w.b.run("consume", {w.b.read(w.on_b, kBytes)});
          w.copies.after(w.b);
          w.copy();
          other.join();
          // A thread that has ended, and a hand-over of the program's own.
          std::thread([&] { w.finish(); }).join();
          w.b.run("produce", {w.b.write(w.on_b, kBytes)});
          int address = 0;
          std::thread last([&] {
            w.b.synchronize();
            hand_over(&address);
          });
          last.join();
          take_over(&address);
          w.copy();
        }) == "");
  CHECK(order_stats().assumed_handovers == assumed);
}

TEST_CASE("host threads that hand over in their own way are not reported but counted") {
  const std::uint64_t assumed = order_stats().assumed_handovers;
  World w(1);
  w.finish();  // a thread that comes later would start with what is known by then
  std::promise<void> produced, done;
  std::thread other([&] {
    w.a.run("produce", {w.a.write(w.on_a, kBytes)});
    w.a.synchronize();
    produced.set_value();
    done.get_future().wait();
  });
  produced.get_future().wait();
  CHECK_NOTHROW(w.copy());
  CHECK(order_stats().assumed_handovers > assumed);
  done.set_value();
  other.join();
  w.finish();
}

TEST_CASE("a use that is too scattered is skipped and counted") {
  World w(1);
  DeviceMemory large(*w.backend, 0, std::size_t{1} << 21);
  const std::uint64_t skipped = order_stats().skipped_uses;
  const std::uint64_t operations = order_stats().operations;
  w.a.run("scatter", {{.data = large.data(),
                       .device = Device::host(0),
                       .writes = true,
                       .element_bytes = 1,
                       .rank = 1,
                       .sizes = {1 << 20},
                       .byte_strides = {2}}});
  CHECK(order_stats().skipped_uses == skipped + 1);
  CHECK(order_stats().operations == operations + 1);
  w.finish();
}

TEST_CASE("the bytes of a copy are visible when it is through and not before") {
  // A reader that does not wait must see the old bytes, which the checker reports; here the bytes are the test's own.
  World w(2);
  std::vector<unsigned char> source(64, 1), destination(64, 0);
  Gate gate;
  w.copies.enqueue(gate.waits());
  w.backend->copy({destination.data(), Device::host(1), source.data(), Device::host(0), 64}, w.copies.handle());
  CHECK(destination[63] == 0);
  gate.open();
  w.finish();
  CHECK(destination[63] == 1);
}
