// Schedulers of a Runner against mmengine's values, computed here by closed formulas or by a plain loop.
#include <numbers>

#include "lockstep/parallel/openmmlab/optim/optim_wrapper_dict.h"
#include "parallel/openmmlab/runner/runner_support.h"

using namespace runner_test;

namespace {

constexpr double kPi = std::numbers::pi;
constexpr std::int64_t kPerEpoch = 3;

struct Values {
  Doubles rates, momenta;  // in each iteration
};

// What an optimizer with a rate of 0.1 and a momentum of 0.8 has over `epochs` epochs of three iterations.
Values trained(std::vector<RunnerScheduler> schedulers, std::int64_t epochs, bool by_iters = false) {
  Line model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1, .momentum = 0.8}));
  Values seen;
  RunnerHook hook;
  hook.before_train_iter = [&](RunnerCore& runner) {
    seen.rates.push_back(runner.optim_wrapper().get_lr()[0].second[0]);
    seen.momenta.push_back(runner.optim_wrapper().get_momentum()[0].second[0]);
  };
  RunnerOptions options{.param_schedulers = std::move(schedulers), .hooks = {hook}};
  if (by_iters)
    options.train_cfg = IterBasedTrainLoop{.max_iters = epochs * kPerEpoch};
  else
    options.train_cfg = EpochBasedTrainLoop{.max_epochs = epochs};
  Runner runner(model, optim, options);
  DataLoader loader(pairs(2 * kPerEpoch), {.batch_size = 2});
  runner.train(loader);
  return seen;
}
Doubles rates(std::vector<RunnerScheduler> schedulers, std::int64_t epochs) {
  return trained(std::move(schedulers), epochs).rates;
}

// f(iteration, epoch) for every iteration.
template <class F>
Doubles expected(std::int64_t epochs, F f) {
  Doubles all;
  for (std::int64_t i = 0; i < epochs * kPerEpoch; ++i) all.push_back(f(i, i / kPerEpoch));
  return all;
}

// "" or the first place where they differ by more than rounding.
std::string difference(const Doubles& got, const Doubles& wanted) {
  if (got.size() != wanted.size()) return cat(got.size(), " values instead of ", wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - wanted[i]) <= 1e-13))
      return cat("in iteration ", i, " ", got[i], " instead of ", wanted[i]);
  return "";
}

double half_wave(double top, double bottom, double part) {
  return bottom + (top - bottom) * (1 + std::cos(kPi * part)) / 2;
}

}  // namespace

TEST_CASE("Runner: a warm-up by iteration and a cosine by epoch act together") {
  // The warm-up goes over iterations 0 to 4, in the fifth of which its factor is 1.
  const auto warm_up = [](std::int64_t i) {
    return 0.001 + 0.999 * static_cast<double>(std::min<std::int64_t>(i, 4)) / 4;
  };
  CHECK(difference(rates({mmengine::LinearLR{.start_factor = 0.001, .by_epoch = false, .end = 5},
                          mmengine::CosineAnnealingLR{.T_max = 4}},
                         4),
                   expected(4, [&](std::int64_t i, std::int64_t epoch) {
                     return 0.1 * warm_up(i) * (1 + std::cos(kPi * static_cast<double>(epoch) / 4)) / 2;
                   })) == "");
  // In the other order too, and in a loop by iterations.
  const auto other = trained(
      {mmengine::CosineAnnealingLR{.T_max = 4}, mmengine::LinearLR{.start_factor = 0.001, .by_epoch = false, .end = 5}},
      4, true);
  CHECK(difference(other.rates, expected(4, [&](std::int64_t i, std::int64_t epoch) {
                     return 0.1 * warm_up(i) * (1 + std::cos(kPi * static_cast<double>(epoch) / 4)) / 2;
                   })) == "");
}

TEST_CASE("Runner: a cosine that begins where the warm-up ends goes down to eta_min") {
  // Given in epochs, stepped in iterations: from iteration 3 on, over 9 of them.
  CHECK(difference(
            rates({mmengine::LinearLR{.start_factor = 0.5, .by_epoch = false, .end = 3},
                   mmengine::CosineAnnealingLR{.eta_min = 0.01, .begin = 1, .end = 4, .convert_to_iter_based = true}},
                  4),
            expected(4, [](std::int64_t i, std::int64_t) {
              return i < 3 ? 0.1 * (0.5 + 0.25 * static_cast<double>(i))
                           : half_wave(0.1, 0.01, static_cast<double>(i - 3) / 9);
            })) == "");
  // Past the bottom of the wave and up again, where the recurrence alone would divide 0 by 0.
  CHECK(difference(rates({mmengine::CosineAnnealingLR{.T_max = 2, .eta_min_ratio = 0.1}}, 6),
                   expected(6, [](std::int64_t, std::int64_t epoch) {
                     return half_wave(0.1, 0.01, static_cast<double>(epoch % 4) / 2);
                   })) == "");
}

