// Gradients of a parameter's copies: summed into its home, in the order of the replicas.
#include <cmath>

#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using Catch::Matchers::Contains;

TEST_CASE("gradients of mirrors are summed into home in replica order, and unused parameters stay untouched") {
  const std::vector<Device> devices = GENERATE(from_range(support::device_sets()));
  CAPTURE(devices.size());
  ReplicatedNet net = net_on(devices[0]);
  ModuleSlots slots(net);
  slots.refresh(devices);
  Doubles expected(3, 0);
  for (int round = 0; round < 3; ++round) {
    Tensor total;
    double factor = 1;
    for (Device device : devices) {
      Tensor part = (net.a.on(device) * f64_vector({factor, 10 * factor, 100 * factor}, device)).sum().to(devices[0]);
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

TEST_CASE("a gradient that two parameters share, and one in another layout, are summed as any") {
  struct Odd : Module<Odd> {
    Parameter a{zeros({300, 301}, {.dtype = DType::f32})}, b{zeros({300, 301}, {.dtype = DType::f32})};
    Parameter image{zeros({90, 90, 3, 3}, {.dtype = DType::f32}).to(MemoryFormat::channels_last)};
    void members(Members& m) override { m("a", a), m("b", b), m("image", image); }
  };
  const std::vector<Device> devices = GENERATE(from_range(support::device_sets()));
  CAPTURE(devices.size());
  Odd net;
  net.to(devices[0]);
  ModuleSlots slots(net);
  slots.refresh(devices);
  const auto numbers = [](const Shape& shape, Device device, MemoryFormat format = MemoryFormat::contiguous) {
    return arange(0, static_cast<double>(element_count(shape)), 1, {.dtype = DType::f32, .device = device})
        .reshape(shape)
        .to(format);
  };
  for (int round = 1; round <= 2; ++round) {
    Tensor total;
    double factor = 0, factors = 0;
    for (const Device device : devices) {
      factor += 1, factors += factor;
      const Tensor x = numbers({300, 301}, device) * factor;
      const MemoryFormat format = round == 1 ? MemoryFormat::contiguous : MemoryFormat::channels_last;
      const Tensor part = (((net.a.on(device) + net.b.on(device)) * x).sum() +
                           (net.image.on(device) * (numbers({90, 90, 3, 3}, device, format) * factor)).sum())
                              .to(devices[0]);
      total = total.defined() ? total + part : part;
    }
    net.zero_grad();
    total.backward();
    for (const Parameter& parameter : net.parameters()) {
      const Doubles got = parameter.grad().to_vector<double>(),
                    plain = numbers(parameter.shape(), devices[0]).to_vector<double>();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < plain.size(); ++i) wrong += got[i] != plain[i] * factors;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("neighbours that different replicas use are summed each over its own") {
  ReplicatedNet net = net_on(three_devices()[0]);
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
  ReplicatedNet net = net_on(three_devices()[0]);
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

TEST_CASE("gradients that are kept until the end of a backward keep their memory until they are stored") {
  support::needs_devices(2);
  const Device home = support::device_at(0), there = support::device_at(1);
  constexpr std::int64_t kCount = 5000;
  struct Small : Module<Small> {
    Parameter w{zeros({kCount})};
    void members(Members& m) override { m("w", w); }
  };
  Small net;
  net.to(home);
  const ModuleSlots slots(net);
  slots.refresh(support::devices_at({0, 1}));
  const Stream side(there);
  for (int round = 1; round <= 5; ++round) {
    net.zero_grad();
    const Tensor y = (net.w.on(there) * static_cast<double>(round)).sum();
    side.wait_for(default_stream(there));
    {
      const StreamScope scope(side);  // they are stored here, and were made on the stream of the forward
      y.backward();
    }
    std::vector<Tensor> reused;
    for (int i = 0; i < 4; ++i) reused.push_back(full({kCount}, -1, {.device = there}));
    CHECK(equal(net.w.grad().to(Device::cpu()), full({kCount}, round)));
  }
  default_stream(there).wait_for(side);
}
