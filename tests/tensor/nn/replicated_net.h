// A module of several parameters and a buffer, of which three devices get copies.
#pragma once

#include <vector>

#include "lockstep/runtime/copy/peer.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/devices.h"

namespace replicated {

using namespace lockstep;

using Doubles = std::vector<double>;
inline const std::vector<Device>& three_devices() {
  static const std::vector<Device> made = support::first_devices(3);
  return made;
}

// Whether copies go straight from each to each: what is chosen for fast links is chosen only then.
inline bool reach_each_other(const std::vector<Device>& devices) {
  for (const Device from : devices)
    for (const Device to : devices)
      if (from != to && !peer_copies(from, to)) return false;
  return true;
}

inline Tensor values(Doubles v, Device device = Device::cpu()) {
  const auto n = static_cast<std::int64_t>(v.size());
  return from_data(v, {n}, {.dtype = DType::f64, .device = device});
}

struct Net : Module<Net> {
  Parameter a{values({1, 2, 3})}, b{values({4})}, c{values({5, 6})};
  Parameter narrow{ones({7}, {.dtype = DType::f32})};
  Buffer state{values({0, 0})};
  void members(Members& m) override { m("a", a), m("b", b), m("c", c), m("narrow", narrow), m("state", state); }
};
inline constexpr std::uint64_t kAllBytes = (3 + 1 + 2 + 2) * 8 + 7 * 4;

inline Net net_on(Device device) {
  Net net;
  net.to(device);
  return net;
}

}  // namespace replicated
