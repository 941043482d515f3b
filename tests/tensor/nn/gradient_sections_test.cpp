// Gradients of replicas are on their way home while the backward still runs, section by section.
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/topology.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using support::device_at;
using support::devices_at;

namespace {

// Elements, of f64: three devices have two sections of 7 MiB, two devices of 3.
constexpr std::int64_t kSectioned = 100'001;
constexpr int kSectionedLayers = 10;

struct SectionedNet : Module<SectionedNet> {
  std::vector<Parameter> all;
  explicit SectionedNet(DType dtype = DType::f64) {
    for (int i = 0; i < kSectionedLayers; ++i) {
      all.emplace_back(zeros({kSectioned}, {.dtype = dtype}));
      all.emplace_back(zeros({7 + i}, {.dtype = dtype}));  // kept, and stored with others
    }
  }
  void members(Members& m) override { m("all", all); }
};

// One on three devices, each with its copy.
struct OnThree {
  const std::vector<Device>& devices = (support::needs_devices(3), three_devices());
  SectionedNet net;
  std::unique_ptr<const ModuleSlots> slots;
  OnThree() {
    net.to(devices[0]);
    slots = std::make_unique<const ModuleSlots>(net);
    slots->refresh(devices);
  }
};

struct Uses {
  int seed = 0;
  std::function<bool(std::size_t device, std::size_t parameter)> used = [](auto, auto) { return true; };
  std::vector<Tensor>* keep = nullptr;                // the gradients of each replica
  std::function<void(std::size_t device)> last = {};  // when a device has done all but the last of its backward
};

// Of each parameter the sum of its gradients in replica order, which a backward over the devices is to give. The
// parameters are used in their order, so the last one has its gradients first.
Tensor total_over(const SectionedNet& net, const std::vector<Device>& devices, const Uses& uses,
                  std::vector<Tensor>& expected) {
  expected.assign(net.all.size(), {});
  Tensor total;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    Tensor here = zeros({}, {.dtype = net.all[0].dtype(), .device = devices[d]});
    here.set_requires_grad();
    here = here * 2.0;
    if (uses.last) here.register_hook([last = uses.last, d](Tensor&) { last(d); });
    for (std::size_t p = 0; p < net.all.size(); ++p) {
      if (!uses.used(d, p)) continue;
      const Tensor gradient =
          uneven(net.all[p].shape()[0], uses.seed + static_cast<int>(d + p), net.all[p].dtype(), devices[d]);
      here = here + (net.all[p].on(devices[d]) * gradient).sum();
      if (uses.keep) uses.keep->push_back(gradient);
      const Tensor there = gradient.to(devices[0]);
      expected[p] = expected[p].defined() ? expected[p] + there : there;
    }
    total = total.defined() ? total + here.to(devices[0]) : here.to(devices[0]);
  }
  return total;
}

std::size_t wrong(const SectionedNet& net, const std::vector<Tensor>& expected) {
  std::size_t count = 0;
  for (std::size_t p = 0; p < expected.size(); ++p) {
    const Tensor grad = net.all[p].grad();
    count += grad.defined() != expected[p].defined() || (grad.defined() && !equal(grad, expected[p])) ? 1 : 0;
  }
  return count;
}

