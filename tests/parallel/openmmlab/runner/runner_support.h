// A small model, its data and a metric for the tests of the Runner.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "lockstep/parallel/openmmlab/runner/runner.h"
#include "lockstep/tensor/data/data_loader.h"
#include "lockstep/tensor/data/distributed_sampler.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/nn/norm.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/ddp/support.h"
#include "support/temporary_folder.h"

namespace runner_test {

using namespace parallel_test;
using lockstep::test::read_bytes;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

// In f64, with random numbers in training. The last call's mode and grad mode can be asked for.
struct Line : BaseModel<Line> {
  Line() {
    const NoGrad no_grad;
    head.weight.assign(parallel_test::noise({2, 3}, 1));
    head.bias.assign(parallel_test::noise({2}, 2));
  }
  ModelOutput<Tensor, std::vector<Tensor>> forward(const Tensor& x, const Tensor& y, Mode mode) const {
    trained = is_training();
    recorded = GradMode::enabled();
    const Tensor scores = head(dropout(x, 0.25, is_training()));
    if (mode == Mode::loss)
      return Losses{{"loss_mse", mse_loss(scores, y)}, {"size", Tensor(mean(abs(scores))).detach()}};
    if (mode == Mode::predict) return std::vector<Tensor>{scores};
    return scores;
  }
  void members(Members& m) override { m("head", head); }

  Linear head = [] {
    const DefaultDType dtype(DType::f64);
    return Linear(3, 2);
  }();
  mutable bool trained = false, recorded = false;
};

using Pairs = TensorDataset<2>;
inline Pairs pairs(std::int64_t count, std::uint64_t seed = 7) {
  return TensorDataset(noise({count, 3}, seed), noise({count, 2}, seed + 1));
}

// Of each sample; counts them.
struct SquaredError : BaseMetric<double> {
  template <class Batch>
  void process(const Batch& batch, const std::vector<Tensor>& predictions) {
    const Tensor difference = predictions.at(0).to(Device::cpu()) - batch[1];
    for (const double value : values(sum(difference * difference, {1}))) results.push_back(value);
  }
  NamedValues compute_metrics(const std::vector<double>& all) const override {
    double sum = 0;
    for (const double value : all) sum += value;
    return {{"mse", sum / static_cast<double>(all.size())}, {"samples", static_cast<std::int64_t>(all.size())}};
  }
};

// Gives one value after the other, and looks at no data.
struct Prescribed {
  std::vector<double> scores;
  std::size_t next = 0;
  template <class Batch, class Predictions>
  void process(const Batch&, const Predictions&) {}
  NamedValues evaluate() { return {{"loss", 1}, {"acc/top1", scores.at(next++)}}; }
};

inline std::string all_of(const std::vector<NamedTensor>& state) {
  std::string text;
  for (const NamedTensor& named : state) {
    text += named.name + ":";
    for (const double value : named.tensor.to(DType::f64).to_vector<double>()) text += cat(' ', value);
    text += '\n';
  }
  return text;
}

inline bool exists(const std::string& path) { return std::filesystem::exists(path); }

// Ends a training after that iteration.
inline RunnerHook stop_at(std::int64_t iter) {
  RunnerHook hook;
  hook.after_train_iter = [iter](RunnerCore& runner, const LogVars&) {
    if (runner.iter() == iter) runner.stop_training();
  };
  return hook;
}

}  // namespace runner_test
