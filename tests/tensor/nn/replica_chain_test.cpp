// Parameters go to their mirrors, and gradients home, along a chain of the devices.
#include <algorithm>
#include <thread>

#include "lockstep/runtime/copy/chain.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/gradient_chain.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using support::device_at;
using support::devices_at;

namespace {

constexpr std::int64_t kLargeChain = 400'001;  // f32: several pieces, the last of which is shorter

struct ChainNet : Module<ChainNet> {
  Parameter first{zeros({kLargeChain})}, second{zeros({3})}, third{zeros({kLargeChain})};
  Buffer state{zeros({5})};
  void members(Members& m) override { m("first", first), m("second", second), m("third", third), m("state", state); }
};

Tensor counted_chain(int from) {
  return arange(from, static_cast<double>(from + kLargeChain), 1, {.dtype = DType::f32});
}

std::vector<trace::Span> copies_between(Device source, Device destination) {
  std::vector<trace::Span> found;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::copy && span.work.source == source && span.device == destination)
      found.push_back(span);
  return found;
}

}  // namespace

TEST_CASE("a refresh passes parameters on from mirror to mirror, and buffers from home") {
  support::needs_devices(6);
  for (const std::vector<Device>& devices : {devices_at({0, 1, 2, 3}), devices_at({3, 1, 5}), devices_at({2, 0})}) {
    CAPTURE(devices.size());
    ChainNet net;
    net.to(devices[0]);
    const ModuleSlots slots(net);
    slots.refresh(devices);
    NoGrad off;
    for (int round = 1; round <= 5; ++round) {
      net.first.tensor().copy_(counted_chain(round));
      net.second.tensor().fill_(round);
      net.third.tensor().fill_(-round);
      net.state.tensor().fill_(10 * round);
      trace::start();
      const TransferStats stats = slots.refresh(devices);
      finish(devices);
      trace::stop();
      CHECK(stats.bytes == (devices.size() - 1) * (2 * kLargeChain + 3 + 5) * 4);
      CHECK(stats.copies == 2 * (devices.size() - 1));
      for (std::size_t d = 1; d < devices.size(); ++d) {
        CAPTURE(d, round);
        const Tensor first = net.first.on(devices[d]);
        CHECK(equal(first.to(Device::cpu()), counted_chain(round)));
        CHECK(equal(net.third.on(devices[d]).to(Device::cpu()), full({kLargeChain}, -round)));
        CHECK(net.second.on(devices[d]).to_vector<float>() == std::vector<float>(3, static_cast<float>(round)));
        CHECK(net.state.on(devices[d]).to_vector<float>() == std::vector<float>(5, static_cast<float>(10 * round)));
        // From the device before it: all of the parameters; from home: the buffers, and all that is copied at once.
        if (!asynchronous()) continue;
        std::size_t passed_on = 0, from_home = 0;
        for (const trace::Span& span : copies_between(devices[d - 1], devices[d])) passed_on += span.work.bytes;
        for (const trace::Span& span : copies_between(devices[0], devices[d])) from_home += span.work.bytes;
        CHECK(passed_on >= (2 * kLargeChain + 3) * 4);
        CHECK(from_home == (d == 1 ? passed_on : 5 * 4));
      }
    }
  }
}

TEST_CASE("a mirror passes a part on before it has the rest") {
  support::needs_devices(3);
  if (!asynchronous()) return;
  const std::vector<Device>& devices = three_devices();
  ChainNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  finish(devices);
  NoGrad off;
  net.first.tensor().fill_(7);
  net.third.tensor().fill_(8);
  finish(devices);
  detail::host_faults().clear();
  trace::start();
  detail::host_faults().hang_task(2);  // the second piece to the first mirror, or what may run beside it
  slots.refresh(devices);
  // The hanging piece keeps the first mirror from having all; the second one gets its first piece nevertheless.
  const auto on_its_way = [&] {
    const auto passed_on = copies_between(devices[1], devices[2]);
    return !passed_on.empty() && passed_on.front().began > 0;
  };
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  while (!on_its_way() && !patience.passed()) std::this_thread::yield();
  CHECK(on_its_way());
  detail::host_faults().clear();
  finish(devices);
  trace::stop();
  CHECK(copies_between(devices[0], devices[1]).size() > 1);
  for (const Device device : devices) CHECK(equal(net.third.on(device).to(Device::cpu()), full({kLargeChain}, 8)));
}