bool eventually(const std::function<bool()>& true_at_last) {
  const Deadline deadline = Deadline::after(Milliseconds(20'000));
  while (!true_at_last() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return true_at_last();
}

std::size_t spans_named(const std::string& name) {
  const std::vector<trace::Span> all = trace::spans();
  return static_cast<std::size_t>(std::count_if(
      all.begin(), all.end(), [&](const trace::Span& span) { return span.work.name == name && span.ended > 0; }));
}

// Makes of x what it is, and gives no gradient.
struct NoGradientNode final : NodeOf<1> {
  const char* name() const override { return "no_gradient"; }
  void backward(std::span<Tensor>, std::span<Tensor>) override {}
};
Tensor without_gradient(const Tensor& x) {
  Tensor y;
  {
    NoGrad off;
    y = x.clone();
  }
  record<NoGradientNode>(y, x);
  return y;
}

}  // namespace

TEST_CASE("a sum over the replicas begins while their backwards still run, and has the bits of the plain sum") {
  support::needs_devices(3);
  for (const std::vector<Device>& devices : {devices_at({0, 1}), devices_at({2, 0, 1})}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      if (dtype == DType::f32 && devices.size() > 2) continue;  // too small
      CAPTURE(devices.size(), dtype);
      SectionedNet net(dtype);
      net.to(devices[0]);
      const ModuleSlots slots(net);
      slots.refresh(devices);
      for (int round = 0; round < 2; ++round) {
        const std::uint64_t before = slots.reduced().copies;
        std::atomic<int> begun{0};
        Uses uses{.seed = round};
        uses.last = [&](std::size_t) {
          if (asynchronous() && eventually([&] { return slots.reduced().copies > before; })) ++begun;
        };
        std::vector<Tensor> expected;
        net.zero_grad();
        Tensor total = total_over(net, devices, uses, expected);
        if (round == 1) total = total.to(Device::cpu());  // whose nodes the calling thread runs
        total.backward();
        CHECK(begun == (asynchronous() ? static_cast<int>(devices.size()) : 0));
        CHECK(wrong(net, expected) == 0);
        CHECK(slots.reduced().bytes > 0);
      }
    }
  }
}

TEST_CASE("sections come on top of what is there, leave what somebody holds, and show hooks the sum") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  std::vector<Tensor> first, second, third;
  total_over(net, devices, {.seed = 1}, first).backward();
  const Tensor held = net.all[4].grad();
  total_over(net, devices, {.seed = 2}, second).backward();
  for (std::size_t p = 0; p < first.size(); ++p) second[p] = first[p] + second[p];
  CHECK(wrong(net, second) == 0);
  const Tensor seen_before = held.clone();
  net.zero_grad();
  std::vector<Tensor> seen;
  const std::uint64_t hook = net.all[6].tensor().register_hook([&](Tensor& gradient) {
    seen.push_back(gradient.clone());
    gradient = gradient * 2.0;
  });
  total_over(net, devices, {.seed = 3}, third).backward();
  net.all[6].tensor().remove_hook(hook);
  REQUIRE(seen.size() == 1);
  CHECK(equal(seen[0], third[6]));
  third[6] = third[6] * 2.0;
  CHECK(wrong(net, third) == 0);
  CHECK(equal(held, seen_before));
  // Then one that is too small for sections.
  net.zero_grad();
  Uses one{.seed = 4};
  one.used = [](std::size_t, std::size_t parameter) { return parameter == 2; };
  total_over(net, devices, one, third).backward();
  CHECK(wrong(net, third) == 0);
}

TEST_CASE("parameters that some replicas do not use, or that get no gradient, leave the others' sections as they are") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  std::vector<Tensor> expected;
  Uses uses{.seed = 4};
  uses.used = [](std::size_t device, std::size_t parameter) {
    return parameter == 10 ? device == 1 : parameter == 3 ? device > 0 : parameter != 12;
  };
  total_over(net, devices, uses, expected).backward();
  CHECK_FALSE(net.all[12].grad().defined());
  CHECK(wrong(net, expected) == 0);
  // Home takes no part.
  net.zero_grad();
  uses.used = [](std::size_t device, std::size_t) { return device > 0; };
  total_over(net, devices, uses, expected).backward();
  CHECK(wrong(net, expected) == 0);
  // One that was expected does not come: its section, and those behind it, are summed after the backward.
  net.zero_grad();
  uses.used = [](std::size_t device, std::size_t parameter) { return device != 2 || parameter != 14; };
  Tensor total = total_over(net, devices, uses, expected);
  total = total + without_gradient((net.all[14].on(devices[2]) * 3.0).sum().to(devices[0]));
  total.backward();
  CHECK(wrong(net, expected) == 0);
}

