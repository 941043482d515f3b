// Models, batches and training loops for the tests of what OpenMMLab's users train with.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/openmmlab/model/base_model.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/ddp/support.h"

namespace parallel_test {

// Two layers that fit targets; f64.
struct Regressor : BaseModel<Regressor> {
  Affine first{3, 4, 1}, second{4, 2, 2};
  ModelOutput<Tensor, std::vector<Tensor>> forward(const Tensor& inputs, const Tensor& targets, Mode mode) const {
    const Tensor output = second(tanh(first(inputs)));
    if (mode == Mode::loss) return Losses{{"loss_fit", (output - targets) * (output - targets)}};
    if (mode == Mode::predict) return std::vector<Tensor>{output};
    return output;
  }
  void members(Members& m) override { m("first", first), m("second", second); }
};

using Batch = std::pair<Tensor, Tensor>;
// Rows [rank * rows, (rank + 1) * rows) of batch number `index` of `ranks` ranks.
inline Batch share_of_batch(int index, int rank, int ranks, std::int64_t rows = 2) {
  const auto seed = static_cast<std::uint64_t>(100 + index);
  return {noise({rows * ranks, 3}, seed).narrow(0, rank * rows, rows),
          noise({rows * ranks, 2}, seed + 500).narrow(0, rank * rows, rows)};
}
inline Batch whole_batch(int index, int ranks = 1) { return share_of_batch(index, 0, 1, 2 * ranks); }

// The loss that Regressor computes, without anything of BaseModel's.
inline Tensor fit_loss(const Regressor& model, const Batch& batch) {
  const Tensor output = model.second(tanh(model.first(batch.first)));
  return mean((output - batch.second) * (output - batch.second));
}

struct Plan {
  int losses = 10;
  int window = 1;  // losses per step
  bool knows_end = true;
  double max_norm = 0, clip_value = 0;
};
inline OptimWrapperOptions wrapper_options(const Plan& plan) {
  OptimWrapperOptions options{.accumulative_counts = plan.window};
  if (plan.max_norm > 0) options.clip_grad = ClipGrad{.max_norm = plan.max_norm};
  if (plan.clip_value > 0) options.clip_grad = ClipGrad{.type = "value", .clip_value = plan.clip_value};
  return options;
}

// A training as one writes it by hand: windows of losses, each divided by the number in its window, and a step.
inline Doubles plain_loop(const Plan& plan, int ranks = 1) {
  Regressor model;
  SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int begin = 0; begin < plan.losses; begin += plan.window) {
    int length = plan.window;
    if (plan.knows_end) length = std::min(length, plan.losses - begin);
    optimizer.zero_grad();
    for (int i = begin; i < std::min(begin + length, plan.losses); ++i) {
      const Tensor loss = fit_loss(model, whole_batch(i, ranks));
      (plan.window == 1 ? loss : loss / length).backward();
    }
    if (begin + length > plan.losses) break;
    if (plan.max_norm > 0) clip_grad_norm(model.parameters(), plan.max_norm);
    if (plan.clip_value > 0) clip_grad_value(model.parameters(), plan.clip_value);
    optimizer.step();
  }
  return all_parameters(model);
}

}  // namespace parallel_test
