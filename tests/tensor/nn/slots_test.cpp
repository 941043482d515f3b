// Slots: filling, refreshing what changed alone, reading during a refresh, gradients of mirrors.
#include "lockstep/tensor/nn/slots.h"

#include <cmath>
#include <thread>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_name;

namespace {

using Doubles = std::vector<double>;
const std::vector<Device>& three_devices() {
  static const std::vector<Device> made = support::first_devices(3);
  return made;
}

Tensor values(Doubles v, Device device = Device::cpu()) {
  const auto n = static_cast<std::int64_t>(v.size());
  return from_data(v, {n}, {.dtype = DType::f64, .device = device});
}

struct Net : Module<Net> {
  Parameter a{values({1, 2, 3})}, b{values({4})}, c{values({5, 6})};
  Parameter narrow{ones({7}, {.dtype = DType::f32})};
  Buffer state{values({0, 0})};
  void members(Members& m) override { m("a", a), m("b", b), m("c", c), m("narrow", narrow), m("state", state); }
};
constexpr std::uint64_t kAllBytes = (3 + 1 + 2 + 2) * 8 + 7 * 4;

Net net_on(Device device) {
  Net net;
  net.to(device);
  return net;
}

}  // namespace

TEST_CASE("a refresh copies what changed, in runs, and nothing else") {
  Net net = net_on(three_devices()[0]);
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
  Net net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  NoGrad no_grad;
  net.state.on(three_devices()[1]).fill_(9);
  CHECK(slots.refresh(three_devices()).bytes == 2 * 8);
  CHECK(net.state.on(three_devices()[1]).to_vector<double>() == Doubles{0, 0});
}

TEST_CASE("a mirror whose refresh failed on the device is refreshed again, and not read before") {
  if (default_stream(three_devices()[1]).synchronous()) return;
  Net net = net_on(three_devices()[0]);
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
  Net net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  synchronize(three_devices()[0]);  // the host writes where the device's stream may still be writing
  net.b.tensor().mutable_data<double>()[0] = 11;
  CHECK(slots.refresh(three_devices()).bytes == 2 * 8);
  CHECK(net.b.on(three_devices()[1]).item<double>() == 11);
}