TEST_CASE("a backward that fails when sums have begun leaves nothing behind") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  for (int round = 0; round < 2; ++round) {
    std::vector<Tensor> expected;
    const std::uint64_t before = on.slots->reduced().copies;
    std::atomic<bool> begun{false};
    Uses failing{.seed = round};
    failing.last = [&](std::size_t device) {
      if (device != 1) return;
      begun = !asynchronous() || eventually([&] { return on.slots->reduced().copies > before; });
      throw InvalidArgument("enough");
    };
    CHECK_THROWS_AS(total_over(net, devices, failing, expected).backward(), InvalidArgument);
    CHECK(begun);
    for (const Parameter& parameter : net.all) CHECK_FALSE(parameter.grad().defined());
    total_over(net, devices, {.seed = 10 + round}, expected).backward();
    CHECK(wrong(net, expected) == 0);
    net.zero_grad();
  }
}

TEST_CASE("sums go on streams of their own, not behind what a device computes") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  std::vector<Tensor> expected;
  const Tensor total = total_over(net, devices, {}, expected);
  finish(devices);
  trace::start();
  total.backward();
  finish(devices);
  trace::stop();
  CHECK(wrong(net, expected) == 0);
  if (!asynchronous() || spans_named("ordered_sum") == 0) return;
  std::map<std::string, int> kernels;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::kernel && span.device == devices[1]) {
      ++kernels[span.work.name == std::string("ordered_sum") ? "sum on " + span.track : "other on " + span.track];
    }
  REQUIRE(kernels.size() == 2);
  CHECK(kernels.begin()->first.substr(9) != std::next(kernels.begin())->first.substr(7));
}

TEST_CASE("the sum waits for who reads at home, also where home takes no part in the backward") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  std::vector<Tensor> first, second;
  total_over(net, devices, {.seed = 1}, first).backward();
  Tensor total;
  second.assign(net.all.size(), {});
  for (std::size_t d = 1; d < 3; ++d)
    for (std::size_t p = 0; p < net.all.size(); ++p) {
      const Tensor gradient = uneven(net.all[p].shape()[0], static_cast<int>(d), DType::f64, devices[d]);
      const Tensor part = (net.all[p].on(devices[d]) * gradient).sum().to(devices[1]);
      total = total.defined() ? total + part : part;
      second[p] = second[p].defined() ? second[p] + gradient.to(devices[0]) : gradient.to(devices[0]);
    }
  finish(devices);
  std::vector<Tensor> read;
  for (const Parameter& parameter : net.all) read.push_back(parameter.grad() * 1.0);  // under way
  net.zero_grad();
  total.backward();
  CHECK(wrong(net, second) == 0);
  std::size_t changed = 0;
  for (std::size_t p = 0; p < first.size(); ++p) changed += equal(read[p], first[p]) ? 0 : 1;
  CHECK(changed == 0);
}

TEST_CASE("parameters without elements are in a section like others, wherever they stand") {
  support::needs_devices(3);
  const std::vector<Device>& devices = three_devices();
  for (const std::size_t at : {0U, 7U, 20U}) {
    SectionedNet net;
    net.all.insert(net.all.begin() + static_cast<std::ptrdiff_t>(at), Parameter(zeros({0}, {.dtype = DType::f64})));
    net.to(devices[0]);
    const ModuleSlots slots(net);
    slots.refresh(devices);
    std::vector<Tensor> expected;
    for (int round = 0; round < 2; ++round) {
      net.zero_grad();
      total_over(net, devices, {.seed = round}, expected).backward();
      CHECK(wrong(net, expected) == 0);
    }
  }
}

