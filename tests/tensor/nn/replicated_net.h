// A module of several parameters and a buffer, of which three devices get copies.
#pragma once

#include <vector>

#include "lockstep/runtime/copy/peer.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/devices.h"
#include "support/tensors.h"

namespace replicated {

using namespace lockstep;

using support::Doubles;
using support::f64_vector;
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

struct ReplicatedNet : Module<ReplicatedNet> {
  Parameter a{f64_vector({1, 2, 3})}, b{f64_vector({4})}, c{f64_vector({5, 6})};
  Parameter narrow{ones({7}, {.dtype = DType::f32})};
  Buffer state{f64_vector({0, 0})};
  void members(Members& m) override { m("a", a), m("b", b), m("c", c), m("narrow", narrow), m("state", state); }
};
inline constexpr std::uint64_t kAllBytes = (3 + 1 + 2 + 2) * 8 + 7 * 4;

// Sums of these depend on the order.
inline Tensor uneven(std::int64_t count, int seed, DType dtype, Device device) {
  const Tensor x = arange(0, static_cast<double>(count), 1, {.dtype = DType::f64});
  return (sin(x * (1.0 + 0.37 * seed)) * (seed % 3 == 1 ? 1e4 : 1.0)).to(dtype).to(device);
}

inline void finish(const std::vector<Device>& devices) {
  for (const Device device : devices) synchronize(device);
}

// Whether what is enqueued runs later.
inline bool asynchronous() { return !default_stream(support::device_at(0)).synchronous(); }

inline ReplicatedNet net_on(Device device) {
  ReplicatedNet net;
  net.to(device);
  return net;
}

}  // namespace replicated
