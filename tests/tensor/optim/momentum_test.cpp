// Momentums of optimizers, and their schedules.
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/lr_schedule.h"
#include "lockstep/tensor/optim/sgd.h"
#include "lockstep/tensor/optim/sparse_adam.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

// Has no momentum.
class PlainOptimizer : public Optimizer {
 public:
  explicit PlainOptimizer(std::vector<Parameter> parameters) : Optimizer("PlainOptimizer", {}) {
    append_group(parameters);
  }
  void step() override {}

 protected:
  std::vector<OptionValue> option_values(std::size_t) const override { return {{"lr", lr_}}; }
  void take_option_values(const std::vector<std::vector<double>>& groups) override { lr_ = groups[0][0]; }
  double& lr_of(std::size_t) override { return lr_; }

 private:
  double lr_ = 1;
};

}  // namespace

TEST_CASE("the momentum of an optimizer") {
  SGD sgd({{.parameters = {parameter({1})}, .momentum = 0.5}, {.parameters = {parameter({1})}}}, {.momentum = 0.9});
  CHECK(sgd.momentum() == 0.5);
  CHECK(sgd.momentum(1) == 0.9);
  sgd.set_momentum(1, 0.25);
  CHECK(sgd.options(0).momentum == 0.5);
  CHECK(sgd.options(1).momentum == 0.25);
  sgd.set_momentum(0.75);
  CHECK(sgd.momentum(0) == 0.75);
  CHECK(sgd.momentum(1) == 0.75);
  CHECK_THROWS_WITH(sgd.momentum(2), Contains("below 2"));
  CHECK_THROWS_WITH(sgd.set_momentum(2, 0.5), Contains("below 2"));

  Adam adam({parameter({1})}, {.betas = {0.8, 0.99}});
  AdamW adamw({parameter({1})}, {.betas = {0.7, 0.99}});
  SparseAdam sparse({parameter({1})}, {.betas = {0.6, 0.99}});
  for (Optimizer* optimizer :
       {static_cast<Optimizer*>(&adam), static_cast<Optimizer*>(&adamw), static_cast<Optimizer*>(&sparse)}) {
    CHECK(optimizer->momentum() > 0.5);
    optimizer->set_momentum(0.5);
    CHECK(optimizer->momentum() == 0.5);
    CHECK_THROWS_AS(optimizer->set_momentum(1), InvalidArgument);
    CHECK(optimizer->momentum() == 0.5);
  }
  CHECK(adam.options().betas == std::pair(0.5, 0.99));

  PlainOptimizer plain({parameter({1})});
  CHECK(plain.momentum() == 0);
  CHECK_THROWS_AS(plain.set_momentum(0.5), NotSupported);
  CHECK_THROWS_WITH(plain.set_momentum(0, 0.5), Contains("[PlainOptimizer]") && Contains("momentum"));
}

TEST_CASE("a momentum that does not fit one group changes none") {
  SGD sgd({{.parameters = {parameter({1})}}, {.parameters = {parameter({1})}, .nesterov = true}}, {.momentum = 0.9});
  CHECK_THROWS_WITH(sgd.set_momentum(0), Contains("nesterov"));
  CHECK_THROWS_AS(sgd.set_momentum(-1), InvalidArgument);
  CHECK(sgd.momentum(0) == 0.9);
  CHECK(sgd.momentum(1) == 0.9);
}