TEST_CASE("a section for which there is no memory while the backward runs is summed after it") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  std::vector<Tensor> expected;
  total_over(net, devices, {.seed = 1}, expected).backward();
  net.zero_grad();
  std::vector<Tensor> kept;  // else the backward frees memory on its way
  Uses uses{.seed = 2};
  uses.keep = &kept;
  std::atomic<bool> tried{false};
  uses.last = [&](std::size_t device) {
    if (device != 1) return;
    tried = !asynchronous() || eventually([] { return spans_named("reduce") > 0; });
    set_memory_limit(devices[1], 0);
  };
  const Tensor total = total_over(net, devices, uses, expected);
  finish(devices);
  empty_cache(devices[1]);
  if (asynchronous())
    set_memory_limit(devices[1], memory_stats(devices[1]).in_use_bytes + (4 << 20));  // a section takes more
  const std::uint64_t before = on.slots->reduced().copies;
  trace::start();
  total.backward();
  trace::stop();
  CHECK(tried);
  CHECK(on.slots->reduced().copies > before);
  CHECK(wrong(net, expected) == 0);
}

TEST_CASE("sections of several runs share streams, and no memory") {
  OnThree on;
  SectionedNet& net = on.net;
  // A parameter that is not used divides the others.
  for (const std::vector<Device>& devices : {devices_at({0, 1}), devices_at({1, 0})}) {
    CAPTURE(devices[0]);
    net.to(devices[0]);
    const ModuleSlots slots(net);
    slots.refresh(devices);
    const std::uint64_t before = slots.reduced().copies;
    std::atomic<int> begun{0};
    Uses uses{.seed = 4, .used = [](std::size_t, std::size_t parameter) { return parameter != kSectionedLayers; }};
    uses.last = [&](std::size_t) {
      if (asynchronous() && eventually([&] { return slots.reduced().copies > before + 1; })) ++begun;
    };
    std::vector<Tensor> expected;
    net.zero_grad();
    total_over(net, devices, uses, expected).backward();
    CHECK(begun == (asynchronous() ? 2 : 0));
    CHECK(wrong(net, expected) == 0);
  }
}

TEST_CASE("a hook's backward over parameters whose gradients are on their way comes on top, in sections or not") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  for (const std::size_t parameters : {net.all.size(), std::size_t{4}}) {  // the latter are too few for sections
    for (std::size_t where = 0; where < devices.size(); ++where) {
      CAPTURE(parameters, where);
      const std::uint64_t before = on.slots->reduced().copies;
      std::atomic<bool> begun{false};
      const auto used = [&](std::size_t, std::size_t parameter) { return parameter < parameters; };
      std::vector<Tensor> expected, inner, later;
      const Tensor again = total_over(net, devices, {.seed = 2, .used = used}, inner);
      Uses uses{.seed = 1, .used = used};
      uses.last = [&](std::size_t device) {
        if (device != where) return;
        begun = parameters == 4 || !asynchronous() || eventually([&] { return on.slots->reduced().copies > before; });
        again.backward();
      };
      net.zero_grad();
      total_over(net, devices, uses, expected).backward();
      CHECK(begun);
      for (std::size_t p = 0; p < parameters; ++p) expected[p] = inner[p] + expected[p];
      CHECK(wrong(net, expected) == 0);
      net.zero_grad();
      total_over(net, devices, {.seed = 3}, later).backward();
      CHECK(wrong(net, later) == 0);
    }
  }
}

TEST_CASE("a hook's backward on streams of one's own is in order, and takes gradients of any layout") {
  support::needs_devices(3);
  const std::vector<Device> devices = devices_at({0, 1, 2});
  std::vector<std::unique_ptr<StreamScope>> scopes;  // the last one ends first
  for (const Device device : devices) scopes.push_back(std::make_unique<StreamScope>(Stream(device)));
  {
    SectionedNet net;
    net.to(devices[0]);
    const ModuleSlots slots(net);
    slots.refresh(devices);
    const auto inner = [&] {  // elements that lie on each other
      Tensor total;
      for (const Device device : devices) {
        const Tensor here = (net.all[0].on(device).mean() + net.all[1].on(device).mean()).to(devices[0]);
        total = total.defined() ? total + here : here;
      }
      return total;
    };
    inner().backward();
    const Tensor first = net.all[0].grad().clone(), second = net.all[1].grad().clone();
    for (std::size_t where = 0; where < devices.size(); ++where) {
      CAPTURE(where);
      const Tensor before[] = {net.all[0].grad().clone(), net.all[1].grad().clone()};
      for (const std::size_t p : {2, 3}) net.all[p].zero_grad();
      const auto used = [&](std::size_t, std::size_t parameter) { return parameter < 4; };
      std::vector<Tensor> expected;
      Tensor again = inner();
      Uses uses{.seed = 1, .used = used};
      uses.last = [&](std::size_t device) {
        if (device == where) std::exchange(again, {}).backward();
      };
      total_over(net, devices, uses, expected).backward();
      expected[0] = before[0] + first + expected[0], expected[1] = before[1] + second + expected[1];
      CHECK(wrong(net, expected) == 0);
    }
  }
  while (!scopes.empty()) scopes.pop_back();
  finish(devices);
}