TEST_CASE("mirrors that lack different things are refreshed each with its own") {
  support::needs_devices(4);
  const std::vector<Device> devices = devices_at({0, 1, 2, 3});
  ChainNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  NoGrad off;
  for (int round = 0; round < 3; ++round) {
    net.first.tensor().fill_(1 + round);
    slots.refresh(devices_at({0, 1}));
    net.third.tensor().fill_(2 + round);
    slots.refresh(devices_at({0, 3, 1}));  // in another order, too
    net.second.tensor().fill_(3 + round);
    slots.refresh(devices);
    for (const Device device : devices) {
      CHECK(equal(net.first.on(device).to(Device::cpu()), full({kLargeChain}, 1 + round)));
      CHECK(equal(net.third.on(device).to(Device::cpu()), full({kLargeChain}, 2 + round)));
      CHECK(net.second.on(device).to_vector<float>() == std::vector<float>(3, static_cast<float>(3 + round)));
    }
  }
}

TEST_CASE("a home in plain memory fills mirrors that are of one kind") {
  support::needs_devices(3);
  const std::vector<Device> devices{Device::cpu(), device_at(0), device_at(1), device_at(2)};
  ChainNet net;
  const ModuleSlots slots(net);
  for (int round = 1; round <= 3; ++round) {
    {
      const NoGrad off;
      net.first.tensor().fill_(round);
      slots.refresh(devices);
      for (const Device device : devices)
        CHECK(equal(net.first.on(device).to(Device::cpu()), full({kLargeChain}, round)));
    }
    net.zero_grad();
    Tensor total;
    for (const Device device : devices) {
      const Tensor part = (net.first.on(device).sum() * 2.0).to(devices[0]);
      total = total.defined() ? total + part : part;
    }
    total.backward();
    CHECK(equal(net.first.grad(), full({kLargeChain}, 8)));
  }
}

TEST_CASE("a mirror may be read on the stream of its refresh and on others, while home changes again") {
  support::needs_devices(3);
  ChainNet net;
  net.to(device_at(0));
  const ModuleSlots slots(net);
  NoGrad off;
  const Stream side(device_at(1));
  for (int round = 1; round <= 4; ++round) {
    net.first.tensor().fill_(round);
    slots.refresh(three_devices());
    const Tensor here = net.first.on(device_at(1)) * 2.0;
    Tensor beside;
    {
      const StreamScope scope(side);
      beside = net.first.on(device_at(1)) * 3.0;
    }
    net.first.tensor().fill_(-1);
    slots.refresh(three_devices());
    CHECK(equal(here.to(Device::cpu()), full({kLargeChain}, 2 * round)));
    default_stream(device_at(1)).wait_for(side);
    CHECK(equal(beside.to(Device::cpu()), full({kLargeChain}, 3 * round)));
    CHECK(equal(net.first.on(device_at(2)).to(Device::cpu()), full({kLargeChain}, -1)));
  }
}

TEST_CASE("a sum along a chain has the bits of one sum after the other") {
  support::needs_devices(6);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    for (const std::vector<Device>& devices :
         {devices_at({0, 1, 2}), devices_at({3, 1, 5, 2, 4}), devices_at({2, 4})}) {
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1023}, kLargeChain}) {
        for (const Device home : {devices[0], device_at(0)}) {
          std::vector<Tensor> parts;
          Tensor expected;
          for (std::size_t d = 0; d < devices.size(); ++d) {
            if (d > 0 && devices[d] == home) continue;
            parts.push_back(uneven(count, static_cast<int>(d), dtype, devices[d]));
            const Tensor there = parts.back().to(home);
            expected = expected.defined() ? expected + there : there;
          }
          if (parts.size() < 2) continue;
          CAPTURE(devices.size(), count, home.index(), parts.size());
          if (!detail::sums_along_chain(parts, home)) continue;
          Tensor sum = zeros({count}, {.dtype = dtype, .device = home});
          for (int round = 0; round < 2; ++round) {
            detail::sum_along_chain(parts, sum);
            for (Tensor& part : parts) part.fill_(0);  // comes after it was read
            CHECK(equal(sum, expected));
            sum.fill_(1);  // comes after the last piece
            CHECK(equal(sum, ones({count}, {.dtype = dtype, .device = home})));
            for (std::size_t d = 0, i = 0; d < devices.size(); ++d)
              if (d == 0 || devices[d] != home) parts[i++].copy_(uneven(count, static_cast<int>(d), dtype, devices[d]));
          }
        }
      }
    }
  }
}

