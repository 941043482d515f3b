// Learning rates against those that PyTorch's schedulers step through.
#include "lockstep/tensor/optim/lr_schedule.h"

#include <cmath>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/optim/reduce_lr_on_plateau.h"
#include "lockstep/tensor/optim/sgd.h"
#include "tensor/optim/optim_golden.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

// The rates of a scheduler that steps.
Doubles rates(const Schedule& schedule, std::size_t count) {
  SGD optimizer({parameter({1})}, {.lr = kBaseLr});
  LrScheduler scheduler(optimizer, schedule);
  Doubles rates;
  while (rates.size() < count) {
    rates.push_back(optimizer.lr());
    CHECK(schedule(kBaseLr, scheduler.epoch()) == optimizer.lr());
    scheduler.step();
  }
  return rates;
}
void check_rates(const Schedule& schedule, const Doubles& want) {
  check_close(rates(schedule, want.size()), want, 1e-14);
}

}  // namespace

TEST_CASE("schedules give PyTorch's rates") {
  check_rates(StepLR{.step_size = 3, .gamma = 0.5}, kStepLR);
  check_rates(MultiStepLR{.milestones = {2, 5, 5, 9}, .gamma = 0.1}, kMultiStepLR);
  check_rates(ExponentialLR{.gamma = 0.9}, kExponentialLR);
  check_rates(CosineAnnealingLR{.T_max = 5, .eta_min = 0.05}, kCosineAnnealingLR);
  check_rates(LinearLR{.start_factor = 0.25, .end_factor = 0.75, .total_iters = 4}, kLinearLR);
  check_rates(ChainedScheduler{{StepLR{.step_size = 3, .gamma = 0.5}, ExponentialLR{.gamma = 0.9}}}, kChained);
  check_rates(SequentialLR{{LinearLR{.start_factor = 0.1, .total_iters = 4}, CosineAnnealingLR{.T_max = 6}}, {4}},
              kWarmUpThenCosine);
  check_rates(LambdaLR{[](std::int64_t epoch) { return std::pow(0.9, static_cast<double>(epoch)); }}, kExponentialLR);
  check_rates([](double base, std::int64_t epoch) { return base * std::pow(0.9, static_cast<double>(epoch)); },
              kExponentialLR);
}

TEST_CASE("the defaults of schedules are PyTorch's") {
  CHECK(StepLR{}.gamma == 0.1);
  CHECK(MultiStepLR{}.gamma == 0.1);
  CHECK(CosineAnnealingLR{}.eta_min == 0);
  CHECK(LinearLR{}.start_factor == 1.0 / 3);
  CHECK(LinearLR{}.end_factor == 1);
  CHECK(LinearLR{}.total_iters == 5);
  CHECK(LinearLR{}(3, 0) == 1);
  CHECK(LinearLR{}(3, 5) == 3);
  CHECK(LinearLR{}(3, 500) == 3);
}

TEST_CASE("sequences nest and go on") {
  const Schedule inner = SequentialLR{{ExponentialLR{.gamma = 0.5}, LambdaLR{[](std::int64_t) { return 1.0; }}}, {2}};
  const Schedule outer = SequentialLR{{inner, StepLR{.step_size = 2, .gamma = 0.5}}, {3}};
  CHECK(rates(outer, 8) == Doubles{0.5, 0.25, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125});
  // A sequence that begins with its second schedule.
  CHECK(rates(SequentialLR{{StepLR{.gamma = 0}, ExponentialLR{.gamma = 0.5}}, {0}}, 3) == Doubles{0.5, 0.25, 0.125});
  // The wave comes down to its lowest point exactly.
  const CosineAnnealingLR wave{.T_max = 7, .eta_min = 1e-5};
  CHECK(wave(0.5, 7) == 1e-5);
  CHECK(wave(0.5, 21) == 1e-5);
  CHECK(wave(0.5, 14) == Approx(0.5).epsilon(1e-15));
}

TEST_CASE("a scheduler keeps the ratio of groups, and takes in later ones") {
  SGD optimizer({{.parameters = {parameter({1})}}, {.parameters = {parameter({1})}, .lr = 0.5}}, {.lr = 1});
  LrScheduler scheduler(optimizer, StepLR{.step_size = 1, .gamma = 0.5});
  CHECK(scheduler.base_lrs() == Doubles{1, 0.5});
  scheduler.step();
  CHECK(optimizer.lr(0) == 0.5);
  CHECK(optimizer.lr(1) == 0.25);
  optimizer.add_group({.parameters = {parameter({1})}, .lr = 8});
  scheduler.step();
  CHECK(optimizer.lr(1) == 0.125);
  CHECK(optimizer.lr(2) == 2);
  CHECK(scheduler.base_lrs() == Doubles{1, 0.5, 8});
  // A change by hand lasts until the next step.
  optimizer.set_lr(100);
  scheduler.step();
  CHECK(optimizer.lr(0) == 0.125);
}

TEST_CASE("a schedule for each group") {
  SGD optimizer({{.parameters = {parameter({1})}}, {.parameters = {parameter({1})}}}, {.lr = 1});
  LrScheduler scheduler(optimizer,
                        {StepLR{.step_size = 1, .gamma = 0.5}, LinearLR{.start_factor = 0.5, .total_iters = 2}});
  CHECK(optimizer.lr(1) == 0.5);
  scheduler.step();
  CHECK(optimizer.lr(0) == 0.5);
  CHECK(optimizer.lr(1) == 0.75);
  optimizer.add_group({.parameters = {parameter({1})}});
  scheduler.step();
  CHECK(optimizer.lr(1) == 1);
  CHECK(optimizer.lr(2) == 1);
  CHECK_THROWS_WITH(LrScheduler(optimizer, std::vector<Schedule>{StepLR{}}), Contains("3 groups") && Contains("got 1"));
}

