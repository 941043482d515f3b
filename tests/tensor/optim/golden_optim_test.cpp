#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/lr_schedule.h"
#include "lockstep/tensor/optim/reduce_lr_on_plateau.h"
#include "lockstep/tensor/optim/rmsprop.h"
#include "lockstep/tensor/optim/sgd.h"
#include "lockstep/tensor/optim/sparse_adam.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

constexpr std::size_t kParameters = 3;

// The first operands are the parameters, the next as many their gradients in the first step, and so on.
template <class Optimizer, class Options>
Results after_steps(GoldenCase& c, const Options& options) {
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < kParameters; ++i) parameters.emplace_back(c[i].clone());
  Optimizer optimizer(parameters, options);
  for (std::size_t at = kParameters; at < c.operands(); at += kParameters) {
    for (std::size_t i = 0; i < kParameters; ++i) parameters[i].set_grad(c[at + i].clone());
    optimizer.step();
  }
  Results result;
  for (const Parameter& parameter : parameters) result.push_back(parameter.tensor().detach());
  return result;
}

Results sgd(GoldenCase& c) {
  return after_steps<SGD>(c, SgdOptions{.lr = c.get("lr"),
                                        .momentum = c.get("momentum", 0.0),
                                        .dampening = c.get("dampening", 0.0),
                                        .weight_decay = c.get("weight_decay", 0.0),
                                        .nesterov = c.get("nesterov", false),
                                        .maximize = c.get("maximize", false)});
}

template <class Optimizer, class Options>
Results adam(GoldenCase& c) {
  Options options{.lr = c.get("lr")};
  options.betas = {c.get("beta1", 0.9), c.get("beta2", 0.999)};
  options.eps = c.get("eps", options.eps);
  options.weight_decay = c.get("weight_decay", options.weight_decay);
  options.amsgrad = c.get("amsgrad", false);
  options.maximize = c.get("maximize", false);
  return after_steps<Optimizer>(c, options);
}

Results rmsprop(GoldenCase& c) {
  RMSpropOptions options{.lr = c.get("lr")};
  options.alpha = c.get("alpha", options.alpha);
  options.eps = c.get("eps", options.eps);
  options.weight_decay = c.get("weight_decay", 0.0);
  options.momentum = c.get("momentum", 0.0);
  options.centered = c.get("centered", false);
  options.maximize = c.get("maximize", false);
  return after_steps<RMSprop>(c, options);
}

// After the parameter, the rows of each step: indices, values.
Results sparse_adam(GoldenCase& c) {
  const Parameter parameter(c[0].clone());
  SparseAdamOptions options{.lr = c.get("lr"), .maximize = c.get("maximize", false)};
  options.betas = {c.get("beta1", 0.9), c.get("beta2", 0.999)};
  options.eps = c.get("eps", options.eps);
  SparseAdam optimizer({parameter}, options);
  for (std::size_t at = 1; at < c.operands(); at += 2) {
    parameter.set_sparse_grad({c[at], c[at + 1], parameter.shape()});
    optimizer.step();
  }
  return {parameter.tensor().detach()};
}

Results rates(GoldenCase& c, Schedule schedule) {
  SGD optimizer({Parameter(zeros({1}))}, {.lr = 0.5});
  LrScheduler scheduler(optimizer, std::move(schedule));
  std::vector<double> result;
  for (int epoch = 0; epoch < c.get<int>("epochs"); ++epoch) {
    result.push_back(optimizer.lr());
    scheduler.step();
  }
  return {from_data(result, {static_cast<std::int64_t>(result.size())}, {.device = device_at(0)})};
}

// The rates of two groups, after each metric. Half way another scheduler goes on from the state.
Results plateau(GoldenCase& c) {
  const Parameter one(zeros({1})), other(zeros({1}));
  SGD optimizer({{.parameters = {one}, .lr = 0.5}, {.parameters = {other}, .lr = 0.02}});
  const PlateauOptions options{.mode = c.text("mode") == "min" ? PlateauMode::min : PlateauMode::max,
                               .factor = c.get("factor"),
                               .patience = c.get<int>("patience"),
                               .threshold = c.get("threshold"),
                               .relative = c.text("threshold_mode") == "rel",
                               .cooldown = c.get<int>("cooldown"),
                               .min_lr = c.get("min_lr")};
  ReduceLROnPlateau first(optimizer, options), second(optimizer, options);
  const std::vector<double> metrics = c[0].to_vector<double>();
  std::vector<double> result;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    if (i == metrics.size() / 2) second.load_state_dict(first.state_dict());
    (i < metrics.size() / 2 ? first : second).step(metrics[i]);
    for (const std::size_t group : {0, 1}) result.push_back(optimizer.lr(group));
  }
  return {from_data(result, {static_cast<std::int64_t>(metrics.size()), 2}, {.device = device_at(0)})};
}

}  // namespace

TEST_CASE("golden: optimizers and schedules") {
  test::check_golden(
      "optim", device_at(0),
      {{"SGD", sgd},
       {"Adam", adam<Adam, AdamOptions>},
       {"AdamW", adam<AdamW, AdamWOptions>},
       {"RMSprop", rmsprop},
       {"SparseAdam", sparse_adam},
       {"StepLR",
        [](GoldenCase& c) { return rates(c, StepLR{.step_size = c.get<int>("step_size"), .gamma = c.get("gamma")}); }},
       {"MultiStepLR",
        [](GoldenCase& c) {
          return rates(c, MultiStepLR{.milestones = c.integers("milestones"), .gamma = c.get("gamma")});
        }},
       {"ExponentialLR", [](GoldenCase& c) { return rates(c, ExponentialLR{.gamma = c.get("gamma")}); }},
       {"CosineAnnealingLR",
        [](GoldenCase& c) {
          return rates(c, CosineAnnealingLR{.T_max = c.get<int>("T_max"), .eta_min = c.get("eta_min")});
        }},
       {"CosineAnnealingWarmRestarts",
        [](GoldenCase& c) {
          return rates(c, CosineAnnealingWarmRestarts{
                              .T_0 = c.get<int>("T_0"), .T_mult = c.get<int>("T_mult"), .eta_min = c.get("eta_min")});
        }},
       {"PolynomialLR",
        [](GoldenCase& c) {
          return rates(c, PolynomialLR{.total_iters = c.get<int>("total_iters"), .power = c.get("power")});
        }},
       {"OneCycleLR",
        [](GoldenCase& c) {
          return rates(c, OneCycleLR{.total_steps = c.get<int>("total_steps"),
                                     .pct_start = c.get("pct_start"),
                                     .cosine = c.text("anneal_strategy") == "cos",
                                     .div_factor = c.get("div_factor"),
                                     .final_div_factor = c.get("final_div_factor"),
                                     .three_phase = c.get<bool>("three_phase")});
        }},
       {"ReduceLROnPlateau", plateau},
       {"LinearLR",
        [](GoldenCase& c) {
          return rates(c, LinearLR{.start_factor = c.get("start_factor"),
                                   .end_factor = c.get("end_factor"),
                                   .total_iters = c.get<int>("total_iters")});
        }},
       {"SequentialLR", [](GoldenCase& c) {
          const auto milestone = c.get<std::int64_t>("milestone");
          return rates(c, SequentialLR{.schedules = {LinearLR{.start_factor = 0.1, .total_iters = milestone},
                                                     CosineAnnealingLR{.T_max = 8}},
                                       .milestones = {milestone}});
        }}});
}
