// The module that the drill trains, and a way to work on side streams.
#pragma once

#include <optional>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "model.h"

namespace drill {

using namespace lockstep;

inline Tensor tensor_of(const Integers& values, const Shape& shape, Device device = Device::cpu()) {
  return from_data(exact(values), shape, {.dtype = DType::f64, .device = device});
}

struct Net : Module<Net> {
  Parameter scale, shift, frozen, mix;
  Buffer seen;
  bool peeks = false;

  explicit Net(const Model& model, bool peeking)
      : scale(tensor_of(model.scale, {kIn})),
        shift(tensor_of(model.shift, {kIn})),
        frozen(tensor_of(model.frozen, {kIn}), false),
        mix(tensor_of(model.mix, {kIn, kOut}), false),
        seen(tensor_of({model.seen}, {1})),
        peeks(peeking) {}

  Tensor forward(const Tensor& x) const {
    const Device device = x.device();
    const Tensor hidden = (x * scale.on(device) + shift.on(device)) * frozen.on(device);
    if (peeks) hidden.detach().sum().item<double>();
    Tensor rows = seen.on(device);
    if (is_training()) {
      const NoGrad off;
      rows.add_(static_cast<double>(x.size(0)));
    }
    return matmul(hidden, mix.on(device)) + rows;
  }
  void members(Members& m) override {
    m("scale", scale), m("shift", shift), m("frozen", frozen), m("mix", mix), m("seen", seen);
  }
};

// A stream of its own for the work on one device: after what is on the current one, and before what comes there later.
class SideStream {
 public:
  SideStream(Device device, bool wanted) : outer_(current_stream(device)) {
    if (!wanted) return;
    side_.emplace(device);
    side_->wait_for(outer_);
    scope_.emplace(*side_);
  }
  ~SideStream() {
    if (!side_) return;
    scope_.reset();
    try {
      outer_.wait_for(*side_);
    } catch (const Error&) {
      // The recovery synchronizes with everything.
    }
  }

 private:
  Stream outer_;
  std::optional<Stream> side_;
  std::optional<StreamScope> scope_;
};

}  // namespace drill
