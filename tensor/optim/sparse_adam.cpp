#include "lockstep/tensor/optim/sparse_adam.h"

#include <cmath>

#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

void SparseAdamOptions::check(const char* optimizer) const {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0, "[", optimizer, "] expected a learning rate of at least 0, got ", lr);
  LOCKSTEP_CHECK(is_beta(betas.first) && is_beta(betas.second), "[", optimizer, "] expected betas in [0, 1), got ",
                 betas.first, " and ", betas.second);
  LOCKSTEP_CHECK(std::isfinite(eps) && eps > 0, "[", optimizer, "] expected an eps above 0, got ", eps);
}

SparseAdamOptions SparseAdamGroup::over(const SparseAdamOptions& defaults) const {
  return {.lr = lr.value_or(defaults.lr),
          .betas = {betas.first.value_or(defaults.betas.first), betas.second.value_or(defaults.betas.second)},
          .eps = eps.value_or(defaults.eps),
          .maximize = maximize.value_or(defaults.maximize)};
}

SparseAdam::SparseAdam(std::vector<Parameter> parameters, const SparseAdamOptions& options)
    : SparseAdam(std::vector<SparseAdamGroup>{{.parameters = std::move(parameters)}}, options) {}
SparseAdam::SparseAdam(const std::vector<SparseAdamGroup>& groups, const SparseAdamOptions& defaults)
    : GroupedOptimizer("SparseAdam", {.slots = {"exp_avg", "exp_avg_sq"}, .required = 2, .counts_steps = true}, groups,
                       defaults) {}

void SparseAdam::step() {
  NoGrad no_grad;
  if (detail::current_capture) detail::current_capture->refuse("SparseAdam", "a step by sparse gradients");
  if (const std::vector<Batch> dense = batches(true); !dense.empty())
    throw InvalidArgument(cat("[SparseAdam] expected sparse gradients, got a dense one of ",
                              parameters()[dense[0].indices[0]].body()->describe(), "; use Adam for it"));
  struct Move {
    Tensor at, change_of_m, change_of_v, change;
    State next;
  };
  const std::vector<std::size_t> indices = with_sparse_gradients();
  std::vector<Move> moves;
  // What needs memory, for all of them before the first one moves: a step is made wholly or not at all.
  for (const std::size_t index : indices) {
    const SparseAdamOptions& o = options(group_of(index));
    const SparseGradient sums = detail::sum_rows(parameters()[index].sparse_grad());
    const Tensor& at = sums.indices;
    State next{state(index).steps + 1, {slot(index, 0), slot(index, 1)}};
    for (Tensor& moments : next.slots)
      if (!moments.defined()) {
        moments = new_slot(index);
        detail::fill(moments, 0);
      }
    const auto& [m, v] = std::tie(next.slots[0], next.slots[1]);
    const Tensor g = o.maximize ? -sums.values : sums.values;
    const Tensor old_m = index_select(m, 0, at), old_v = index_select(v, 0, at);
    const Tensor change_of_m = (g - old_m) * (1 - o.betas.first);
    const Tensor change_of_v = (square(g) - old_v) * (1 - o.betas.second);
    const double t = static_cast<double>(next.steps);
    const double rate = o.lr * std::sqrt(1 - std::pow(o.betas.second, t)) / (1 - std::pow(o.betas.first, t));
    const Tensor move = (old_m + change_of_m) / (sqrt(old_v + change_of_v) + o.eps) * -rate;
    // Rows that sum_rows has left over stand for nothing.
    Shape broadcast = sums.values.shape();
    for (int d = 1; d < broadcast.rank(); ++d) broadcast[d] = 1;
    const Tensor counts = detail::first_of_equals(at).reshape(broadcast);
    moves.push_back({at, where(counts, change_of_m, 0.0), where(counts, change_of_v, 0.0), where(counts, move, 0.0),
                     std::move(next)});
  }
  for (std::size_t i = 0; i < indices.size(); ++i) {
    Move& move = moves[i];
    detail::add_rows(move.next.slots[0], move.at, move.change_of_m);
    detail::add_rows(move.next.slots[1], move.at, move.change_of_v);
    detail::add_rows(parameters()[indices[i]].tensor(), move.at, move.change);
    state(indices[i]) = std::move(move.next);
  }
}

}  // namespace lockstep
