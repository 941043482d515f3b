// Trainings and models whose weights are averaged, and what the averages must be, for the tests of hooks and averaged
// models.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/runner/ema_hook.h"
#include "parallel/openmmlab/runner/runner_support.h"

namespace runner_test {

// In f64; its buffer counts the training forwards.
struct Counting : BaseModel<Counting> {
  Affine head{3, 2, 1};
  Buffer seen{zeros({1}, {.dtype = DType::f64})}, whole{zeros({1}, {.dtype = DType::i64})};
  ModelOutput<Tensor, std::vector<Tensor>> forward(const Tensor& x, const Tensor& y, Mode mode) const {
    if (is_training()) {
      const NoGrad no_grad;
      seen.tensor() += 1.0;
      whole.assign(whole.tensor() + ones({1}, {.dtype = DType::i64, .device = whole.device()}));
    }
    const Tensor scores = head(x);
    if (mode == Mode::loss) return Losses{{"loss", mse_loss(scores, y)}};
    return std::vector<Tensor>{scores};
  }
  void members(Members& m) override { m("head", head), m("seen", seen), m("whole", whole); }
};

// The parameters alone.
inline Doubles weights(const ModuleBase& module) {
  Doubles all;
  for (const Parameter& parameter : module.parameters())
    for (const double value : values(parameter.tensor().reshape({-1}))) all.push_back(value);
  return all;
}

struct Training {
  Counting model;
  OptimWrapper optim{SGD(model.parameters(), {.lr = 0.2, .momentum = 0.5})};
  DataLoader<Pairs> loader{pairs(6), {.batch_size = 2, .shuffle = true, .seed = 5}},
      val_loader{pairs(2), {.batch_size = 2}};
  Prescribed metric{{0.1, 0.5, 0.55, 0.58, 0.59, 0.5, 0.4, 0.3}};
  Runner<Counting> runner;
  explicit Training(RunnerOptions options) : runner(model, optim, std::move(options)) {}
  void train() { runner.train(loader, val_loader, metric); }
};

// Two parameters that are always the same, and are both in an answer.
struct Pair : Module<Pair> {
  explicit Pair(std::int64_t count = 3)
      : a(ones({count}, {.dtype = DType::f64})), b(ones({count}, {.dtype = DType::f64})) {}
  Tensor forward(const Tensor& x) const { return cat({x * a.on(x.device()), x * b.on(x.device())}); }
  void members(Members& m) override { m("a", a), m("b", b); }
  void assign(double value) {
    load_state_dict(
        {{"a", full(a.shape(), value, {.dtype = DType::f64})}, {"b", full(b.shape(), value, {.dtype = DType::f64})}});
  }
  Parameter a, b;
};

// What callers of the model get while `change` is called again and again, each answer once. "torn" is one of two
// versions.
template <class M, class F>
std::string answers_of(const M& model, F&& change) {
  const auto answer = [&model] {
    const NoGrad no_grad;
    const Doubles all = values(model(ones({3}, {.dtype = DType::f64})));
    return all.front() == all.back() ? cat(all.front()) : std::string("torn");
  };
  std::set<std::string> seen{answer()};
  std::array<std::set<std::string>, 3> of_callers;
  std::atomic<int> count{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> callers;
  for (std::set<std::string>& mine : of_callers)
    callers.emplace_back([&] {
      for (; !done; ++count) mine.insert(answer());
    });
  while (count < 2000) change();
  done = true;
  for (std::thread& caller : callers) caller.join();
  for (std::set<std::string>& mine : of_callers) seen.merge(mine);
  std::string text;
  for (const std::string& each : seen) text += each + ' ';
  return text;
}

// The averages after each iteration by their definition, of weights that were written down after each.
inline Doubles average_of(const std::vector<Doubles>& history, const EMAHookOptions& o) {
  Doubles average = history[0];
  for (std::size_t i = 1; i < history.size(); ++i) {
    if (i % static_cast<std::size_t>(o.interval) != 0) continue;
    const auto updates = static_cast<double>(i);
    double share = o.momentum;
    if (o.kind == AverageKind::annealing)
      share = std::max(o.momentum, static_cast<double>(o.gamma) / (static_cast<double>(o.gamma) + updates));
    if (o.kind == AverageKind::stochastic) share = 1 / (std::floor(updates / static_cast<double>(o.interval)) + 1);
    for (std::size_t k = 0; k < average.size(); ++k) average[k] = (1 - share) * average[k] + share * history[i][k];
  }
  return average;
}
inline double largest_distance(const Doubles& a, const Doubles& b) {
  double most = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace runner_test
