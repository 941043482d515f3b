#include "plan.h"

#include <algorithm>

#include "lockstep/runtime/strings.h"

namespace drill {
namespace {

bool contains(const std::vector<Device>& list, Device device) {
  return std::find(list.begin(), list.end(), device) != list.end();
}

}  // namespace

const char* to_string(Attempt attempt) {
  constexpr const char* kNames[] = {"build", "train", "infer", "overlap", "divide", "graph"};
  return kNames[static_cast<int>(attempt)];
}

Plan draw_plan(std::uint64_t seed, bool with_fault) {
  Draw draw(seed * 2 + (with_fault ? 1 : 0));
  const std::shared_ptr<Machine> machine = draw_machine(seed, draw);
  Plan plan{.seed = seed,
            .with_fault = with_fault,
            .machine = machine,
            .devices = {},
            .others = {},
            .output_device = {},
            .balanced = draw.chance(30),
            .peeks = draw.chance(25),
            .steps = {},
            .fault = {}};
  // 1, 2, 3, 5 or 8 devices, in order or shuffled, which also moves home.
  std::vector<int> order = draw.shuffled(machine->devices);
  if (draw.chance(40)) std::sort(order.begin(), order.end());
  const int count = std::min(draw.one_of<int>({1, 2, 2, 3, 3, 5, 5, 8}), machine->devices);
  for (int i = 0; i < count; ++i) plan.devices.push_back(machine->device(order[static_cast<std::size_t>(i)]));
  const Device home = plan.devices[0];
  plan.others = {home};
  const int more = draw.between(1, 3);
  for (const int index : draw.shuffled(machine->devices)) {
    if (static_cast<int>(plan.others.size()) <= more && machine->device(index) != home) {
      plan.others.push_back(machine->device(index));
    }
  }
  const auto any_device = [&] { return machine->device(draw.below(machine->devices)); };
  const int output = draw.below(10);
  plan.output_device = output < 6 ? home : output < 9 ? any_device() : Device::cpu();

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
      if (source == 2) step.source = any_device();
      plan.steps.push_back(step);
    }
  }
  if (with_fault) plan.fault = machine->draw_fault(draw, static_cast<int>(plan.steps.size()));
  return plan;
}

std::vector<Device> Plan::used() const {
  std::vector<Device> list = devices;
  const auto add = [&](Device device) {
    if (!device.is_cpu() && !contains(list, device)) list.push_back(device);
  };
  for (const Device device : others) add(device);
  add(output_device);
  for (const Step& step : steps) add(step.source);
  return list;
}

bool Plan::leave_out(const std::vector<Device>& lost) {
  const auto is_lost = [&](Device device) { return contains(lost, device); };
  std::vector<Device> left = used();
  std::erase_if(left, is_lost);
  if (left.empty()) return false;
  std::erase_if(devices, is_lost);
  if (devices.empty()) devices = {left[0]};
  const Device home = devices[0];
  std::erase_if(others, [&](Device device) { return device == home || is_lost(device); });
  others.insert(others.begin(), home);
  if (is_lost(output_device)) output_device = home;
  for (Step& step : steps) {
    if (is_lost(step.source)) step.source = home;
  }
  return true;
}

std::string Plan::text() const {
  std::string text = cat(machine->text(), "; wrapper ", devices, ", the other ", others, ", results on ", output_device,
                         ", ", peeks ? "replicas wait" : "replicas do not wait", "; steps:");
  for (const Step& step : steps)
    text += cat(' ', drill::to_string(step.attempt), '(', step.rows, " from ", step.source, ')');
  if (with_fault) text += cat("; the fault from step ", fault.step, " on");
  return text;
}

}  // namespace drill
