#include "lockstep/tensor/optim/adam.h"

#include <cmath>

#include "lockstep/kernels/optimizer_args.h"
#include "lockstep/kernels/optimizer_functors.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {
enum AdamSlot : std::size_t { exp_avg, exp_avg_sq, max_exp_avg_sq };

AdamOptions as_adam(const AdamWOptions& o) {
  return {.lr = o.lr,
          .betas = o.betas,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .amsgrad = o.amsgrad,
          .maximize = o.maximize};
}
}  // namespace

void AdamOptions::check(const char* optimizer) const {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0, "[", optimizer, "] expected a learning rate of at least 0, got ", lr);
  LOCKSTEP_CHECK(is_beta(betas.first) && is_beta(betas.second), "[", optimizer, "] expected betas in [0, 1), got ",
                 betas.first, " and ", betas.second);
  LOCKSTEP_CHECK(std::isfinite(eps) && eps >= 0, "[", optimizer, "] expected an eps of at least 0, got ", eps);
  LOCKSTEP_CHECK(std::isfinite(weight_decay) && weight_decay >= 0, "[", optimizer,
                 "] expected a weight decay of at least 0, got ", weight_decay);
}

AdamOptions AdamGroup::over(const AdamOptions& defaults) const {
  return {.lr = lr.value_or(defaults.lr),
          .betas = {betas.first.value_or(defaults.betas.first), betas.second.value_or(defaults.betas.second)},
          .eps = eps.value_or(defaults.eps),
          .weight_decay = weight_decay.value_or(defaults.weight_decay),
          .amsgrad = amsgrad.value_or(defaults.amsgrad),
          .maximize = maximize.value_or(defaults.maximize)};
}

Adam::Adam(const char* name, bool decoupled, const std::vector<AdamGroup>& groups, const AdamOptions& defaults)
    : GroupedOptimizer(
          name,
          {.slots = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .required = max_exp_avg_sq, .counts_steps = true},
          groups, defaults),
      decoupled_(decoupled) {}

Adam::Adam(std::vector<Parameter> parameters, const AdamOptions& options)
    : Adam(std::vector<AdamGroup>{{.parameters = std::move(parameters)}}, options) {}
Adam::Adam(const std::vector<AdamGroup>& groups, const AdamOptions& defaults) : Adam("Adam", false, groups, defaults) {}

AdamW::AdamW(std::vector<Parameter> parameters, const AdamWOptions& options)
    : AdamW(std::vector<AdamGroup>{{.parameters = std::move(parameters)}}, options) {}
AdamW::AdamW(const std::vector<AdamGroup>& groups, const AdamWOptions& defaults)
    : Adam("AdamW", true, groups, as_adam(defaults)) {}

const double* Adam::replayed_steps(const Batch& batch) {
  return replayed(
      batch.indices.size() * functors::kAdamReplayed,
      [group = batch.group, indices = batch.indices](const Optimizer& optimizer, double* to) {
        const auto& adam = static_cast<const Adam&>(optimizer);
        const AdamOptions& o = adam.options(group);
        const AdamArgs args{{},    o.lr,           o.betas.first,   o.betas.second,
                            o.eps, o.weight_decay, adam.decoupled_, o.maximize};
        for (const std::size_t index : indices) {
          functors::write_adam_constants(args, adam.state(index).steps + 1, to);
          to += functors::kAdamReplayed;
        }
      },
      [indices = batch.indices](Optimizer& optimizer) {
        for (const std::size_t index : indices) ++static_cast<Adam&>(optimizer).state(index).steps;
      });
}

void Adam::step() {
  NoGrad no_grad;
  struct Move {
    AdamArgs args;
    std::vector<State> next;  // also what the views point into
  };
  const std::vector<Batch> all = batches();
  std::vector<Move> moves;
  // What needs memory, for all of them before the first one moves: a step is made wholly or not at all.
  for (const Batch& batch : all) {
    const AdamOptions& o = options(batch.group);
    auto& [args, next] = moves.emplace_back(
        Move{{{}, o.lr, o.betas.first, o.betas.second, o.eps, o.weight_decay, decoupled_, o.maximize}, {}});
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      const std::size_t index = batch.indices[i];
      State& moved = next.emplace_back(State{state(index).steps + 1, {}});
      if (moved.steps == 1) check_not_first(index);
      for (const AdamSlot which : {exp_avg, exp_avg_sq, max_exp_avg_sq}) {
        Tensor& tensor = moved.slots.emplace_back(slot(index, which));
        if (tensor.defined() || (which == max_exp_avg_sq && !o.amsgrad)) continue;
        check_not_first(index);
        tensor = new_slot(index);
        // The first step writes them; only amsgrad can begin later.
        if (moved.steps > 1) detail::fill(tensor, 0);
      }
      args.tensors.push_back({parameters()[index].tensor().in_out(), batch.gradients[i].in(),
                              moved.slots[exp_avg].in_out(), moved.slots[exp_avg_sq].in_out(),
                              o.amsgrad ? moved.slots[max_exp_avg_sq].in_out() : InOut{}, moved.steps});
    }
    const double* values = replayed_steps(batch);
    for (std::size_t i = 0; values && i < args.tensors.size(); ++i, values += functors::kAdamReplayed) {
      args.tensors[i].replayed = values;
      --next[i].steps;  // a replay counts it
    }
  }
  for (std::size_t b = 0; b < all.size(); ++b) {
    const Batch& batch = all[b];
    detail::launch(batch.device, moves[b].args);
    // Not before: after an error the next step must not take unwritten buffers for moments.
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      parameters()[batch.indices[i]].tensor().mark_changed();
      state(batch.indices[i]) = std::move(moves[b].next[i]);
    }
  }
}

}  // namespace lockstep