TEST_CASE("Runner: every scheduler by itself") {
  const auto epoch_of = [](auto f) {
    return expected(6, [f](std::int64_t, std::int64_t epoch) { return f(static_cast<double>(epoch)); });
  };
  CHECK(difference(rates({mmengine::StepLR{.step_size = 2, .gamma = 0.5}}, 6),
                   epoch_of([](double e) { return 0.1 * std::pow(0.5, std::floor(e / 2)); })) == "");
  CHECK(
      difference(rates({mmengine::StepLR{.step_size = 1, .gamma = 0.5, .begin = 2, .convert_to_iter_based = true}}, 6),
                 epoch_of([](double e) { return 0.1 * std::pow(0.5, std::max(0.0, e - 2)); })) == "");
  CHECK(difference(rates({mmengine::MultiStepLR{.milestones = {1, 3, 3}, .gamma = 0.1}}, 6), epoch_of([](double e) {
                     return e < 1 ? 0.1 : e < 3 ? 0.01 : 0.0001;
                   })) == "");
  // Milestones count from `begin`; from `end` on nothing happens.
  CHECK(
      difference(
          rates({mmengine::MultiStepLR{.milestones = {1, 3}, .begin = 1, .end = 4, .convert_to_iter_based = true}}, 6),
          epoch_of([](double e) { return e < 2 ? 0.1 : 0.01; })) == "");
  CHECK(difference(rates({mmengine::ExponentialLR{.gamma = 0.9, .end = 4}}, 6),
                   epoch_of([](double e) { return 0.1 * std::pow(0.9, std::min(e, 3.0)); })) == "");
  CHECK(difference(rates({mmengine::ConstantLR{.factor = 0.25, .end = 4}}, 6),
                   epoch_of([](double e) { return e < 3 ? 0.025 : 0.1; })) == "");
  CHECK(difference(rates({mmengine::LinearLR{.start_factor = 1, .end_factor = 0.2, .end = 5}}, 6),
                   epoch_of([](double e) { return 0.1 * (1 - 0.2 * std::min(e, 4.0)); })) == "");
  CHECK(difference(rates({mmengine::PolyLR{.power = 2, .eta_min = 0.01, .end = 6}}, 6),
                   epoch_of([](double e) { return 0.01 + 0.09 * std::pow(1 - e / 5, 2); })) == "");
  CHECK(
      difference(rates({mmengine::CosineRestartLR{.periods = {2, 4}, .restart_weights = {1, 0.5}, .eta_min = 0.02}}, 6),
                 epoch_of([](double e) {
                   return e < 2 ? half_wave(0.1, 0.02, e / 2) : half_wave(0.05, 0.02, (e - 2) / 4);
                 })) == "");
  // 18 iterations: up to the fifth, down to the last.
  CHECK(difference(rates({mmengine::OneCycleLR{.eta_max = 0.5, .by_epoch = false}}, 6),
                   expected(6, [](std::int64_t i, std::int64_t) {
                     const double top = 0.3 * 18 - 1, at = static_cast<double>(i);
                     return at <= top ? half_wave(0.02, 0.5, at / top)
                                      : half_wave(0.5, 0.02 / 1e4, (at - top) / (17 - top));
                   })) == "");
}

