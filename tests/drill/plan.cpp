#include "plan.h"

#include <algorithm>
#include <numeric>

#include "lockstep/runtime/strings.h"

namespace drill {
namespace {

constexpr int kDevices = 8;

std::vector<int> shuffled(Draw& draw) {
  std::vector<int> order(kDevices);
  std::iota(order.begin(), order.end(), 0);
  for (int i = kDevices - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(draw.below(i + 1))]);
  return order;
}

HostOptions draw_host(std::uint64_t seed, Draw& draw) {
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  HostOptions options{.devices = kDevices, .mode = HostMode::strict, .seed = seed + 1};
  options.memory_bytes = {256 * kMegabyte};
  if (draw.chance(50)) {  // unequal memories
    options.memory_bytes.clear();
    for (int i = 0; i < kDevices; ++i) {
      options.memory_bytes.push_back((64 << draw.below(3)) * kMegabyte);
    }
  }
  const int links = draw.below(4);
  if (links == 1) options.latency_microseconds = draw.between(10, 200);
  if (links == 2) options.bandwidth_bytes_per_second = static_cast<std::size_t>(draw.between(5, 50)) * kMegabyte;
  if (links == 3) {  // one slow link in one direction
    const int from = draw.below(kDevices);
    options.links.push_back({Device::host(from), Device::host((from + draw.between(1, kDevices - 1)) % kDevices),
                             kMegabyte, draw.between(0, 500)});
  }
  return options;
}

Fault draw_fault(Draw& draw, std::size_t steps) {
  Fault fault;
  const int kind = draw.below(100);
  fault.kind = kind < 22   ? FaultKind::allocation
               : kind < 60 ? FaultKind::throws
               : kind < 68 ? FaultKind::delay
               : kind < 78 ? FaultKind::hang
               : kind < 89 ? FaultKind::deny
                           : FaultKind::lose;
  fault.step = static_cast<std::size_t>(draw.below(static_cast<int>(steps)));
  fault.from_empty_caches = draw.chance(70);
  fault.count = fault.kind == FaultKind::allocation ? draw.between(1, 3) : draw.between(1, draw.chance(50) ? 12 : 80);
  fault.from = draw.below(kDevices);
  fault.to = (fault.from + draw.between(1, kDevices - 1)) % kDevices;
  return fault;
}

}  // namespace

const char* to_string(Attempt attempt) {
  constexpr const char* kNames[] = {"build", "train", "infer", "overlap", "divide", "graph"};
  return kNames[static_cast<int>(attempt)];
}

const char* to_string(FaultKind kind) {
  constexpr const char* kNames[] = {"none", "allocation", "throw", "delay", "hang", "deny", "lose"};
  return kNames[static_cast<int>(kind)];
}

Plan draw_plan(std::uint64_t seed, bool with_fault) {
  Draw draw(seed * 2 + (with_fault ? 1 : 0));
  Plan plan{.seed = seed,
            .host = draw_host(seed, draw),
            .devices = {},
            .others = {},
            .output_device = {},
            .balanced = draw.chance(30),
            .peeks = draw.chance(25),
            .steps = {},
            .fault = {}};
  // 1, 2, 3, 5 or 8 devices, in order or shuffled, which also moves home.
  std::vector<int> order = shuffled(draw);
  if (draw.chance(40)) std::sort(order.begin(), order.end());
  const int count = draw.one_of<int>({1, 2, 2, 3, 3, 5, 5, 8});
  for (int i = 0; i < count; ++i) plan.devices.push_back(Device::host(order[static_cast<std::size_t>(i)]));
  const Device home = plan.devices[0];
  plan.others = {home};
  const int more = draw.between(1, 3);
  for (const int index : shuffled(draw)) {
    if (static_cast<int>(plan.others.size()) <= more && Device::host(index) != home) {
      plan.others.push_back(Device::host(index));
    }
  }
  const int output = draw.below(10);
  plan.output_device = output < 6 ? home : output < 9 ? Device::host(draw.below(kDevices)) : Device::cpu();

  plan.steps.push_back({Attempt::build, 0, Device::cpu(), false, false, false, false});
  const std::vector<Attempt> others{Attempt::infer,  Attempt::overlap, Attempt::overlap,
                                    Attempt::divide, Attempt::divide,  Attempt::graph};
  const int trainings = draw.between(5, 6);
  for (int i = 0; i < trainings; ++i) {
    for (const bool training : {true, false}) {
      if (!training && draw.chance(50)) continue;
      Step step{.attempt = training ? Attempt::train : draw.one_of(others),
                .rows = draw.between(1, 20),
                .source = Device::cpu(),
                .balanced = draw.chance(50),
                .wants_input_gradient = draw.chance(40),
                .reads_late = draw.chance(50),
                .on_side_stream = draw.chance(35)};
      const int source = draw.below(3);
      if (source == 1) step.source = home;
      if (source == 2) step.source = Device::host(draw.below(kDevices));
      plan.steps.push_back(step);
    }
  }
  if (with_fault) plan.fault = draw_fault(draw, plan.steps.size());
  return plan;
}

std::string Plan::text() const {
  std::string text = cat("wrapper ", devices, ", the other ", others, ", results on ", output_device, ", ",
                         peeks ? "replicas wait" : "replicas do not wait", "; steps:");
  for (const Step& step : steps)
    text += cat(' ', drill::to_string(step.attempt), '(', step.rows, " from ", step.source, ')');
  if (fault.kind != FaultKind::none) {
    text += cat("; fault ", drill::to_string(fault.kind), " number ", fault.count, " (", fault.from, "-", fault.to,
                ") from step ", fault.step, " on");
  }
  return text;
}

}  // namespace drill
