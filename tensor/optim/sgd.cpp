#include "lockstep/tensor/optim/sgd.h"

#include <cmath>

#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

void SgdOptions::check(const char* optimizer) const {
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0, "[", optimizer, "] expected a learning rate of at least 0, got ", lr);
  LOCKSTEP_CHECK(std::isfinite(momentum) && momentum >= 0, "[", optimizer, "] expected a momentum of at least 0, got ",
                 momentum);
  LOCKSTEP_CHECK(std::isfinite(weight_decay) && weight_decay >= 0, "[", optimizer,
                 "] expected a weight decay of at least 0, got ", weight_decay);
  LOCKSTEP_CHECK(std::isfinite(dampening), "[", optimizer, "] expected a finite dampening, got ", dampening);
  LOCKSTEP_CHECK(!nesterov || (momentum > 0 && dampening == 0), "[", optimizer,
                 "] expected momentum and no dampening with nesterov, got momentum ", momentum, " and dampening ",
                 dampening);
}

SgdOptions SgdGroup::over(const SgdOptions& defaults) const {
  return {.lr = lr.value_or(defaults.lr),
          .momentum = momentum.value_or(defaults.momentum),
          .dampening = dampening.value_or(defaults.dampening),
          .weight_decay = weight_decay.value_or(defaults.weight_decay),
          .nesterov = nesterov.value_or(defaults.nesterov),
          .maximize = maximize.value_or(defaults.maximize)};
}

SGD::SGD(std::vector<Parameter> parameters, const SgdOptions& options)
    : SGD(std::vector<SgdGroup>{{.parameters = std::move(parameters)}}, options) {}

SGD::SGD(const std::vector<SgdGroup>& groups, const SgdOptions& defaults)
    : GroupedOptimizer("SGD", {.slots = {"momentum_buffer"}}, groups, defaults) {}

void SGD::step() {
  NoGrad no_grad;
  const std::vector<std::size_t> sparse = with_sparse_gradients();
  for (const std::size_t index : sparse) {
    const SgdOptions& o = options(group_of(index));
    LOCKSTEP_CHECK(o.momentum == 0 && o.weight_decay == 0, "[SGD] expected a dense gradient of ",
                   parameters()[index].body()->describe(), " for momentum ", o.momentum, " and weight decay ",
                   o.weight_decay, ", got ", parameters()[index].sparse_grad(),
                   "; put it into a group with neither, or use SparseAdam");
  }
  struct Move {
    SgdArgs args;
    std::vector<Tensor> momenta;  // what the views point into
  };
  const std::vector<Batch> all = batches(true);
  std::vector<Move> moves;
  // What needs memory, for all of them before the first one moves: a step is made wholly or not at all.
  for (const Batch& batch : all) {
    const SgdOptions& o = options(batch.group);
    auto& [args, momenta] =
        moves.emplace_back(Move{{{}, o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize}, {}});
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      const std::size_t index = batch.indices[i];
      Tensor momentum = o.momentum > 0 ? slot(index, 0) : Tensor();
      const bool first_step = !momentum.defined();
      if (o.momentum > 0 && first_step) {
        check_not_first(index);
        momentum = new_slot(index);
      }
      args.tensors.push_back(
          {parameters()[index].tensor().in_out(), batch.gradients[i].in(), momentum.in_out(), first_step});
      momenta.push_back(std::move(momentum));
    }
    args.replayed =
        replayed(1, [group = batch.group](const Optimizer& optimizer, double* to) { *to = optimizer.lr(group); });
  }
  std::vector<SparseGradient> moved_rows;
  for (const std::size_t index : sparse) {
    const SgdOptions& o = options(group_of(index));
    if (detail::current_capture) detail::current_capture->refuse("SGD", "a step by a sparse gradient");
    SparseGradient rows = detail::sum_rows(parameters()[index].sparse_grad());
    rows.values = rows.values * (o.maximize ? o.lr : -o.lr);
    moved_rows.push_back(std::move(rows));
  }
  for (std::size_t b = 0; b < all.size(); ++b) {
    const Batch& batch = all[b];
    std::vector<Tensor>& momenta = moves[b].momenta;
    detail::launch(batch.device, moves[b].args);
    // Not before: after an error the next step must not take an unwritten buffer for a momentum.
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      parameters()[batch.indices[i]].tensor().mark_changed();
      if (momenta[i].defined()) state(batch.indices[i]).slots[0] = std::move(momenta[i]);
    }
  }
  for (std::size_t i = 0; i < sparse.size(); ++i)
    detail::add_rows(parameters()[sparse[i]].tensor(), moved_rows[i].indices, moved_rows[i].values);
}

}  // namespace lockstep
