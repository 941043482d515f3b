// Slots: filling, refreshing what changed alone, reading during a refresh, gradients of mirrors.
#include "lockstep/tensor/nn/module_slots.h"

#include <cmath>
#include <thread>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using Catch::Matchers::Contains;
using support::device_name;

TEST_CASE("a refresh copies what changed, in runs, and nothing else") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  CHECK(slots.refresh(three_devices()).bytes == 2 * kAllBytes);
  CHECK(slots.refresh(three_devices()).bytes == 0);
  CHECK(net.a.on(three_devices()[2]).to_vector<double>() == Doubles{1, 2, 3});

  NoGrad no_grad;
  net.b.tensor().fill_(7);
  net.c.tensor().fill_(8);
  TransferStats stats = slots.refresh(three_devices());
  CHECK(stats.bytes == 2 * 3 * 8);
  CHECK(stats.copies == 2);  // b and c are neighbours: one run per device
  CHECK(net.b.on(three_devices()[1]).item<double>() == 7);

  net.a.tensor().fill_(1);
  net.c.tensor().fill_(1);
  CHECK(slots.refresh(three_devices()).copies == 4);  // not neighbours

  net.state.tensor().fill_(3);
  CHECK(slots.refresh(three_devices()).bytes == 2 * 2 * 8);
  CHECK(net.state.on(three_devices()[2]).to_vector<double>() == Doubles{3, 3});
}

TEST_CASE("a mirror that was itself written is refreshed") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  NoGrad no_grad;
  net.state.on(three_devices()[1]).fill_(9);
  CHECK(slots.refresh(three_devices()).bytes == 2 * 8);
  CHECK(net.state.on(three_devices()[1]).to_vector<double>() == Doubles{0, 0});
}

TEST_CASE("a mirror whose refresh failed on the device is refreshed again, and not read before") {
  if (default_stream(three_devices()[1]).synchronous()) return;
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  {
    NoGrad no_grad;
    net.a.tensor().fill_(7);
  }
  for (const Device device : three_devices()) synchronize(device);
  detail::host_faults().throw_in_task(1);
  CHECK(slots.refresh(three_devices()).bytes == 2 * 3 * 8);
  int failures = 0;
  for (const Device device : three_devices()) {
    for (int i = 0; i < 3; ++i) {
      try {
        synchronize(device);
      } catch (const DeviceError&) {
        ++failures;
      }
    }
  }
  CHECK(failures > 0);
  detail::host_faults().clear();
  CHECK_THROWS_AS(net.a.on(three_devices()[1]).to_vector<double>(), DeviceError);  // not what it held before
  CHECK(slots.refresh(three_devices()).bytes > 0);
  CHECK(net.a.on(three_devices()[1]).to_vector<double>() == Doubles{7, 7, 7});
  CHECK(net.a.on(three_devices()[2]).to_vector<double>() == Doubles{7, 7, 7});
  CHECK(slots.refresh(three_devices()).bytes == 0);
}

TEST_CASE("a raw write counts when it is announced") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  for (const Device device : three_devices()) synchronize(device);  // the host writes what copies may still be reading
  net.b.tensor().mutable_data<double>()[0] = 11;
  CHECK(slots.refresh(three_devices()).bytes == 2 * 8);
  CHECK(net.b.on(three_devices()[1]).item<double>() == 11);
}

TEST_CASE("the elements and the identity of a parameter survive its move into a slab") {
  ReplicatedNet net = net_on(three_devices()[0]);
  Tensor handle = net.a.tensor();
  Tensor y = (handle * handle).sum();  // saved before the move
  ModuleSlots(net).refresh(three_devices());
  CHECK(handle.to_vector<double>() == Doubles{1, 2, 3});
  CHECK(handle.data() == net.a.tensor().data());
  net.parameters();
  y.backward();
  CHECK(net.a.grad().to_vector<double>() == Doubles{2, 4, 6});
}

TEST_CASE("two modules that share parameters share their slots") {
  ReplicatedNet net = net_on(three_devices()[0]);
  struct Part : Module<Part> {
    Parameter c, own{f64_vector({1})};
    void members(Members& m) override { m("c", c), m("own", own); }
  } part;
  part.c = net.c;
  part.to(three_devices()[0]);
  ModuleSlots all(net), some(part);
  all.refresh(three_devices());
  CHECK(some.refresh(three_devices()).bytes == 2 * 8);  // its own parameter alone
  NoGrad no_grad;
  net.c.tensor().fill_(1);
  CHECK(some.refresh(three_devices()).bytes == 2 * 16);
  CHECK(all.refresh(three_devices()).bytes == 0);
}