TEST_CASE("schedules that make no sense are refused") {
  const auto refuses = [](auto schedule, const char* why) {
    CHECK_THROWS_WITH(Schedule(schedule), Contains(why));
    CHECK_THROWS_AS(Schedule(schedule), InvalidArgument);
  };
  refuses(StepLR{.step_size = 0}, "[StepLR]");
  refuses(StepLR{.gamma = NAN}, "gamma");
  refuses(MultiStepLR{.milestones = {3, 1}}, "got 3, 1");
  refuses(MultiStepLR{.milestones = {-1}}, "[MultiStepLR]");
  refuses(ExponentialLR{.gamma = -0.5}, "[ExponentialLR]");
  refuses(CosineAnnealingLR{.T_max = 0}, "[CosineAnnealingLR]");
  refuses(CosineAnnealingLR{.T_max = 1, .eta_min = -1}, "eta_min");
  refuses(LinearLR{.total_iters = 0}, "total_iters");
  refuses(LinearLR{.start_factor = -1}, "start_factor");
  refuses(LinearLR{.end_factor = INFINITY}, "end_factor");
  refuses(LambdaLR{}, "[LambdaLR]");
  refuses(SequentialLR{}, "[SequentialLR]");
  refuses(SequentialLR{{StepLR{}, StepLR{}}, {}}, "got 0 and 2");
  refuses(SequentialLR{{StepLR{}, StepLR{}, StepLR{}}, {5, 4}}, "got 5, 4");
  refuses(ChainedScheduler{}, "[ChainedScheduler]");
  CHECK_THROWS_AS((SequentialLR{{StepLR{.step_size = -1}}, {}}), InvalidArgument);

  // A function that goes wrong leaves epoch and rates alone.
  SGD optimizer({{.parameters = {parameter({1})}}, {.parameters = {parameter({1})}, .lr = 0.5}}, {.lr = 1});
  LrScheduler scheduler(optimizer, [](double base, std::int64_t epoch) { return epoch > 0 && base < 1 ? -1 : base; });
  CHECK_THROWS_WITH(scheduler.step(), Contains("[LrScheduler]") && Contains("group 1 in epoch 1"));
  CHECK(scheduler.epoch() == 0);
  CHECK(optimizer.lr(0) == 1);
}

TEST_CASE("a scheduler's state") {
  SGD optimizer({parameter({1})}, {.lr = 1});
  LrScheduler one(optimizer, StepLR{.step_size = 1, .gamma = 0.5});
  one.step(), one.step();
  auto state = one.state_dict();
  SGD fresh({parameter({1})}, {.lr = 64});
  LrScheduler two(fresh, StepLR{.step_size = 1, .gamma = 0.5});
  two.load_state_dict(state);
  CHECK(fresh.lr() == 0.25);
  CHECK(two.epoch() == 2);
  two.step();
  CHECK(fresh.lr() == 0.125);

  CHECK_THROWS_WITH(two.load_state_dict({state[0]}), Contains("base_lrs") && Contains("undefined"));
  CHECK_THROWS_WITH(two.load_state_dict({state[1]}), Contains("epoch"));
  CHECK_THROWS_WITH(two.load_state_dict({state[0], {"base_lrs", ones({2}, {.dtype = DType::f64})}}),
                    Contains("f64[1]") && Contains("f64[2]"));
  CHECK_THROWS_WITH(two.load_state_dict({{"other", state[0].tensor}}), Contains("'other'"));
  CHECK_THROWS_AS(two.load_state_dict({{"epoch", tensor(-1)}, state[1]}), InvalidArgument);
  CHECK(two.epoch() == 3);
  CHECK(fresh.lr() == 0.125);
}

TEST_CASE("a plateau's defaults, errors and state") {
  SGD optimizer({parameter({1})}, {.lr = 0.5});
  ReduceLROnPlateau scheduler(optimizer);
  for (int step = 0; step < 11; ++step) scheduler.step(1);
  CHECK(optimizer.lr() == 0.5);
  scheduler.step(1);
  CHECK(optimizer.lr() == 0.05);
  CHECK(scheduler.best() == 1);
  scheduler.step(std::nan(""));
  CHECK(scheduler.bad_steps() == 1);
  std::vector<NamedTensor> state = scheduler.state_dict();
  state.pop_back();
  CHECK_THROWS_WITH(scheduler.load_state_dict(state), Contains("[ReduceLROnPlateau]") && Contains("2 entries"));
  state.push_back({"cooldown", tensor(-1)});
  CHECK_THROWS_WITH(scheduler.load_state_dict(state), Contains("cooldown of at least 0"));
  CHECK(scheduler.bad_steps() == 1);
  CHECK_THROWS_WITH(ReduceLROnPlateau(optimizer, {.factor = 1}), Contains("factor in [0, 1), got 1"));
  CHECK_THROWS_WITH(ReduceLROnPlateau(optimizer, {.patience = -1}), Contains("patience"));
  CHECK_THROWS_WITH(Schedule(OneCycleLR{.total_steps = 0}), Contains("[OneCycleLR]"));
  CHECK_THROWS_WITH(Schedule(CosineAnnealingWarmRestarts{.T_0 = 0}), Contains("[CosineAnnealingWarmRestarts]"));
  CHECK_THROWS_WITH(Schedule(PolynomialLR{.power = -1}), Contains("[PolynomialLR]"));
}
