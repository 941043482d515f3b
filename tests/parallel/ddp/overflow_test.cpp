// Ranks that step with gradients of their own skip a step together.
#include "lockstep/parallel/ddp/overflow.h"

#include <limits>

#include "lockstep/parallel/openmmlab/optim/amp_optim_wrapper.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

constexpr int kOverflowRanks = 3, kOverflowSteps = 4, kBadStep = 1;

Parameter trained(Device device) { return Parameter(counting({3}, device).to(DType::f32)); }
void give_gradient(const Parameter& weight, bool infinite) {
  weight.set_grad(full({3}, infinite ? std::numeric_limits<double>::infinity() : 8.0,
                       {.dtype = DType::f32, .device = weight.device()}));
}

// Of each step: whether the first optimizer stepped, then the scale and both first weights.
std::vector<Doubles> run(bool share) {
  return run_ranks(kOverflowRanks, [&](Communicator& communicator) {
    Parameter weight = trained(communicator.device()), other = trained(communicator.device());
    SGD optimizer({weight}, {.lr = 1}), second({other}, {.lr = 1});
    GradScalerOptions options{.init_scale = 8, .growth_interval = 2};
    if (share) options.share_overflow = overflow_on_any_rank(communicator);
    GradScaler scaler(options);
    Doubles seen;
    for (int step = 0; step < kOverflowSteps; ++step) {
      give_gradient(weight, step == kBadStep && communicator.rank() == 1);
      give_gradient(other, false);
      seen.push_back(scaler.step(optimizer) ? 1 : 0);
      scaler.step(second);
      scaler.update();
      seen.push_back(scaler.scale());
      seen.push_back(weight.tensor().to_vector<float>()[0]);
      seen.push_back(other.tensor().to_vector<float>()[0]);
    }
    return seen;
  });
}

}  // namespace

TEST_CASE("an overflow on one rank leaves the step out on all, and shrinks the scale of all") {
  // Weights start at 1; gradients of 8 are divided by the scale. The second optimizer steps although the first did not.
  const Doubles wanted{1, 8, 0, 0, 0, 4, 0, -1, 1, 4, -2, -3, 1, 8, -4, -5};
  for (const Doubles& rank : run(true)) CHECK(rank == wanted);
}

TEST_CASE("without it the ranks go apart") {
  const std::vector<Doubles> ranks = run(false);
  CHECK(different(ranks) == 1);
  CHECK(ranks[1][5] == 4);
  CHECK(ranks[0][5] == 16);
}

TEST_CASE("an AmpOptimWrapper shares its overflow by the scaler's options") {
  const auto ranks = run_ranks(2, [&](Communicator& communicator) {
    Parameter weight = trained(communicator.device());
    AmpOptimWrapper optim(
        SGD({weight}, {.lr = 1}),
        {.loss_scale = GradScalerOptions{.init_scale = 8, .share_overflow = overflow_on_any_rank(communicator)}});
    give_gradient(weight, communicator.rank() == 1);
    optim.step();
    return Doubles{optim.loss_scaler().scale(), weight.tensor().to_vector<float>()[0]};
  });
  for (const Doubles& rank : ranks) CHECK(rank == Doubles{4, 1});
}

TEST_CASE("a rank that leaves instead of answering is an error that names it") {
  const std::vector<std::string> said = messages_of_ranks(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) throw std::out_of_range("no such row");
    overflow_on_any_rank(communicator)(false);
  });
  CHECK(missing(said[0], {"CommError", "rank 1"}) == "");
}