TEST_CASE("Runner: schedulers of momentums, and those of one optimizer of several") {
  const Values seen =
      trained({mmengine::LinearMomentum{.start_factor = 0.5, .by_epoch = false, .end = 3},
               mmengine::ExponentialLR{.gamma = 0.5}, mmengine::StepMomentum{.step_size = 2, .gamma = 0.5}},
              3);
  CHECK(difference(seen.rates, expected(3, [](std::int64_t, std::int64_t epoch) {
                     return 0.1 * std::pow(0.5, static_cast<double>(epoch));
                   })) == "");
  CHECK(difference(seen.momenta, expected(3, [](std::int64_t i, std::int64_t epoch) {
                     return 0.8 * std::min(1.0, 0.5 + 0.25 * static_cast<double>(i)) * (epoch < 2 ? 1 : 0.5);
                   })) == "");

  struct Two : BaseModel<Two> {
    Affine a{3, 2, 1}, b{3, 2, 2};
    ModelOutput<> forward(const Tensor& x, const Tensor& y, Mode) const {
      return Losses{{"loss", mse_loss(a(x) + b(x), y)}};
    }
    LogVars train_step(const std::array<Tensor, 2>& batch, OptimWrapper& optims) const {
      (void)batch, (void)optims;
      return {{"loss", 1}};
    }
    void members(Members& m) override { m("a", a), m("b", b); }
  } model;
  OptimWrapperDict optims;
  optims.add("a", std::make_unique<OptimWrapper>(SGD(model.a.parameters(), {.lr = 1})));
  optims.add("b", std::make_unique<OptimWrapper>(SGD(model.b.parameters(), {.lr = 10})));
  std::string said;
  RunnerHook hook;
  hook.before_train_iter = [&](RunnerCore& runner) {
    for (const auto& [name, values] : runner.optim_wrapper().get_lr()) said += cat(name, '=', values[0], ' ');
  };
  Runner runner(model, static_cast<OptimWrapper&>(optims),
                {.train_cfg = EpochBasedTrainLoop{.max_epochs = 3},
                 .param_schedulers = {mmengine::StepLR{.gamma = 0.5},
                                      {mmengine::MultiStepLR{.milestones = {2}, .gamma = 0.5}, "b"}},
                 .hooks = {hook}});
  DataLoader loader(pairs(2), {.batch_size = 2});
  runner.train(loader);
  CHECK(said == "a.lr=1 b.lr=10 a.lr=0.5 b.lr=5 a.lr=0.25 b.lr=1.25 ");
  Runner unknown(model, static_cast<OptimWrapper&>(optims), {.param_schedulers = {{mmengine::StepLR{}, "c"}}});
  CHECK(message_of<InvalidArgument>([&] { unknown.train(loader); }) ==
        "[Runner] expected a scheduler for an optimizer out of (a, b), got one for 'c'");
}

TEST_CASE("Runner: schedulers that make no sense, or undo each other, are refused") {
  const auto refusal = [](std::vector<RunnerScheduler> schedulers, std::int64_t epochs = 2) {
    return message_of<InvalidArgument>([&] { rates(std::move(schedulers), epochs); });
  };
  CHECK(missing(message_of<InvalidArgument>([&] { RunnerScheduler(mmengine::LinearLR{.begin = 3, .end = 3}); }),
                {"end above its begin 3", "got 3"}) == "");
  CHECK(missing(refusal({mmengine::LinearLR{.begin = 2}}), {"before the end of the training (epoch 2)", "begin 2"}) ==
        "");
  CHECK(missing(message_of<InvalidArgument>(
                    [&] { RunnerScheduler(mmengine::StepLR{.by_epoch = false, .convert_to_iter_based = true}); }),
                {"convert_to_iter_based", "by iteration"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { RunnerScheduler(mmengine::LinearLR{.start_factor = 0}); }),
                {"[LinearLR] expected a start_factor above 0 and at most 1, got 0"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { RunnerScheduler(mmengine::MultiStepMomentum{}); }),
                {"[MultiStepMomentum] expected milestones"}) == "");

  Line model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1, .momentum = 0.8}));
  const auto together = [&](std::vector<RunnerScheduler> schedulers) {
    return message_of<InvalidArgument>([&] { Runner(model, optim, {.param_schedulers = std::move(schedulers)}); });
  };
  Optimizer& sgd = optim.optimizer();
  CHECK(missing(together({{LrScheduler(sgd, LinearLR{}), {.by_epoch = false}}, LrScheduler(sgd, CosineAnnealingLR{})}),
                {"one LrScheduler or MomentumScheduler for the learning rate", "mmengine::LinearLR"}) == "");
  CHECK(missing(together({mmengine::LinearLR{}, LrScheduler(sgd, CosineAnnealingLR{})}), {"learning rate"}) == "");
  CHECK_NOTHROW(
      Runner(model, optim, {.param_schedulers = {LrScheduler(sgd, StepLR{}), MomentumScheduler(sgd, StepLR{})}}));
  CHECK_NOTHROW(Runner(model, optim, {.param_schedulers = {LrScheduler(sgd, StepLR{}), mmengine::StepMomentum{}}}));
  STATIC_REQUIRE_FALSE(std::is_constructible_v<RunnerScheduler, LinearLR>);
}