TEST_CASE("the elements and the identity of a parameter survive its move into a slab") {
  Net net = net_on(three_devices()[0]);
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
  Net net = net_on(three_devices()[0]);
  struct Part : Module<Part> {
    Parameter c, own{values({1})};
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
  Net net = net_on(three_devices()[0]);
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

TEST_CASE("gradients of mirrors are summed into home in replica order, and unused parameters stay untouched") {
  const std::vector<Device> devices = GENERATE(from_range(support::device_sets()));
  CAPTURE(devices.size());
  Net net = net_on(devices[0]);
  ModuleSlots slots(net);
  slots.refresh(devices);
  Doubles expected(3, 0);
  for (int round = 0; round < 3; ++round) {
    Tensor total;
    double factor = 1;
    for (Device device : devices) {
      Tensor part = (net.a.on(device) * values({factor, 10 * factor, 100 * factor}, device)).sum().to(devices[0]);
      total = total.defined() ? total + part : part;
      for (int i = 0; i < 3; ++i) expected[static_cast<std::size_t>(i)] += factor * (i == 0 ? 1 : i == 1 ? 10 : 100);
      factor *= 2;
    }
    total.backward();
    CHECK(net.a.grad().to_vector<double>() == expected);  // accumulates over the rounds
  }
  CHECK_FALSE(net.b.grad().defined());
  CHECK((slots.reduced().bytes > 0) == (devices.size() > 1));
}

TEST_CASE("large gradients are summed in balanced ranges with the same result") {
  struct Large : Module<Large> {
    Parameter w{zeros({50'001}, {.dtype = DType::f64})}, v{zeros({3}, {.dtype = DType::f64})};
    void members(Members& m) override { m("w", w), m("v", v); }
  };
  const std::vector<Device> devices = GENERATE(from_range(support::device_sets()));
  CAPTURE(devices.size());
  Large net;
  net.to(devices[0]);
  ModuleSlots slots(net);
  slots.refresh(devices);
  Tensor total;
  double factors = 0, ones = 0;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const double factor = std::pow(3.0, static_cast<double>(d)), one = 1.0 + static_cast<double>(d);
    Tensor scale = arange(0, 50'001, 1, {.dtype = DType::f64, .device = devices[d]}) * factor;
    Tensor part = ((net.w.on(devices[d]) * scale).sum() + net.v.on(devices[d]).sum() * one).to(devices[0]);
    total = total.defined() ? total + part : part;
    factors += factor;
    ones += one;
  }
  total.backward();
  const Doubles grad = net.w.grad().to_vector<double>();
  bool exact = true;
  for (std::size_t i = 0; i < grad.size(); ++i) exact = exact && grad[i] == factors * static_cast<double>(i);
  CHECK(exact);
  CHECK(net.v.grad().to_vector<double>() == Doubles{ones, ones, ones});
}

TEST_CASE("gradients of any size are summed over any number of devices") {
  struct Sizes : Module<Sizes> {
    std::vector<Parameter> all;
    void members(Members& m) override { m("all", all); }
  };
  std::uint64_t state = 1;
  const auto draw = [&](std::uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state >> 33) % below);
  };
  std::vector<std::vector<std::int64_t>> cases{{16'897}, {16'641},    {16'384 + 64},
                                               {16'383}, {21'000, 1}, {1, 16'640, 1}};
  cases.emplace_back(260, 64).push_back(1);  // many, of which the last has one element
  for (int i = 0; i < 8; ++i) {
    auto& sizes = cases.emplace_back();
    for (std::int64_t left = 1 + draw(6); left > 0; --left) sizes.push_back(draw(20'000));
    sizes.push_back(1);
  }
  for (const auto& sizes : cases) {
    for (int count = 2; count <= 8; ++count) {
      if (count > support::device_count()) continue;
      CAPTURE(sizes, count);
      const std::vector<Device> devices = support::first_devices(count);
      Sizes net;
      for (const std::int64_t size : sizes) net.all.emplace_back(zeros({size}, {.dtype = DType::f32}));
      net.to(devices[0]);
      ModuleSlots slots(net);
      slots.refresh(devices);
      Tensor total;
      for (const Device device : devices) {
        for (const Parameter& parameter : net.all) {
          const Tensor part =
              (parameter.on(device) *
               (arange(0, static_cast<double>(parameter.shape()[0]), 1, {.dtype = DType::f32, .device = device}) + 1.0))
                  .sum()
                  .to(devices[0]);
          total = total.defined() ? total + part : part;
        }
      }
      total.backward();
      bool exact = true;
      for (const Parameter& parameter : net.all) {
        const auto grad = parameter.grad().to_vector<double>();
        for (std::size_t i = 0; i < grad.size(); ++i) exact = exact && grad[i] == count * (static_cast<double>(i) + 1);
      }
      CHECK(exact);
    }
  }
}

TEST_CASE("the parts of a sum are whole units and never less than the whole") {
  for (std::size_t parts = 1; parts <= 64; ++parts)
    for (std::size_t bytes :
         {1u, 255u, 256u, 257u, 4u * 16'897, 4u * 16'641, 66'564u, 67'588u, 1u << 20, (1u << 20) + 4})
      for (std::size_t more = 0; more < 1024; more += 4) {
        const std::size_t part = detail::part_bytes(bytes + more, parts);
        if (part % 256 != 0 || part * parts < bytes + more || (part - 256) * parts >= bytes + more)
          FAIL(parts << " parts of " << bytes + more << " bytes have " << part);
      }
}

TEST_CASE("neighbours that different replicas use are summed each over its own") {
  Net net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  for (int round = 0; round < 2; ++round) {
    slots.refresh(three_devices());
    const auto on = [&](const Parameter& p, int device, double factor) {
      return (p.on(three_devices()[static_cast<std::size_t>(device)]).sum() * factor).to(three_devices()[0]);
    };
    // As many replicas each, but not the same ones.
    (on(net.a, 0, 1) + on(net.a, 1, 2) + on(net.b, 0, 4) + on(net.b, 2, 8) + on(net.c, 1, 16) + on(net.c, 2, 32))
        .backward();
    CHECK(net.a.grad().to_vector<double>() == Doubles{3, 3, 3});
    CHECK(net.b.grad().to_vector<double>() == Doubles{12});
    CHECK(net.c.grad().to_vector<double>() == Doubles{48, 48});
    net.zero_grad();
  }
}

TEST_CASE("a refresh for devices in another order changes the order of sums, though it copies nothing") {
  struct F32 : Module<F32> {
    Parameter w{ones({1}, {.dtype = DType::f32})};
    void members(Members& m) override { m("w", w); }
  };
  F32 net;
  net.to(three_devices()[0]);
  ModuleSlots slots(net);
  const auto sum_in_order = [&](std::vector<int> order, std::vector<double> factors) {
    std::vector<Device> devices;
    for (int i : order) devices.push_back(three_devices()[static_cast<std::size_t>(i)]);
    slots.refresh(devices);
    Tensor total;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      const Tensor part = (net.w.on(devices[d]) * factors[d]).to(devices[0]);
      total = total.defined() ? total + part : part;
    }
    net.zero_grad();
    total.backward();
    return net.w.grad().item<double>();
  };
  for (int round = 0; round < 3; ++round) {
    for (const std::vector<int>& order : {std::vector{0, 1, 2}, std::vector{0, 2, 1}}) {
      CHECK(sum_in_order(order, {1e8, -1e8, 1}) == 1);
      CHECK(sum_in_order(order, {1e8, 1, -1e8}) == 0);
    }
  }
}

TEST_CASE("a gradient somebody holds is not written over by the next backward") {
  Net net = net_on(three_devices()[0]);
  ModuleSlots slots(net);
  slots.refresh(three_devices());
  const auto step = [&](double factor) { (net.b.on(three_devices()[1]) * factor).to(three_devices()[0]).backward(); };
  step(2);
  Tensor held = net.b.grad();
  net.zero_grad();
  step(5);
  CHECK(held.item<double>() == 2);
  CHECK(net.b.grad().item<double>() == 5);
}

TEST_CASE("hooks of a replicated parameter see the sum, once") {
  const std::vector<Device> devices = GENERATE(from_range(support::device_sets()));
  const auto count = static_cast<double>(devices.size());
  Net net = net_on(devices[0]);
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
  Net net = net_on(three_devices()[0]);
  ModuleSlots(net).refresh(three_devices());
  Tensor w = net.b.on(three_devices()[1]);
  Tensor y = (w * w * w).to(three_devices()[0]) + net.b.on(three_devices()[0]) * 2.0;
  Tensor first = grad(y, {net.b.tensor()}, {.create_graph = true})[0];
  CHECK(first.item<double>() == 3 * 16 + 2);
  first.backward();
  CHECK(net.b.grad().item<double>() == 6 * 4);
}

TEST_CASE("frozen parameters and no-grad mode give mirrors without an edge") {
  Net net = net_on(three_devices()[0]);
  ModuleSlots(net).refresh(three_devices());
  net.b.set_requires_grad(false);
  CHECK_FALSE(net.b.on(three_devices()[1]).requires_grad());
  CHECK(net.a.on(three_devices()[1]).requires_grad());
  NoGrad no_grad;
  CHECK_FALSE(net.a.on(three_devices()[1]).requires_grad());
}

TEST_CASE("what was saved of a mirror is void after a refresh") {
  Net net = net_on(three_devices()[0]);
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
  Net net = net_on(three_devices()[0]);
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
  Net net = net_on(three_devices()[0]);
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
    Net net = net_on(three_devices()[0]);
    ModuleSlots(net).refresh(three_devices());
    y = (net.b.on(three_devices()[1]) * 3.0).to(three_devices()[0]) + net.b.on(three_devices()[0]);
  }
  y.backward();
}
