// Schedules whose times have closed forms, to the nanosecond.
#include "machines.h"
#include "support/catch.h"

using namespace lockstep;
using namespace lockstep::simulate;
using namespace lockstep::simulate::tests;

TEST_CASE("simulate: one copy takes its start and its bytes at the rate of the link") {
  Recording recording = empty(2);
  recording.add_copy(0, 0, {0, 1, 1'000'000});
  const Result result = simulate::simulate(recording, ideal(2));
  CHECK(result.step() == kStart + 1'000'000);
  CHECK(result.critical[static_cast<std::size_t>(Part::copy)] == kStart + 1'000'000);
  CHECK(result.links[0].bytes == 1'000'000);
  CHECK(result.links[0].busy == 1'000'000);
  CHECK(result.links[1].bytes == 0);
  CHECK(result.links[3].bytes == 1'000'000);
}

TEST_CASE("simulate: a star sends one copy after the other through the engine of its home") {
  const int devices = GENERATE(2, 5, 8);
  Recording recording = empty(devices);
  for (int i = 1; i < devices; ++i) recording.add_copy(0, 0, {0, i, 123'456});
  CHECK(simulate::simulate(recording, ideal(devices)).step() == (devices - 1) * (kStart + 123'456));
}

namespace {
// Copies of `pieces` pieces along 0, 1, ..., each stage on the stream of its source.
Recording chain(int devices, int pieces, std::int64_t bytes) {
  Recording recording = empty(devices);
  for (int piece = 0; piece < pieces; ++piece)
    for (int i = 0; i + 1 < devices; ++i) {
      recording.add_copy(0, i, {i, i + 1, bytes / pieces});
      if (i + 2 < devices) wait(recording, i + 1, record(recording, i));
    }
  return recording;
}
}  // namespace

TEST_CASE("simulate: a chain of pieces takes (k + n - 2)(a + S / kB)") {
  const int devices = GENERATE(2, 3, 8);
  const int pieces = GENERATE(1, 4, 10);
  const Result result = simulate::simulate(chain(devices, pieces, 1'000'000), ideal(devices));
  CHECK(result.step() == (pieces + devices - 2) * (kStart + 1'000'000 / pieces));
}

TEST_CASE("simulate: a binary tree takes two copies a level") {
  // 0 sends to 1 and 2, 1 to 3 and 4, 2 to 5 and 6: the last is ready after four copies.
  Recording recording = empty(7);
  for (int i = 0; i < 3; ++i)
    for (int child = 2 * i + 1; child <= 2 * i + 2; ++child) {
      recording.add_copy(0, i, {i, child, 50'000});
      wait(recording, child, record(recording, i));
    }
  CHECK(simulate::simulate(recording, ideal(7)).step() == 4 * (kStart + 50'000));
}

TEST_CASE("simulate: a ring all-reduce made of copies takes 2(n - 1)(a + S / nB)") {
  const int devices = GENERATE(2, 4, 8);
  Recording recording = empty(devices);
  for (int round = 0; round < 2 * (devices - 1); ++round) {
    std::vector<EntryRef> sent;
    for (int i = 0; i < devices; ++i) {
      recording.add_copy(0, i, {i, (i + 1) % devices, 800'000 / devices});
      sent.push_back(record(recording, i));
    }
    for (int i = 0; i < devices; ++i) wait(recording, (i + 1) % devices, sent[static_cast<std::size_t>(i)]);
  }
  CHECK(simulate::simulate(recording, ideal(devices)).step() == 2 * (devices - 1) * (kStart + 800'000 / devices));
}

TEST_CASE("simulate: the links' rates are shared max-min fair") {
  // Two copies leave 0, for 1 and 2, one leaves 3 for 2: 0's port gives half to each; what 2's port has left over is
  // the third's. Several engines, so that the copies run side by side.
  Machine machine = ideal(4);
  machine.gpu_types[0].peer_engines = 2;
  machine.links[5].bytes_per_second = 2'000'000'000;  // into 2
  Recording recording = empty(4, 2);
  recording.add_copy(0, 0, {0, 1, 1'000'000});
  recording.add_copy(0, 1, {0, 2, 1'000'000});
  recording.add_copy(0, 6, {3, 2, 1'000'000});
  const Result result = simulate::simulate(recording, machine, {.keep_rates = true});
  CHECK(result.entries[2].work_end == kStart + 1'000'000);  // its own port's rate, not more
  CHECK(result.entries[0].work_end == kStart + 2'000'000);
  CHECK(result.entries[1].work_end == kStart + 2'000'000);
  CHECK(result.rates.front().time == kStart);

  // Into a port of one byte a nanosecond the three share otherwise: 500 each way until the third is done.
  machine.links[5].bytes_per_second = 1'000'000'000;
  const Result tight = simulate::simulate(recording, machine);
  CHECK(tight.entries[0].work_end == kStart + 2'000'000);
  CHECK(tight.entries[2].work_end == kStart + 2'000'000);

  // A shorter one leaves its share to the other: 0.4 MB at half the rate, then the rest alone.
  Recording shorter = empty(3, 2);
  shorter.add_copy(0, 0, {0, 1, 400'000});
  shorter.add_copy(0, 1, {0, 2, 1'000'000});
  const Result after = simulate::simulate(shorter, machine);
  CHECK(after.entries[0].work_end == kStart + 800'000);
  CHECK(after.entries[1].work_end == kStart + 1'400'000);
}

TEST_CASE("simulate: the sum of three equal shares is not more than the link") {
  Machine machine = ideal(4);
  machine.gpu_types[0].peer_engines = 3;
  Recording recording = empty(4, 3);
  for (int i = 0; i < 3; ++i) recording.add_copy(0, i, {0, i + 1, 1'000'000});
  const Nanoseconds step = simulate::simulate(recording, machine).step();
  CHECK(step >= kStart + 3'000'000);
  CHECK(step <= kStart + 3'000'001);
}

TEST_CASE("simulate: a link that a path passes twice gives half its rate") {
  Machine machine = ideal(2);
  const int host = 4;
  machine.links[host].bytes_per_second = 1e9;
  machine.routes[machine.place(0) * 3 + machine.place(1)] = {RouteKind::staged, {0, host, host, 3}, 7e-6, 100'000};
  Recording recording = empty(2);
  recording.add_copy(0, 0, {0, 1, 1'000'000});
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.step() == kStart + 2'000'000 + 100'000);
  CHECK(result.links[host].bytes == 2'000'000);
}

TEST_CASE("simulate: a staged copy holds the engine down of its source and the engine up of its destination") {
  Machine machine = ideal(3);
  machine.routes[machine.place(0) * 4 + machine.place(1)] = {RouteKind::staged, {0, 6, 3}, 7e-6, 0};
  Recording recording = empty(3, 2);
  recording.add_copy(0, 0, {0, 1, 1'000'000});
  recording.add_copy(0, 1, {0, kHostMemory, 1'000'000});  // waits for 0's way down
  recording.add_copy(0, 3, {kHostMemory, 1, 1'000'000});  // waits for 1's way up
  recording.add_copy(0, 4, {kHostMemory, 2, 1'000'000});  // waits for nothing
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.entries[0].work_end == kStart + 1'000'000);
  CHECK(result.entries[1].work_begin == kStart + 1'000'000);
  CHECK(result.entries[2].work_begin == kStart + 1'000'000);
  CHECK(result.entries[3].work_end == kStart + 1'000'000);
}

TEST_CASE("simulate: kernels of a device run one after another, those of two side by side") {
  Recording recording = empty(2, 2);
  for (const int stream : {0, 1, 2}) kernel(recording, stream);
  const Result result = simulate::simulate(recording, ideal(2));
  CHECK(result.entries[0].work_end == 10'000);
  CHECK(result.entries[1].work_begin == 10'000);
  CHECK(result.entries[2].work_end == 10'000);
  CHECK(result.step() == 20'000);
  CHECK(result.devices.at(0).kernels == 20'000);
  CHECK(result.devices.at(1).kernels == 10'000);
}

TEST_CASE("simulate: dependent kernels of a stream have the gap of the type between them") {
  Machine machine = ideal(1);
  machine.gpu_types[0].kernel_gap = kMicro;
  Recording recording = empty(1);
  for (int i = 0; i < 5; ++i) kernel(recording, 0);
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.step() == 5 * 10'000 + 4 * 1'000);
  CHECK(result.critical[static_cast<std::size_t>(Part::kernel)] == 50'000);
  CHECK(result.critical[static_cast<std::size_t>(Part::latency)] == 4'000);
}

TEST_CASE("simulate: calls that take longer than the kernels set the pace") {
  Machine machine = ideal(2);
  machine.host.kernel = 25 * kMicro;
  machine.edges.start = 5 * kMicro;
  Recording recording = empty(1);
  for (int i = 0; i < 4; ++i) kernel(recording, 0);
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.step() == 4 * 25'000 + 5'000 + 10'000);
  CHECK(result.critical[static_cast<std::size_t>(Part::host)] == 100'000);
  machine.host.factor = 2;
  CHECK(simulate::simulate(recording, machine).step() == 4 * 50'000 + 15'000);
  // Threads beside each other share nothing, but under a lock.
  Recording two = empty(2, 1, 2);
  for (int i = 0; i < 4; ++i) kernel(two, 0, 0), kernel(two, 1, 1);
  CHECK(simulate::simulate(two, machine).step() == 4 * 50'000 + 15'000);
  for (RecordedThread& thread : two.threads) thread.one_call_at_a_time = true;
  CHECK(simulate::simulate(two, machine).step() == 8 * 50'000 + 15'000);
}

TEST_CASE("simulate: an event edge takes the time of its kind, and none within a stream") {
  Machine machine = ideal(2);
  machine.edges.same_device = 2 * kMicro;
  machine.edges.cross_device = 5 * kMicro;
  const auto with = [&](int waiting) {
    Recording recording = empty(2, 2);
    kernel(recording, 0);
    wait(recording, waiting, record(recording, 0));
    kernel(recording, waiting);
    return simulate::simulate(recording, machine).step();
  };
  CHECK(with(0) == 20'000);
  CHECK(with(1) == 22'000);
  CHECK(with(2) == 25'000);
}

TEST_CASE("simulate: a thread waits for work, and for calls of other threads") {
  Machine machine = ideal(2);
  machine.host.kernel = 3 * kMicro;
  machine.host.synchronize = 4 * kMicro;
  machine.host.wait = kMicro;
  machine.edges.host = 2 * kMicro;
  Recording recording = empty(2, 1, 2);
  kernel(recording, 0);
  const EntryRef event = record(recording, 0);
  recording.add(0, {.kind = Kind::host_wait, .other = event});
  kernel(recording, 0);
  const EntryRef point = recording.add(0, {.kind = Kind::point});
  recording.add(1, {.kind = Kind::after, .other = point});
  kernel(recording, 1, 1);
  const Result result = simulate::simulate(recording, machine);
  // 3 to call, 10 to run, 2 until it is seen, 4 to wake up, 3 to call.
  CHECK(result.entries[3].call_end == 22'000);
  CHECK(result.entries[6].call_begin == 22'000);
  CHECK(result.step() == 35'000);
  // What is done already costs a call.
  Recording late = empty(1);
  const EntryRef done = record(late, 0);
  for (int i = 0; i < 3; ++i) kernel(late, 0);
  late.add(0, {.kind = Kind::host_wait, .other = done});
  CHECK(simulate::simulate(late, machine).entries[4].call_end == 3 * 3'000 + 1'000);
}

TEST_CASE("simulate: a step lies between the last two marks, with all that was issued before them") {
  Machine machine = ideal(1);
  Recording recording = empty(1);
  for (int step = 0; step < 3; ++step) {
    mark(recording);
    for (int i = 0; i <= step; ++i) kernel(recording, 0);
  }
  mark(recording);
  kernel(recording, 0);
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.steps == 4);
  CHECK(result.begin == 30'000);
  CHECK(result.step() == 30'000);
  CHECK(result.devices.at(0).kernels == 30'000);
  CHECK(result.total == 70'000);
}

TEST_CASE("simulate: each call costs what the machine says of its kind") {
  Machine machine = ideal(1);
  HostCosts& host = machine.host;
  host.kernel = 1 * kMicro;
  host.copy = 2 * kMicro;
  host.fill = 3 * kMicro;
  host.record = 4 * kMicro;
  host.wait = 5 * kMicro;
  host.collective = 6 * kMicro;
  host.task = 7 * kMicro;
  host.item = 8 * kMicro;
  host.calls["set_device"] = 9 * kMicro;
  host.other_call = 10 * kMicro;
  host.framework_kernel = 11 * kMicro;
  host.framework_step = 12 * kMicro;
  Recording recording = empty(1, 2);
  kernel(recording, 0);
  recording.add_copy(0, 0, {0, kHostMemory, 1});
  recording.add(0, {.kind = Kind::fill, .stream = 0, .bytes = 8});
  wait(recording, 1, record(recording, 0));
  recording.add_collective(0, 1, {.op = "all_reduce", .group = "w", .bytes = 8});
  recording.add(0, {.kind = Kind::task, .stream = 0, .name = "read"});
  recording.add(0, {.kind = Kind::item, .bytes = 4});
  recording.add(0, {.kind = Kind::call, .name = "set_device"});
  recording.add(0, {.kind = Kind::call, .name = "else"});
  recording.add(0, {.kind = Kind::point});
  mark(recording);
  const auto costs = [&](const simulate::Options& options) {
    const Result result = simulate::simulate(recording, machine, options);
    std::vector<Nanoseconds> microseconds;
    for (const Step& step : result.entries) microseconds.push_back((step.call_end - step.call_begin) / 1000);
    return microseconds;
  };
  CHECK(costs({}) == std::vector<Nanoseconds>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0});
  CHECK(costs({.framework = true}) == std::vector<Nanoseconds>{11, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 12});
}

TEST_CASE("simulate: copies within a device, fills and host functions take their turn") {
  Machine machine = ideal(1);
  machine.edges.host = 4 * kMicro;
  Recording recording = empty(1, 2);
  kernel(recording, 0);
  recording.add_copy(0, 1, {0, 0, 440'000'000});  // read and written at 88% of 1 TB/s: 1 ms, behind the kernel
  recording.add(0, {.kind = Kind::task, .stream = 1, .name = "read"});
  recording.add(0, {.kind = Kind::fill, .stream = 1, .bytes = 880'000'000});
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.entries[1].work_begin == 10'000);
  CHECK(result.entries[1].work_end == 10'000 + 1'010'000);
  CHECK(result.entries[2].work_end == 1'024'000);
  CHECK(result.entries[3].work_end == 1'024'000 + 1'010'000);
  CHECK(result.devices.at(0).kernels == 10'000 + 2 * 1'010'000);
  CHECK(result.devices.at(0).moves == 0);
}

TEST_CASE("simulate: hosts have links of their own, and a device its own speed") {
  Machine machine = ideal(2);
  machine.network.hosts = 2;
  machine.devices[1].speed = 2;
  Recording recording = empty(4, 2);
  recording.add_copy(0, 0, {0, 1, 1'000'000});
  recording.add_copy(0, 4, {2, 3, 1'000'000});
  recording.add_copy(0, 5, {2, kHostMemory, 500'000});
  kernel(recording, 6);
  kernel(recording, 7);
  const Result result = simulate::simulate(recording, machine);
  CHECK(result.entries[0].work_end == kStart + 1'000'000);
  CHECK(result.entries[1].work_end == kStart + 1'500'000);  // the port gives both ways half until the shorter ends
  CHECK(result.links[0].bytes == 1'000'000);
  CHECK(result.links[5].bytes == 1'500'000);
  CHECK(result.link_names[5] == "host1.device0.out");
  CHECK(result.entries[4].work_end == 10'000);
  recording.add_copy(0, 4, {1, 2, 1});
  CHECK_THROWS_WITH(simulate::simulate(recording, machine), Catch::Matchers::Contains("from device 1 to 2"));
}