TEST_CASE("momentums follow the schedules of learning rates") {
  const auto momenta = [](const Schedule& schedule) {
    SGD optimizer({parameter({1})}, {.momentum = 0.8});
    MomentumScheduler scheduler(optimizer, schedule);
    Doubles seen;
    for (int epoch = 0; epoch < 4; ++epoch, scheduler.step()) seen.push_back(optimizer.momentum());
    CHECK(optimizer.lr() == SgdOptions{}.lr);
    return seen;
  };
  check_close(momenta(ConstantMomentum{.factor = 0.5, .total_iters = 2}), {0.4, 0.4, 0.8, 0.8}, 1e-14);
  check_close(momenta(LinearMomentum{.start_factor = 0.5, .end_factor = 1, .total_iters = 2}), {0.4, 0.6, 0.8, 0.8},
              1e-14);
  check_close(momenta(CosineAnnealingMomentum{.T_max = 2, .eta_min = 0.2}), {0.8, 0.5, 0.2, 0.5}, 1e-14);
  check_close(momenta(MultiStepMomentum{.milestones = {1, 3}, .gamma = 0.5}), {0.8, 0.4, 0.4, 0.2}, 1e-14);
  check_close(momenta(StepMomentum{.step_size = 2, .gamma = 0.5}), {0.8, 0.8, 0.4, 0.4}, 1e-14);
  check_close(momenta(ExponentialMomentum{.gamma = 0.5}), {0.8, 0.4, 0.2, 0.1}, 1e-14);
}

TEST_CASE("ConstantLR is PyTorch's") {
  CHECK(ConstantLR{}.factor == 1.0 / 3);
  CHECK(ConstantLR{}.total_iters == 5);
  CHECK(ConstantLR{}(3, 4) == 1);
  CHECK(ConstantLR{}(3, 5) == 3);
  CHECK_THROWS_WITH(Schedule(ConstantLR{.factor = -1}), Contains("[ConstantLR]") && Contains("factor"));
  CHECK_THROWS_WITH(Schedule(ConstantLR{.total_iters = -1}), Contains("total_iters"));
}

TEST_CASE("a momentum scheduler's groups, state and errors") {
  Adam optimizer({{.parameters = {parameter({1})}}, {.parameters = {parameter({1})}, .betas = {0.4, {}}}});
  MomentumScheduler one(optimizer, std::vector<Schedule>{LinearMomentum{.start_factor = 0.5, .total_iters = 2},
                                                         ExponentialMomentum{.gamma = 0.5}});
  CHECK(one.base_momentums() == Doubles{0.9, 0.4});
  one.step();
  CHECK(optimizer.momentum(0) == Approx(0.675));
  CHECK(optimizer.momentum(1) == 0.2);
  const auto state = one.state_dict();
  CHECK(state[1].name == "base_momentums");

  Adam fresh({{.parameters = {parameter({1})}}, {.parameters = {parameter({1})}}}, {.betas = {0.1, 0.999}});
  MomentumScheduler two(fresh, std::vector<Schedule>{LinearMomentum{.start_factor = 0.5, .total_iters = 2},
                                                     ExponentialMomentum{.gamma = 0.5}});
  two.load_state_dict(state);
  CHECK(two.epoch() == 1);
  one.step(), two.step();
  for (const std::size_t group : {0u, 1u}) CHECK(fresh.momentum(group) == optimizer.momentum(group));
  LrScheduler rates(fresh, StepLR{});
  CHECK_THROWS_WITH(rates.load_state_dict(state), Contains("base_lrs") && Contains("'base_momentums'"));

  // A beta1 of 1 in the second group: the first one has its value back.
  const auto grows = [](double base, std::int64_t epoch) { return epoch < 2 ? base : 1; };
  MomentumScheduler bad(fresh, std::vector<Schedule>{ExponentialMomentum{.gamma = 0.5}, grows});
  bad.step();
  const double before = fresh.momentum(0);
  CHECK_THROWS_WITH(bad.step(), Contains("[Adam]"));
  CHECK(bad.epoch() == 1);
  CHECK(fresh.momentum(0) == before);
  PlainOptimizer plain({parameter({1})});
  CHECK_THROWS_AS(MomentumScheduler(plain, StepMomentum{}), NotSupported);
  CHECK_THROWS_WITH(MomentumScheduler(optimizer, std::vector<Schedule>{StepMomentum{}}),
                    Contains("[MomentumScheduler]") && Contains("2 groups"));
}
