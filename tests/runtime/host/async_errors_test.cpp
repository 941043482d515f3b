// Errors of work on streams that run by themselves: who hears of them, when, and what does not run any more.
#include <csignal>
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>

#include "lockstep/runtime/host/async_backend.h"
#include "runtime/backend_streams.h"
#include "runtime/text.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace backend_streams;
using support::device_at;
using support::device_name;

TEST_CASE("the first error of a stream keeps its later work from running and surfaces at the wait") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    Gate gate;
    bool ran = false;
    stream.enqueue(gate.waits());
    stream.enqueue([] { throw InvalidArgument("[gather] the first"); });
    stream.enqueue([&] { ran = true; });
    stream.enqueue([] { throw InvalidArgument("[gather] the second"); });
    TestEvent event(*backend);
    stream.record(event);
    gate.open();
    CHECK(message_of<InvalidArgument>([&] { event.wait(); }) == "[gather] the first");
    CHECK_FALSE(ran);
    CHECK(message_of<InvalidArgument>([&] { event.wait(); }) == "[gather] the first");  // what it marks stays failed
    stream.enqueue([&] { ran = true; });
    stream.synchronize();
    CHECK(ran);
  }
}

TEST_CASE("an error that is not Lockstep's arrives as a DeviceError that holds it") {
  support::needs_devices(3);
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 2);
    stream.enqueue([] { throw std::runtime_error("out of paper"); });
    std::string outer, inner;
    try {
      stream.synchronize();
    } catch (const DeviceError& error) {
      outer = error.what();
      CHECK(error.device == device_at(2));
      inner = message_of<std::runtime_error>([&] { std::rethrow_if_nested(error); });
    }
    CHECK(outer == "[wait] expected the work to succeed, got: out of paper (" + device_name(2) + ")");
    CHECK(inner == "out of paper");
  }
}

TEST_CASE("an error travels through events to the streams that wait") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream first(*backend, 0), second(*backend, 1), third(*backend, 2);
    Gate gate;
    bool ran = false;
    first.enqueue(gate.waits());
    first.enqueue([] { throw InvalidArgument("[gather] bad"); });
    second.after(first);
    second.enqueue([&] { ran = true; });
    third.after(second);
    third.enqueue([&] { ran = true; });
    TestEvent end_of_second(*backend), end_of_first(*backend);
    second.record(end_of_second);
    first.record(end_of_first);
    gate.open();
    CHECK_THROWS_AS(third.synchronize(), InvalidArgument);
    CHECK_FALSE(ran);
    // All of them failed, and all of them work again: it is one error, and it has surfaced.
    CHECK_THROWS_AS(end_of_second.wait(), InvalidArgument);
    CHECK_THROWS_AS(end_of_first.wait(), InvalidArgument);
    for (TestStream* stream : {&first, &second, &third}) {
      ran = false;
      stream->enqueue([&] { ran = true; });
      stream->synchronize();
      CHECK(ran);
    }
    // A wait for the failed work itself does not bring the error back.
    second.wait(end_of_first);
    second.synchronize();
  }
}

TEST_CASE("work that was enqueued before an error surfaced does not run") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    Gate gate;
    TestEvent event(*backend);
    bool ran_on_what_failed = false;
    stream.enqueue([] { throw InvalidArgument("[gather] bad"); });
    stream.record(event);
    // On another stream, so that this one is past its error before the rest of its work may run.
    TestStream holder(*backend, 1);
    holder.enqueue(gate.waits());
    stream.after(holder);
    stream.enqueue([&] { ran_on_what_failed = true; });
    CHECK_THROWS_AS(event.wait(), InvalidArgument);
    gate.open();
    bool ran = false;
    stream.enqueue([&] { ran = true; });
    stream.synchronize();
    CHECK(ran);
    CHECK_FALSE(ran_on_what_failed);
  }
}

TEST_CASE("every thread that has lost work to an error is told, not only the first") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    TestEvent failed(*backend);
    bool lost = false, built_on_it = false, wrongly_told = false, told = false, ran = false;
    stream.enqueue([] { throw InvalidArgument("[gather] bad"); });
    stream.record(failed);
    std::promise<void> enqueued, surfaced;
    std::thread other([&] {
      stream.enqueue([&] { lost = true; });
      enqueued.set_value();
      surfaced.get_future().wait();
      stream.enqueue([&] { built_on_it = true; });
      try {
        stream.synchronize();
      } catch (const InvalidArgument&) {
        told = true;
      }
      stream.enqueue([&] { ran = true; });
      stream.synchronize();
    });
    enqueued.get_future().wait();
    CHECK_THROWS_AS(failed.wait(), InvalidArgument);
    surfaced.set_value();
    other.join();
    CHECK_FALSE(lost);
    CHECK_FALSE(built_on_it);
    CHECK(told);
    CHECK(ran);
    // Who had nothing to do with it does not hear of it.
    std::thread third([&] {
      try {
        stream.enqueue([] {});
        stream.synchronize();
      } catch (const Error&) {
        wrongly_told = true;
      }
    });
    third.join();
    CHECK_FALSE(wrongly_told);
  }
}

TEST_CASE("asking a stream whether it is done tells of its error, once") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream stream(*backend, 0);
    TestEvent event(*backend);
    stream.enqueue([] { throw InvalidArgument("[gather] bad"); });
    stream.record(event);
    while (!event.query()) std::this_thread::yield();  // finished, which is all that it says
    CHECK_THROWS_AS(stream.query(), InvalidArgument);
    CHECK(stream.query());
  }
}
