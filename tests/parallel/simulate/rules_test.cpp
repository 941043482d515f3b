// What holds for every schedule: collectives, deadlocks, bounds, conservation, equal results.
#include <algorithm>
#include <random>

#include "lockstep/parallel/simulate/sweep.h"
#include "lockstep/parallel/simulate/trace.h"
#include "lockstep/runtime/error.h"
#include "machines.h"
#include "nlohmann/json.hpp"
#include "support/catch.h"

using namespace lockstep;
using namespace lockstep::simulate;
using namespace lockstep::simulate::tests;
using Catch::Matchers::Contains;

namespace {

void all_reduce(Recording& recording, int stream, int rank, int size, int thread = 0, const char* group = "world",
                std::int64_t bytes = 1'000'000) {
  recording.add_collective(thread, stream,
                           {.op = "all_reduce", .group = group, .bytes = bytes, .rank = rank, .size = size});
}

// Kernels, copies and waits for earlier events, drawn from a seed.
Recording random_recording(unsigned seed, int devices) {
  std::mt19937 draw(seed);
  const auto below = [&](std::size_t count) { return static_cast<int>(draw() % count); };
  const int threads = 1 + below(3);
  Recording recording = empty(devices, 2, threads);
  std::vector<EntryRef> events;
  for (int i = 0; i < 200; ++i) {
    const int thread = below(static_cast<std::size_t>(threads));
    const int stream = below(static_cast<std::size_t>(devices) * 2);
    switch (below(6)) {
      case 0:
        kernel(recording, stream, thread);
        break;
      case 1:
      case 2: {
        const int from = below(static_cast<std::size_t>(devices) + 1) - 1;
        const int to = (from + 2 + below(static_cast<std::size_t>(devices))) % (devices + 1) - 1;
        recording.add_copy(thread, stream, {from, to, 1 + below(1'000'000)});
        break;
      }
      case 3:
        events.push_back(record(recording, stream, thread));
        break;
      case 4:
        if (!events.empty()) wait(recording, stream, events[static_cast<std::size_t>(below(events.size()))], thread);
        break;
      default:
        if (!events.empty())
          recording.add(thread, {.kind = below(2) == 0 ? Kind::host_wait : Kind::after,
                                 .other = events[static_cast<std::size_t>(below(events.size()))]});
    }
  }
  return recording;
}

}  // namespace

