// A refresh arrives piece by piece, in the order in which a forward needs the parameters: who reads one waits for what
// holds it, and for no more. Who writes waits for what is still being copied from there.
#include <thread>

#include "lockstep/kernels/api.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/tensor/io/dlpack.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using support::device_at;
using support::devices_at;

namespace {

constexpr std::int64_t kLargeRefresh = 400'000;

struct DeepRefresh : Module<DeepRefresh> {
  Parameter first{zeros({kLargeRefresh})};
  Parameter narrow{zeros({7}, {.dtype = DType::f64})};  // in another slab
  Parameter second{zeros({kLargeRefresh})}, third{zeros({kLargeRefresh})};
  Buffer state{zeros({5})};
  void members(Members& m) override {
    m("first", first), m("narrow", narrow), m("second", second), m("third", third), m("state", state);
  }
};

const Slot& slot_of(const Parameter& parameter, Device device) { return *parameter.body()->slot(ordinal(device)); }

// The refresh of two devices, of which the last piece hangs: begins when it does.
class LastPieceHangs {
 public:
  LastPieceHangs(const ModuleSlots& slots, const DeepRefresh& net) : devices_(devices_at({0, 1})) {
    slots.refresh(devices_);
    finish(devices_);
    const NoGrad off;
    for (const Parameter& each :
         {net.first, net.narrow, net.second, net.third, static_cast<const Parameter&>(net.state)})
      each.tensor().fill_(7);
    finish(devices_);
    detail::host_faults().clear();
    const std::size_t pieces = slot_of(net.third, devices_[1]).refresh->pieces();
    detail::host_faults().hang_task(static_cast<int>(pieces));
    slots.refresh(devices_);
    CHECK(slot_of(net.third, devices_[1]).refresh->pieces() == pieces);
    const Deadline patience = Deadline::after(Milliseconds(60'000));
    const auto struck =
        [this] {  // logical devices of one GPU have its streams: they are known by the first one's number
          const auto on = [](Device device) { return detail::host_faults().struck(device.index()); };
          return on(devices_[0]) || on(devices_[1]);
        };
    while (!struck() && !patience.passed()) std::this_thread::yield();
  }
  void let_go() {
    detail::host_faults().clear();
    finish(devices_);
  }
  ~LastPieceHangs() { detail::host_faults().clear(); }

 private:
  std::vector<Device> devices_;
};

bool soon(const Event& event) {
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  while (!event.query() && !patience.passed()) std::this_thread::yield();
  return event.query();
}

bool still_waits(const Event& event) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return !event.query();
}

Event after_all_on(Device device) {
  Event event;
  event.record(current_stream(device));
  return event;
}

}  // namespace

TEST_CASE("pieces of a refresh come in the order in which a forward needs the parameters") {
  support::needs_devices(4);
  if (!asynchronous()) return;
  for (const std::vector<Device>& devices : {devices_at({0, 1}), devices_at({0, 1, 2, 3})}) {
    CAPTURE(devices.size());
    DeepRefresh net;
    net.to(devices[0]);
    const ModuleSlots slots(net);
    slots.refresh(devices);
    for (std::size_t d = 1; d < devices.size(); ++d) {
      const auto pieces = [&](const Parameter& parameter) { return slot_of(parameter, devices[d]).pieces; };
      CHECK(pieces(net.state) == 1);  // home is about to write it
      CHECK(pieces(net.state) < pieces(net.first));
      CHECK(pieces(net.first) < pieces(net.narrow));
      CHECK(pieces(net.narrow) <= pieces(net.second));
      CHECK(pieces(net.second) < pieces(net.third));
      CHECK(pieces(net.third) == slot_of(net.third, devices[d]).refresh->pieces());
      CHECK(slot_of(net.first, devices[d]).refresh == slot_of(net.third, devices[d]).refresh);
    }
    finish(devices);
  }
}

TEST_CASE("the first layer of a mirror computes while the last one is on its way") {
  support::needs_devices(2);
  if (!asynchronous()) return;
  DeepRefresh net;
  net.to(device_at(0));
  const ModuleSlots slots(net);
  const NoGrad off;
  LastPieceHangs hangs(slots, net);
  const Tensor twice = net.first.on(device_at(1)) * 2.0, small = net.narrow.on(device_at(1)) * 3.0;
  CHECK(soon(after_all_on(device_at(1))));
  // Home does not wait either.
  const Tensor at_home = net.third.on(device_at(0)) * 4.0;
  CHECK(soon(after_all_on(device_at(0))));
  const Tensor late = net.third.on(device_at(1)) * 5.0;
  CHECK(still_waits(after_all_on(device_at(1))));
  hangs.let_go();
  CHECK(equal(twice.to(Device::cpu()), full({kLargeRefresh}, 14)));
  CHECK(equal(small.to(Device::cpu()), full({7}, 21, {.dtype = DType::f64})));
  CHECK(equal(at_home.to(Device::cpu()), full({kLargeRefresh}, 28)));
  CHECK(equal(late.to(Device::cpu()), full({kLargeRefresh}, 35)));
}

TEST_CASE("home is not written while a mirror is filled from it") {
  support::needs_devices(2);
  if (!asynchronous()) return;
  const NoGrad off;
  const Tensor elsewhere = ones({kLargeRefresh}, {.device = device_at(1)});
  const auto written = [](const auto& write) {
    DeepRefresh net;
    net.to(device_at(0));
    const ModuleSlots slots(net);
    slots.refresh(devices_at({0, 1}));  // it moves into its slab
    const Out kept = net.third.tensor().out();
    LastPieceHangs hangs(slots, net);
    write(net, slots, kept);
    CHECK(still_waits(after_all_on(device_at(0))));
    hangs.let_go();
    CHECK(equal(net.third.on(device_at(1)).to(Device::cpu()), full({kLargeRefresh}, 7)));
    CHECK(equal(net.third.tensor().to(Device::cpu()), full({kLargeRefresh}, 1)));
  };
  written([](DeepRefresh& net, const ModuleSlots&, Out) { net.third.tensor().fill_(1); });
  written([&](DeepRefresh& net, const ModuleSlots&, Out) { net.third.tensor().copy_(elsewhere); });
  written([](DeepRefresh& net, const ModuleSlots&, Out) { net.third.tensor().mul_(1.0 / 7).sub_(0).fill_(1); });
  // On a stream of one's own.
  written([](DeepRefresh& net, const ModuleSlots&, Out) {
    const Stream side(device_at(0));
    const StreamScope scope(side);
    net.third.tensor().fill_(1);
    default_stream(device_at(0)).wait_for(side);
  });
  // By another library, on a stream that it has named.
  written([](DeepRefresh& net, const ModuleSlots&, Out kept) {
    const Stream theirs(device_at(0));
    auto* managed = to_dlpack(net.third.tensor(), {.stream = theirs});
    kernels::launch(theirs, FillArgs{kept, 1});
    managed->deleter(managed);
    default_stream(device_at(0)).wait_for(theirs);
  });
  // Who has had the address all along may write when a replica's call has ended.
  written([](DeepRefresh&, const ModuleSlots& slots, Out kept) {
    { const ModuleSlots::ReadLease lease(slots, device_at(0)); }
    kernels::launch(default_stream(device_at(0)), FillArgs{kept, 1});
  });
}

TEST_CASE("a mirror that is read, written, refreshed and dropped keeps its order while others are filled from it") {
  support::needs_devices(4);
  const std::vector<Device> devices = devices_at({0, 1, 2, 3});
  const NoGrad off;
  Tensor expected;
  for (int round = 1; round <= 4; ++round) {
    DeepRefresh net;
    net.to(devices[0]);
    const ModuleSlots slots(net);
    for (int step = 1; step <= 3; ++step) {
      net.first.tensor().fill_(step);
      net.third.tensor().fill_(10 * step);
      net.state.tensor().fill_(step);
      slots.refresh(devices);
      for (const Device device : devices) {
        net.state.on(device).add_(1.0);  // as a norm does
        if (device != devices[0]) net.first.on(device).mul_(2.0);
      }
      CHECK(equal(net.third.on(devices[3]).to(Device::cpu()), full({kLargeRefresh}, 10 * step)));
      CHECK(equal(net.first.on(devices[2]).to(Device::cpu()), full({kLargeRefresh}, 2 * step)));
      CHECK(equal(net.state.on(devices[3]).to(Device::cpu()), full({5}, step + 1)));
      slots.refresh(devices);  // the mirrors were written
      CHECK(equal(net.first.on(devices[1]).to(Device::cpu()), full({kLargeRefresh}, step)));
    }
  }  // the memory goes while pieces may be under way, and is used again
}

TEST_CASE("a mirror that is read keeps others from no refresh, and is named when it is read for too long") {
  support::needs_devices(4);
  const std::vector<Device> devices = devices_at({0, 1, 2, 3});
  DeepRefresh net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  const NoGrad off;
  net.first.tensor().fill_(4);
  const auto first_on = [&](Device device) { return net.first.on(device).to(Device::cpu()); };
  {
    const ModuleSlots::ReadLease lease(slots, devices[2]);
    CHECK_THROWS_WITH(slots.refresh(devices, Milliseconds(1)),
                      Catch::Matchers::Contains("the replica on " + to_string(devices[2]) + " ") &&
                          Catch::Matchers::Contains("1 still read it"));
    CHECK(equal(first_on(devices[1]), full({kLargeRefresh}, 4)));
    CHECK(equal(first_on(devices[3]), full({kLargeRefresh}, 4)));
    CHECK(equal(first_on(devices[2]), zeros({kLargeRefresh})));
  }
  CHECK(slots.refresh(devices).copies == 1);
  CHECK(equal(first_on(devices[2]), full({kLargeRefresh}, 4)));
}
