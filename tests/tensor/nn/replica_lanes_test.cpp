// Where devices are linked by lines of their own, a refresh goes by several ways at once.
#include <atomic>
#include <map>
#include <thread>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/topology.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using support::devices_at;

namespace {

constexpr std::int64_t kLargeLane = 4'000'000;

struct LaneNet : Module<LaneNet> {
  Parameter first{zeros({kLargeLane})}, second{zeros({3})}, third{zeros({kLargeLane})};
  Buffer state{zeros({5})};
  void members(Members& m) override { m("first", first), m("second", second), m("third", third), m("state", state); }
};

// A ring of double lines, single ones across: home sends on four lanes. While it lives.
class Mesh {
 public:
  explicit Mesh(const std::vector<Device>& devices) {
    Links links(devices.size());
    for (std::size_t i = 0; i < devices.size(); ++i)
      for (std::size_t j = 0; j < devices.size(); ++j) {
        const std::size_t apart = (i + devices.size() - j) % devices.size();
        links.at(i, j) = {.speed = apart == 1 || apart + 1 == devices.size() ? 1 : 0.5, .own = true};
      }
    detail::pretend_links(devices, links);
  }
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh() { detail::forget_topologies(); }
};

// Faults are the host's.
bool may_fail() { return asynchronous() && properties(support::device_at(0)).host_memory; }

Tensor counted_lane(int from) { return arange(from, static_cast<double>(from + kLargeLane), 1, {.dtype = DType::f32}); }

void fill(const LaneNet& net, int round) {
  const NoGrad off;
  net.first.tensor().copy_(counted_lane(round));
  net.second.tensor().fill_(round);
  net.third.tensor().fill_(-round);
  net.state.tensor().fill_(10 * round);
}

}  // namespace

TEST_CASE("a refresh over several lanes brings everything to everybody") {
  support::needs_devices(6);
  const std::vector<Device> devices = devices_at({2, 0, 3, 1, 5});
  const Mesh mesh(devices);
  const auto found = topology(devices);
  REQUIRE(found->lanes.size() == 4);
  LaneNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  for (int round = 1; round <= 4; ++round) {
    fill(net, round);
    for (const Device device : devices) synchronize(device);
    trace::start();
    CHECK(slots.refresh(devices).bytes == 4 * (2 * kLargeLane + 3 + 5) * 4);
    // Readers at once, of every parameter, in another order than they arrive.
    for (std::size_t d = 1; d < devices.size(); ++d) {
      CAPTURE(d, round);
      CHECK(equal(net.third.on(devices[d]).to(Device::cpu()), full({kLargeLane}, -round)));
      CHECK(equal(net.first.on(devices[d]).to(Device::cpu()), counted_lane(round)));
      CHECK(net.second.on(devices[d]).to_vector<float>() == std::vector<float>(3, static_cast<float>(round)));
      CHECK(net.state.on(devices[d]).to_vector<float>() == std::vector<float>(5, static_cast<float>(10 * round)));
    }
    for (const Device device : devices) synchronize(device);
    trace::stop();
    if (!asynchronous() || !reach_each_other(devices)) continue;
    std::map<std::pair<Device, Device>, std::size_t> copied;
    for (const trace::Span& span : trace::spans())
      if (span.work.kind == trace::Kind::copy && !span.device.is_cpu() && span.work.bytes != (64 << 10))
        copied[{span.work.source, span.device}] += span.work.bytes;
    for (const Lane& lane : found->lanes)
      for (std::size_t i = 1; i < devices.size(); ++i) CHECK(copied.count({devices[lane.from[i]], devices[i]}) == 1);
    CHECK(copied[{devices[0], devices[1]}] < std::size_t{2} * kLargeLane * 4);  // a part of it
  }
}

// Of the first n pieces the last ones of all lanes have to be there, whichever comes last.
TEST_CASE("who reads waits for the pieces of all lanes") {
  support::needs_devices(6);
  if (!may_fail()) return;
  const std::vector<Device> devices = devices_at({0, 1, 2, 3, 4});
  const Mesh mesh(devices);
  LaneNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  for (int hanging = 1; hanging <= 6; ++hanging) {
    fill(net, hanging);
    for (const Device device : devices) synchronize(device);
    detail::host_faults().clear();
    detail::host_faults().hang_task(hanging);
    slots.refresh(devices);
    Event read;
    const Tensor seen = net.third.on(devices[4]) * 1.0;
    read.record(current_stream(devices[4]));
    const bool early = read.query();  // whichever piece hangs, something has not arrived
    detail::host_faults().clear();
    CHECK_FALSE(early);
    CHECK(equal(seen.to(Device::cpu()), full({kLargeLane}, -hanging)));
  }
}

TEST_CASE("pieces of lanes that fail are told, and copied again") {
  support::needs_devices(6);
  if (!may_fail()) return;
  const std::vector<Device> devices = devices_at({0, 1, 2, 3, 4});
  const Mesh mesh(devices);
  LaneNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  for (int failing = 1; failing <= 6; ++failing) {
    fill(net, failing);
    for (const Device device : devices) synchronize(device);
    detail::host_faults().throw_in_task(failing);
    slots.refresh(devices);
    int failures = 0;
    for (int i = 0; i < 12; ++i)
      for (const Device device : devices) try {
          synchronize(device);
        } catch (const DeviceError&) {
          ++failures;
        }
    detail::host_faults().clear();
    CHECK(failures > 0);
    int told = 0;
    for (std::size_t d = 1; d < devices.size(); ++d)
      for (const Parameter* parameter : {&net.first, &net.third}) try {
          (void)parameter->on(devices[d]).to(Device::cpu());
        } catch (const DeviceError&) {
          ++told;
        }
    CHECK(told > 0);
    CHECK(slots.refresh(devices).bytes > 0);
    for (std::size_t d = 1; d < devices.size(); ++d) {
      CHECK(equal(net.first.on(devices[d]).to(Device::cpu()), counted_lane(failing)));
      CHECK(equal(net.third.on(devices[d]).to(Device::cpu()), full({kLargeLane}, -failing)));
    }
  }
}

TEST_CASE("the first pieces have arrived when the last ones of each lane have") {
  if (!may_fail()) return;
  const Device device = support::device_at(0);
  const Stream slow(device), fast(device), reader(device), other(device);
  std::atomic<bool> go = false;
  slow.enqueue([&go] {
    while (!go) std::this_thread::yield();
  });
  SlotRefresh refresh;
  refresh.arrives(fast, 1);
  refresh.arrives(slow, 0);
  for (int i = 0; i < 3; ++i) refresh.arrives(fast, 1);
  refresh.await(other, 1);
  synchronize(other);
  refresh.await(other, 5);
  refresh.await(reader, 5);
  Event read, read_later;
  read.record(reader);
  read_later.record(other);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(refresh.failed(1));
  CHECK(refresh.known(1));
  CHECK_FALSE(refresh.failed(5));
  CHECK_FALSE(refresh.known(5));
  CHECK_FALSE(read.query());
  CHECK_FALSE(read_later.query());
  go = true;
  synchronize(reader);
  synchronize(other);
  CHECK_FALSE(refresh.failed(5));
  CHECK(refresh.known(5));
}