TEST_CASE("simulate: a collective begins when its last rank is there, and ends for all at once") {
  const Machine machine = ideal(4);
  Recording recording = empty(4);
  for (int i = 0; i < 3; ++i) kernel(recording, 3);
  for (int i = 0; i < 4; ++i) all_reduce(recording, i, i, 4);
  const Result result = simulate::simulate(recording, machine);
  // A ring of 2(n - 1) steps of 1 us, and 2(n - 1)/n of the bytes.
  for (std::size_t e = 3; e < 7; ++e) {
    CHECK(result.entries[e].work_begin == 30'000);
    CHECK(result.entries[e].work_end == 30'000 + 6'000 + 1'500'000);
  }
  CHECK(result.devices.at(0).exposed == 1'506'000);
  CHECK(result.critical[static_cast<std::size_t>(Part::collective)] == 1'506'000);
  CHECK(result.critical[static_cast<std::size_t>(Part::kernel)] == 30'000);
}

TEST_CASE("simulate: the k-th collectives of a group belong together, ranks that were not recorded are not awaited") {
  Recording recording = empty(2, 2);
  // Rank 0 and 1 of 4, two groups in different order on streams of their own.
  all_reduce(recording, 0, 0, 4, 0, "a");
  all_reduce(recording, 1, 0, 4, 0, "b");
  all_reduce(recording, 3, 1, 4, 0, "b");
  all_reduce(recording, 2, 1, 4, 0, "a");
  CHECK(simulate::simulate(recording, ideal(4)).step() == 1'506'000);
  Recording one = empty(1);
  all_reduce(one, 0, 2, 4);
  CHECK(simulate::simulate(one, ideal(4)).step() == 1'506'000);
  CHECK(simulate::simulate(one, ideal(4), {.ranks = 2}).step() == 1'000 + 1'000'000);  // one exchange

  Recording other = empty(2);
  all_reduce(other, 0, 0, 2);
  all_reduce(other, 1, 1, 2, 0, "world", 5);
  CHECK_THROWS_WITH(simulate::simulate(other, ideal(2)),
                    Contains("all_reduce of 1000000 bytes") && Contains("all_reduce of 5 bytes") && Contains("rank 1"));
  CHECK_THROWS_WITH(simulate::simulate(recording, ideal(4), {.ranks = 2}), Contains("ranks 0 and 1"));
}

TEST_CASE("simulate: kernels beside a collective take longer, by the machine's share") {
  Machine machine = ideal(2);
  machine.collectives.kernel_slowdown = 0.25;
  Recording recording = empty(2, 2);
  all_reduce(recording, 1, 0, 2);
  kernel(recording, 0);
  kernel(recording, 2);  // of rank 1's device, whose collective was not recorded
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.entries[1].work_end == 12'500);
  CHECK(result.entries[2].work_end == 10'000);
  // A collective that ends while the kernel runs: 2 us beside it are 1.6 us of its work.
  Recording ending = empty(2, 2);
  all_reduce(ending, 1, 0, 2, 0, "world", 1'000);
  kernel(ending, 0);
  CHECK(simulate::simulate(ending, machine).entries[1].work_end == 2'000 + 8'400);
}

TEST_CASE("simulate: what kernels hide is not counted as exposed") {
  Recording recording = empty(2, 2);
  recording.add_copy(0, 1, {0, 1, 43'000});  // 50 us with its start
  for (int i = 0; i < 2; ++i) kernel(recording, 0);
  const Result result = simulate::simulate(recording, ideal(2));
  CHECK(result.devices.at(0).moves == 50'000);
  CHECK(result.devices.at(0).kernels == 20'000);
  CHECK(result.devices.at(0).exposed == 30'000);
  CHECK(result.devices.at(1).exposed == 50'000);
  CHECK(result.exposed() == 50'000);
}

TEST_CASE("simulate: a send meets its receive") {
  Machine machine = ideal(3);
  Recording recording = empty(3);
  kernel(recording, 2);
  recording.add_collective(0, 0, {.op = "send", .group = "w", .bytes = 9000, .rank = 0, .size = 3, .root = 1});
  recording.add_collective(0, 2, {.op = "recv", .group = "w", .bytes = 5000, .rank = 2, .size = 3, .root = 0});
  recording.add_collective(0, 0, {.op = "send", .group = "w", .bytes = 5000, .rank = 0, .size = 3, .root = 2});
  recording.add_collective(0, 1, {.op = "recv", .group = "w", .bytes = 9000, .rank = 1, .size = 3, .root = 0});
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.entries[1].work_end == result.entries[4].work_end);
  CHECK(result.entries[2].work_end == result.entries[3].work_end);
  CHECK(result.entries[3].work_begin == result.entries[1].work_end);
}

TEST_CASE("simulate: collectives in different orders are a deadlock, told as a cycle") {
  Recording recording = empty(2);
  all_reduce(recording, 0, 0, 2, 0, "a");
  all_reduce(recording, 0, 0, 2, 0, "b");
  all_reduce(recording, 1, 1, 2, 0, "b");
  all_reduce(recording, 1, 1, 2, 0, "a");
  CHECK_THROWS_WITH(simulate::simulate(recording, ideal(2)),
                    Contains("deadlock") && Contains("stream 0 of device 0 waits in all_reduce of group a") &&
                        Contains("for rank 1; stream 1 of device 1 waits in all_reduce of group b") &&
                        Contains("again stream 0"));
}

TEST_CASE("simulate: threads that wait for each other, and for work that never comes, are a deadlock") {
  Recording circle = empty(1, 1, 2);
  circle.add(0, {.kind = Kind::after, .other = {1, 1}});
  circle.add(0, {.kind = Kind::point});
  circle.add(1, {.kind = Kind::after, .other = {0, 1}});
  circle.add(1, {.kind = Kind::point});
  CHECK_THROWS_WITH(simulate::simulate(circle, ideal(1)),
                    Contains("thread 0 (thread0) waits in after 1:1; thread 1 (thread1) waits in after 0:1") &&
                        Contains("again thread 0"));
  // The stream waits for work of another that stands behind a wait for it.
  const Recording late = parse_recording(
      "lockstep-recording 1\nstream 0 host:0 a\nstream 1 host:0 b\nthread 0 host\nhost_wait 1:1\nrecord 0\n"
      "thread 1 other\nwait 1 0:1\nrecord 1\nend\n",
      "late.rec");
  CHECK_THROWS_WITH(simulate::simulate(late, ideal(1)),
                    Contains("late.rec: a deadlock") && Contains("thread 0 (host) waits in host_wait 1:1 (line 5)") &&
                        Contains("thread 1 (other) waits in wait 0:1 (line 8)") && Contains("again thread 0"));
  Recording alone = empty(2, 1, 2);
  all_reduce(alone, 0, 0, 2);
  all_reduce(alone, 0, 0, 2);
  all_reduce(alone, 1, 1, 2, 1);
  CHECK_THROWS_WITH(simulate::simulate(alone, ideal(2)), Contains("for rank 1, which never calls it"));
}

TEST_CASE("simulate: nothing is faster than its bounds, and each link carries what was sent over it") {
  const unsigned seed = GENERATE(range(0U, 60U));
  const int devices = 1 + static_cast<int>(seed % 5);
  Machine machine = ideal(devices);
  machine.host.kernel = machine.host.copy = kMicro;
  machine.edges = {5 * kMicro, 2 * kMicro, 5 * kMicro, kMicro};
  const Recording recording = random_recording(seed, devices);
  const Result result = simulate::simulate(recording, machine);

  std::vector<std::int64_t> sent(machine.links.size(), 0);
  std::vector<Nanoseconds> kernels(static_cast<std::size_t>(devices), 0);
  std::size_t e = 0;
  for (const RecordedThread& thread : recording.threads) {
    Nanoseconds before = 0;
    for (const Entry& entry : thread.entries) {
      const Step& step = result.entries[e++];
      CHECK(step.call_begin >= before);
      before = step.call_end;
      if (step.work_end != kNever && entry.kind != Kind::record)
        CHECK(step.work_begin >= step.call_end + 5'000);  // the start on an idle stream
      if (entry.kind == Kind::copy) {
        const Copy& copy = recording.copies[static_cast<std::size_t>(entry.detail)];
        const Route& route = machine.route(copy.source, copy.destination);
        for (const int link : route.path) sent[static_cast<std::size_t>(link)] += copy.bytes;
        if (!route.path.empty()) CHECK(step.work_end - step.work_begin >= kStart + copy.bytes);
      } else if (entry.kind == Kind::kernel) {
        CHECK(step.work_end - step.work_begin == 10'000);
        kernels[static_cast<std::size_t>(recording.streams[static_cast<std::size_t>(entry.stream)].device)] += 10'000;
      }
      if (entry.kind == Kind::wait) {
        std::size_t marked = static_cast<std::size_t>(entry.other.entry);
        for (int t = 0; t < entry.other.thread; ++t)
          marked += recording.threads[static_cast<std::size_t>(t)].entries.size();
        CHECK(result.entries[marked].work_end != kNever);
      }
    }
  }
  for (std::size_t i = 0; i < sent.size(); ++i) {
    CHECK(result.links[i].bytes == sent[i]);
    CHECK(result.links[i].busy <= result.total);
    CHECK(result.total >= sent[i] / (result.link_bytes_per_second[i] / 1'000'000'000));
  }
  for (std::size_t d = 0; d < kernels.size(); ++d) CHECK(result.devices.at(static_cast<int>(d)).kernels >= kernels[d]);
  Nanoseconds parts = 0;
  for (const Nanoseconds part : result.critical) parts += part;
  CHECK(parts == result.step());

  // The same again, to the nanosecond.
  const Result again = simulate::simulate(recording, machine, {.keep_rates = true});
  CHECK(again.total == result.total);
  for (std::size_t i = 0; i < result.entries.size(); ++i) {
    CHECK(again.entries[i].work_begin == result.entries[i].work_begin);
    CHECK(again.entries[i].work_end == result.entries[i].work_end);
  }
  CHECK(trace_json(recording, again) ==
        trace_json(recording, simulate::simulate(recording, machine, {.keep_rates = true})));
}

TEST_CASE("simulate: a stream's work is in order, and what waits comes after what it waits for") {
  const unsigned seed = GENERATE(range(0U, 20U));
  const Recording recording = random_recording(seed, 3);
  const Result result = simulate::simulate(recording, ideal(3));
  std::vector<std::vector<std::pair<Nanoseconds, Nanoseconds>>> engines(9);  // of each device, and its kernels
  std::size_t e = 0;
  for (const RecordedThread& thread : recording.threads)
    for (const Entry& entry : thread.entries) {
      const Step& step = result.entries[e++];
      if (entry.kind == Kind::kernel)
        engines[static_cast<std::size_t>(recording.streams[static_cast<std::size_t>(entry.stream)].device)]
            .emplace_back(step.work_begin, step.work_end);
      if (entry.kind != Kind::copy) continue;
      const Copy& copy = recording.copies[static_cast<std::size_t>(entry.detail)];
      if (copy.source == kHostMemory && copy.destination != kHostMemory)
        engines[static_cast<std::size_t>(3 + copy.destination)].emplace_back(step.work_begin, step.work_end);
      if (copy.source != kHostMemory && copy.destination == kHostMemory)
        engines[static_cast<std::size_t>(6 + copy.source)].emplace_back(step.work_begin, step.work_end);
    }
  for (auto& spans : engines) {  // one at a time
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i) CHECK(spans[i].first >= spans[i - 1].second);
  }
}

TEST_CASE("simulate: a trace has a row for each thread, stream and link") {
  Recording recording = empty(2);
  kernel(recording, 0);
  recording.add_copy(0, 0, {0, 1, 2'000'000});
  all_reduce(recording, 1, 0, 2);
  Machine machine = ideal(2);
  machine.host.kernel = 1.5 * kMicro;
  const Result result = simulate::simulate(recording, machine, {.keep_rates = true});
  const nlohmann::json trace = nlohmann::json::parse(trace_json(recording, result));
  CHECK(trace["otherData"]["predicted"] == true);
  const auto find = [&](const char* phase, const std::string& name, int process) {
    for (const nlohmann::json& event : trace["traceEvents"])
      if (event["ph"] == phase && event["name"] == name && event["pid"] == process) return event;
    return nlohmann::json();
  };
  CHECK(find("X", "add", 1)["dur"] == 1.5);
  CHECK(find("X", "add", 2)["ts"] == 1.5);
  CHECK(find("X", "add", 2)["dur"] == 10.0);
  CHECK(find("X", "copy device 0 to device 1", 2)["dur"] == 2007.0);
  CHECK(find("X", "all_reduce", 2)["tid"] == 1);
  CHECK(find("C", "device0.out", 3)["args"]["GB/s"] == 1.0);
  CHECK(find("C", "device0.out", 3)["ts"] == 18.5);
  CHECK(find("C", "device1.out", 3).is_null());
}

TEST_CASE("simulate: what a sweep is asked for") {
  CHECK(parse_sweep("devices=1..64") == std::vector<int>{1, 2, 4, 8, 16, 32, 64});
  CHECK(parse_sweep("devices=1..6") == std::vector<int>{1, 2, 4, 6});
  CHECK(parse_sweep("devices=2,3,8") == std::vector<int>{2, 3, 8});
  CHECK_THROWS_WITH(parse_sweep("ranks=3"), Contains("expected devices=") && Contains("'ranks=3'"));
  CHECK_THROWS_WITH(parse_sweep("devices=1,x"), Contains("got 'x'"));
  CHECK_THROWS_WITH(parse_sweep("devices=8..4"), Contains("smaller number first"));
  CHECK_THROWS_WITH(parse_sweep("devices=4,2"), Contains("ascend"));
  CHECK(path_for("step-{}.rec", 16) == "step-16.rec");
}

TEST_CASE("simulate: operations that share a kernel of this library are as fast as it") {
  const Machine machine = ideal(1);
  const auto seconds = [&](std::string_view name) {
    return kernel_seconds(machine.gpu_types[0], {.name = name, .dtype = "f32", .bytes_read = 1e9}, KernelSpeed::own);
  };
  for (const char* name : {"add", "relu", "gelu_grad", "maximum"}) CHECK(seconds(name) == seconds("unary"));
  for (const char* name : {"sum", "mean", "norm"}) CHECK(seconds(name) == seconds("reduce"));
  CHECK(seconds("argmax") == seconds("arg_reduce"));
  CHECK(seconds("normal") == seconds("random"));
  CHECK(seconds("unary") < seconds("reduce"));
  CHECK(seconds("reduce") < seconds("never heard of"));
}