TEST_CASE("two backwards at once, over different parameters of one module, have sections in one of them at most") {
  OnThree on;
  const std::vector<Device>& devices = on.devices;
  SectionedNet& net = on.net;
  for (int round = 0; round < 3; ++round) {
    std::vector<Tensor> expected[2];
    Tensor totals[2];
    for (std::size_t half = 0; half < 2; ++half) {
      Uses uses{.seed = round};
      uses.used = [half](std::size_t, std::size_t parameter) { return parameter / 10 == half; };
      totals[half] = total_over(net, devices, uses, expected[half]);
    }
    std::thread other([&] { totals[1].backward(); });
    totals[0].backward();
    other.join();
    for (std::size_t p = 10; p < expected[0].size(); ++p) expected[0][p] = expected[1][p];
    finish(devices);
    CHECK(wrong(net, expected[0]) == 0);
    net.zero_grad();
  }
}

TEST_CASE("where ways differ, sections go along a chain") {
  support::needs_devices(3);
  const std::vector<Device>& devices = three_devices();
  Links uneven_links(3);
  uneven_links.at(1, 2).speed = 0.5;
  detail::pretend_links(devices, uneven_links);
  SectionedNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  std::vector<Tensor> expected;
  total_over(net, devices, {.seed = 1}, expected).backward();
  net.zero_grad();
  const Tensor total = total_over(net, devices, {.seed = 5}, expected);
  finish(devices);
  trace::start();
  total.backward();
  finish(devices);
  trace::stop();
  detail::forget_topologies();
  CHECK(wrong(net, expected) == 0);
  if (!asynchronous() || !reach_each_other(devices)) return;
  std::map<std::pair<Device, Device>, std::size_t> moved;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::copy && span.work.source != span.device && span.work.bytes > 8)
      moved[{span.work.source, span.device}] += span.work.bytes;
  CHECK(moved.size() == 3);
  CHECK(moved[{devices[0], devices[1]}] > kSectionedLayers * kSectioned * 8);
  CHECK(moved[{devices[0], devices[1]}] == moved[{devices[1], devices[2]}]);
  CHECK(moved[{devices[0], devices[1]}] == moved[{devices[2], devices[0]}]);
}

// A mirror's gradient goes to the slab as soon as it is whole: what the backward keeps of it is its place there.
TEST_CASE("a backward does not keep the gradients of mirrors until its end") {
  support::needs_devices(2);
  const std::vector<Device> devices = devices_at({0, 1});
  SectionedNet net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  std::vector<Tensor> expected;
  const auto peak_of = [&] {
    const Tensor total = total_over(net, devices, {.seed = 1}, expected);
    finish(devices);
    const auto before = memory_stats(devices[1]).in_use_bytes;
    reset_peak(devices[1]);
    total.backward();
    finish(devices);
    const auto peak = memory_stats(devices[1]).peak_in_use_bytes;
    net.zero_grad();
    return peak - before;
  };
  peak_of();  // makes the slab
  const std::size_t peak = peak_of();
  if (asynchronous()) CHECK(peak < kSectionedLayers * kSectioned * 8 / 2);
}
