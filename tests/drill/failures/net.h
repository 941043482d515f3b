// What the ranks train.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"

namespace failures {

using namespace lockstep;

constexpr std::int64_t kRows = 3, kIn = 6;

struct Net : Module<Net> {
  Linear first{kIn, 5}, second{5, 2};
  void members(Members& m) override { m("first", first), m("second", second); }
  Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

// [kRows, kIn]; every step of every rank has another one.
inline Tensor batch_of(int step, int rank, Device device) {
  std::vector<float> values;
  for (int i = 0; i < kRows * kIn; ++i)
    values.push_back(static_cast<float>(((step * 31 + rank * 17 + i * 7) % 23) - 11) / 8);
  return from_data(values, {kRows, kIn}, {.device = device});
}

}  // namespace failures
