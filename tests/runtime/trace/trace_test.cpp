#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/work_scope.h"
#include "runtime/backend_streams.h"
#include "runtime/text.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/temporary_folder.h"

using namespace backend_streams;
using support::device_at;

namespace {

// Off again at the end.
struct Recording {
  explicit Recording(std::size_t most = 1000) { trace::start(most); }
  ~Recording() { trace::stop(); }
};

}  // namespace

TEST_CASE("nothing is recorded until it is asked for, and nothing after it was stopped") {
  Stream stream(device_at(0));
  trace::start();
  trace::stop();
  stream.enqueue([] {});
  synchronize(stream);
  CHECK_FALSE(trace::active());
  CHECK(trace::spans().empty());
}

TEST_CASE("a trace tells what was enqueued, when it began and when it ended") {
  for (const HostMode mode : async_modes()) {
    Backends backend({.mode = mode});
    TestStream a(*backend, 0), b(*backend, 1);
    void *const from = backend->allocate(0, 64), *const to = backend->allocate(1, 64);
    const Recording recording;
    Gate gate;
    a.enqueue(gate.waits());
    b.after(a);
    backend->copy({to, device_at(1), from, device_at(0), 64}, b.handle());
    backend->fill_bytes(to, 1, 32, b.handle());
    while (trace::spans()[0].began == 0) std::this_thread::yield();
    const std::vector<trace::Span> before = trace::spans();
    REQUIRE(before.size() == 3);
    CHECK(before[0].ended == 0);  // it is at the gate, and the others behind it
    CHECK(before[1].began == 0);
    gate.open();
    a.synchronize();
    b.synchronize();
    const std::vector<trace::Span> spans = trace::spans();
    backend->free(0, from);
    backend->free(1, to);
    CHECK(std::string(spans[0].work.name) == "task");
    CHECK(spans[0].device == device_at(0));
    CHECK(std::string(spans[1].work.name) == "copy");
    CHECK(spans[1].work.kind == trace::Kind::copy);
    CHECK(spans[1].work.bytes == 64);
    CHECK(spans[1].work.source == device_at(0));
    CHECK(spans[1].device == device_at(1));
    CHECK(std::string(spans[2].work.name) == "fill");
    CHECK(spans[1].track == spans[2].track);
    CHECK(spans[0].track != spans[1].track);
    for (const trace::Span& span : spans) {
      CHECK(span.enqueued < span.began);
      CHECK(span.began < span.ended);
      CHECK(span.enqueued_nanoseconds <= span.began_nanoseconds);
      CHECK(span.began_nanoseconds <= span.ended_nanoseconds);
    }
    CHECK(spans[0].ended < spans[1].began);
    CHECK(spans[1].ended < spans[2].began);
  }
}

TEST_CASE("work has the name of the scope it is enqueued in") {
  Stream stream(device_at(0));
  const Recording recording;
  {
    const trace::WorkScope scope(stream, {.name = "named", .kind = trace::Kind::kernel});
    if (!stream.synchronous()) stream.enqueue([] {});
  }
  synchronize(stream);
  const std::vector<trace::Span> spans = trace::spans();
  REQUIRE(spans.size() == 1);
  CHECK(std::string(spans[0].work.name) == "named");
  CHECK(spans[0].work.kind == trace::Kind::kernel);
  CHECK(spans[0].ended > 0);
}

TEST_CASE("copies and fills are recorded in every mode") {
  support::needs_devices(2);
  const Device from = device_at(0), to = device_at(1);
  const Stream source = default_stream(from), destination = default_stream(to);
  MemoryBlock* here = allocate(source, 100);
  MemoryBlock* there = allocate(destination, 100);
  source.backend().fill_bytes(here->data, 3, 100, source.handle());
  copy_bytes({there->data, to, here->data, from, 100}, source, destination);  // looks at the link
  synchronize(destination);
  const Recording recording;
  source.backend().fill_bytes(here->data, 4, 100, source.handle());
  copy_bytes({there->data, to, here->data, from, 100}, source, destination);
  synchronize(destination);
  release(here);
  release(there);
  const std::vector<trace::Span> spans = trace::spans();
  REQUIRE(spans.size() == 2);
  CHECK(std::string(spans[0].work.name) == "fill");
  CHECK(spans[0].track == "default");
  CHECK(spans[1].work.kind == trace::Kind::copy);
  CHECK(spans[1].device == to);
  CHECK(spans[1].track == "copies");
  CHECK(spans[0].ended < spans[1].began);
}

TEST_CASE("copies into a device and copies out of it are on tracks of their own") {
  const Device device = device_at(0);
  const Stream stream = default_stream(device);
  MemoryBlock* there = allocate(stream, 100);
  std::vector<std::byte> host(100);
  const Recording recording;
  copy_bytes({there->data, device, host.data(), Device::cpu(), 100}, current_stream(Device::cpu()), stream);
  copy_bytes({host.data(), Device::cpu(), there->data, device, 100}, stream, current_stream(Device::cpu()));
  release(there);
  const std::vector<trace::Span> spans = trace::spans();
  std::vector<std::string> tracks;
  for (const trace::Span& span : spans)
    if (span.work.kind == trace::Kind::copy) tracks.push_back(span.track);
  CHECK(tracks == std::vector<std::string>{"copies", "copies out"});
}

TEST_CASE("a full trace counts what it leaves out, and a new one forgets") {
  Stream stream(device_at(0));
  const Recording recording(2);
  for (int i = 0; i < 5; ++i) const trace::Scope scope("host work");
  CHECK(trace::spans().size() == 2);
  CHECK(trace::dropped() == 3);
  CHECK(trace::spans()[0].device == Device::cpu());
  const auto late = std::make_unique<trace::Scope>("cut off");
  trace::start();
  CHECK(trace::spans().empty());
  CHECK(trace::dropped() == 0);
}

TEST_CASE("the file is what trace viewers read") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  Stream stream(device_at(2));
  const Recording recording;
  {
    const trace::Scope scope("a \"quoted\\name\"");
    stream.backend().fill_bytes(nullptr, 0, 0, stream.handle());
  }
  const trace::Scope open("unfinished");
  trace::write(path);
  const nlohmann::json file = nlohmann::json::parse(std::ifstream(path));
  const auto& events = file.at("traceEvents");
  const auto named = [&](const std::string& name) {
    const auto found = std::find_if(events.begin(), events.end(), [&](const auto& e) { return e.at("name") == name; });
    REQUIRE(found != events.end());
    return *found;
  };
  CHECK(named("a \"quoted\\name\"").at("ph") == "X");
  CHECK(named("a \"quoted\\name\"").at("dur").get<double>() >= 0);
  CHECK(named("unfinished").at("ph") == "B");
  CHECK(named("process_name").at("args").at("name") == "cpu");
  CHECK(file.at("otherData").at("dropped") == 0);
  CHECK_THROWS_AS(trace::write(folder / "absent/trace.json"), Error);
}