TEST_CASE("home is at one end of a chain only, and devices are of one kind") {
  support::needs_devices(3);
  const auto on = [](Device device) { return zeros({4}, {.device = device}); };
  const Tensor a = on(device_at(0)), b = on(device_at(1)), c = on(device_at(2));
  CHECK(detail::sums_along_chain({a, b, c}, device_at(0)));
  CHECK(detail::sums_along_chain({b, c}, device_at(0)));
  CHECK_FALSE(detail::sums_along_chain({b, a}, device_at(0)));
  CHECK_FALSE(detail::sums_along_chain({a}, device_at(0)));
  CHECK_FALSE(detail::sums_along_chain({a, b, on(Device::cpu())}, device_at(0)));
  CHECK_FALSE(detail::sums_along_chain({a, b}, Device::cpu()));
}

TEST_CASE("a device of a chain passes sums on while others arrive") {
  support::needs_devices(3);
  const std::int64_t count = std::int64_t{10} << 20;
  std::vector<Tensor> parts;
  for (const Device device : three_devices()) parts.push_back(ones({count}, {.device = device}));
  const Tensor sum = zeros({count}, {.device = device_at(0)});
  reach_each_other(three_devices());  // the first question copies a probe
  finish(three_devices());
  trace::start();
  detail::sum_along_chain(parts, sum);
  finish(three_devices());
  trace::stop();
  CHECK(equal(sum, full({count}, 3, {.device = device_at(0)})));
  const auto arrives = copies_between(device_at(0), device_at(1)), leaves = copies_between(device_at(1), device_at(2)),
             home = copies_between(device_at(2), device_at(0));
  REQUIRE(arrives.size() > 8);
  CHECK(leaves.size() == arrives.size());
  CHECK(home.size() == arrives.size());
  std::size_t bytes = 0;
  for (const trace::Span& span : home) bytes += span.work.bytes;
  CHECK(bytes == sum.bytes());
  // Room for a piece on each of two streams: the third arrives when the first has been added, not when all have left.
  if (!asynchronous()) return;
  std::vector<trace::Span> added;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::kernel && span.device == device_at(1)) added.push_back(span);
  REQUIRE(added.size() == arrives.size());
  for (std::size_t k = 2; k < arrives.size(); ++k) CHECK(arrives[k].began >= added[k - 2].ended);
}

TEST_CASE("large gradients come home as the plain sum, whoever has one, holds one or wants to see one") {
  support::needs_devices(4);
  const std::vector<Device> devices = devices_at({0, 1, 2, 3});
  ChainNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  const auto backward = [&](std::size_t first, int seed) {
    Tensor total, expected;
    for (std::size_t d = first; d < devices.size(); ++d) {
      const Tensor gradient = uneven(kLargeChain, seed + static_cast<int>(d), DType::f32, devices[d]);
      const Tensor part = (net.first.on(devices[d]) * gradient).sum() + (net.third.on(devices[d]) * gradient).sum();
      total = total.defined() ? total + part.to(devices[0]) : part.to(devices[0]);
      const Tensor there = gradient.to(devices[0]);
      expected = expected.defined() ? expected + there : there;
    }
    total.backward();
    return expected;
  };
  const Tensor first = backward(0, 1);
  CHECK(equal(net.first.grad(), first));
  CHECK_FALSE(net.second.grad().defined());
  // Once more on top of it, then afresh, while somebody holds what was there before.
  const Tensor second = backward(0, 2);
  CHECK(equal(net.first.grad(), first + second));
  const Tensor held = net.first.grad();
  net.zero_grad();
  const Tensor third = backward(1, 3);  // home has no part in it
  CHECK(equal(net.first.grad(), third));
  CHECK(equal(net.third.grad(), third));
  CHECK(equal(held, first + second));
  // One of the two has a gradient, the other not.
  net.third.zero_grad();
  const Tensor fourth = backward(0, 4);
  CHECK(equal(net.first.grad(), third + fourth));
  CHECK(equal(net.third.grad(), fourth));
  // Hooks see the sum first, and may give another.
  net.zero_grad();
  int seen = 0;
  const auto hook = net.third.tensor().register_hook([&](Tensor& gradient) {
    ++seen;
    gradient = gradient * 2.0;
  });
  const Tensor fifth = backward(0, 5);
  CHECK(seen == 1);
  CHECK(equal(net.first.grad(), fifth));
  CHECK(equal(net.third.grad(), fifth * 2.0));
  net.third.tensor().remove_hook(hook);
  // A hook that is called after one gradient has come gives another parameter one.
  net.zero_grad();
  const auto after = net.first.tensor().register_post_accumulate_hook(
      [&] { net.third.set_grad(ones({kLargeChain}, {.device = devices[0]})); });
  const Tensor sixth = backward(0, 6);
  CHECK(equal(net.first.grad(), sixth));
  CHECK(equal(net.third.grad(), sixth + 1.0));
  net.first.tensor().remove_hook(after);
}