TEST_CASE("placement is checked by name, moving drops mirrors") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  CHECK_THROWS_WITH(slots.check_placement(three_devices()[1]),
                    Contains("module must have its parameters and buffers on device " + device_name(1) +
                             " (devices[0]) but found 'a' "
                             "on device " +
                             device_name(0)));
  slots.refresh(three_devices());
  net.to(three_devices()[1]);
  CHECK_THROWS_WITH(net.a.on(three_devices()[2]),
                    Contains("'a'") && Contains(device_name(2)) && Contains("[" + device_name(1) + "]"));
  const std::vector<Device> moved{three_devices()[1], three_devices()[2]};
  CHECK(slots.refresh(moved).bytes == kAllBytes);
  CHECK(net.a.on(three_devices()[2]).to_vector<double>() == Doubles{1, 2, 3});
}

TEST_CASE("hooks of a replicated parameter see the sum, once") {
  const std::vector<Device> devices = GENERATE(from_range(support::device_sets()));
  const auto count = static_cast<double>(devices.size());
  ReplicatedNet net = net_on(devices[0]);
  ModuleSlots slots(net);
  slots.refresh(devices);
  Doubles seen;
  net.b.tensor().register_hook([&](Tensor& g) {
    seen.push_back(g.item<double>());
    g = g * 2.0;
  });
  Tensor total;
  for (Device device : devices) {
    Tensor part = (net.b.on(device) * 3.0).to(devices[0]);
    total = total.defined() ? total + part : part;
  }
  total.backward();
  CHECK(seen == Doubles{3 * count});
  CHECK(net.b.grad().item<double>() == 6 * count);
}

TEST_CASE("mirrors are differentiable twice") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots(net).refresh(three_devices());
  Tensor w = net.b.on(three_devices()[1]);
  Tensor y = (w * w * w).to(three_devices()[0]) + net.b.on(three_devices()[0]) * 2.0;
  Tensor first = grad(y, {net.b.tensor()}, {.create_graph = true})[0];
  CHECK(first.item<double>() == 3 * 16 + 2);
  first.backward();
  CHECK(net.b.grad().item<double>() == 6 * 4);
}

TEST_CASE("frozen parameters and no-grad mode give mirrors without an edge") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots(net).refresh(three_devices());
  net.b.set_requires_grad(false);
  CHECK_FALSE(net.b.on(three_devices()[1]).requires_grad());
  CHECK(net.a.on(three_devices()[1]).requires_grad());
  NoGrad no_grad;
  CHECK_FALSE(net.a.on(three_devices()[1]).requires_grad());
}

TEST_CASE("what was saved of a mirror is void after a refresh") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  Tensor w = net.b.on(three_devices()[1]);
  Tensor y = (w * w).to(three_devices()[0]);
  {
    NoGrad no_grad;
    net.b.tensor().fill_(1);
  }
  slots.refresh(three_devices());
  CHECK_THROWS_WITH(y.backward(), Contains("changed in place"));
}

TEST_CASE("a refresh waits for readers, with a deadline, and readers wait for a refresh") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  NoGrad no_grad;
  net.b.tensor().fill_(8);
  {
    ModuleSlots::ReadLease lease(slots, three_devices()[1]);
    CHECK_THROWS_AS(slots.refresh(three_devices(), Milliseconds(1)), TimeoutError);
    CHECK(net.b.on(three_devices()[1]).item<double>() == 4);  // untouched
  }
  CHECK(slots.refresh(three_devices()).bytes > 0);
  CHECK(net.b.on(three_devices()[1]).item<double>() == 8);

  // Readers never see half a refresh.
  std::atomic<bool> stop{false}, torn{false};
  std::thread reader([&] {
    NoGrad off;
    while (!stop) {
      ModuleSlots::ReadLease lease(slots, three_devices()[2]);
      const Device last = three_devices()[2];
      const double a = net.a.on(last).to_vector<double>()[0], b = net.b.on(last).item<double>();
      if (a != b && !(a == 1 && b == 8)) torn = true;
    }
  });
  for (int i = 0; i < 200; ++i) {
    net.a.tensor().fill_(i);
    net.b.tensor().fill_(i);
    slots.refresh(three_devices());
  }
  stop = true;
  reader.join();
  CHECK_FALSE(torn);
}

TEST_CASE("training one body from two calls at once throws and names it") {
  ReplicatedNet net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  ModuleSlots::TrainingClaim claim(slots);
  ModuleSlots::TrainingClaim nested(slots);  // the same call
  std::string message;
  std::thread([&] {
    try {
      ModuleSlots::TrainingClaim other(slots);
    } catch (const Error& error) {
      message = error.what();
    }
  }).join();
  CHECK_THAT(message, Contains("'a'") && Contains("one training call at a time"));
}

TEST_CASE("a module may go before the backward of what it computed") {
  Tensor y;
  {
    ReplicatedNet net = net_on(three_devices()[0]);
    ModuleSlots(net).refresh(three_devices());
    y = (net.b.on(three_devices()[1]) * 3.0).to(three_devices()[0]) + net.b.on(three_devices()[0]);
  }
  y.backward();
}
