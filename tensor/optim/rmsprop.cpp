#include "lockstep/tensor/optim/rmsprop.h"

#include <algorithm>
#include <cmath>

#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {
enum RmspropSlot : std::size_t { square_avg, grad_avg, momentum_buffer, slot_count };

bool uses(const RMSpropOptions& o, std::size_t which) {
  return which == square_avg || (which == grad_avg && o.centered) || (which == momentum_buffer && o.momentum > 0);
}

// f16 and bf16 are widened, and rounded once when all is computed: what the kernels of other optimizers do.
DType computing(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype; }

void write(UnaryOp op, const Tensor& x, const Tensor& out, double a = 0) {
  detail::launch(out.device(), UnaryArgs{op, x.in(), out.out(), a});
}
void write(BinaryOp op, const Tensor& x, const Tensor& y, const Tensor& out, double alpha = 1) {
  detail::launch(out.device(), BinaryArgs{op, x.in(), y.in(), out.out(), alpha});
}
void move_average(const Tensor& average, const Tensor& towards, double keep) {
  write(UnaryOp::mul_scalar, average, average, keep);
  write(BinaryOp::add, average, towards, average, 1 - keep);
}

// One parameter, in the dtype that is computed in.
struct Operands {
  Tensor parameter, gradient;
  Tensor slots[slot_count];  // undefined where the options do not use them
  Tensor root, quotient;     // scratch
};

void move(const RMSpropOptions& o, const double* replayed_lr, const Operands& t) {
  Tensor g = t.gradient;
  if (o.maximize) write(UnaryOp::neg, g, t.quotient), g = t.quotient;
  if (o.weight_decay != 0) write(BinaryOp::add, g, t.parameter, t.quotient, o.weight_decay), g = t.quotient;
  write(BinaryOp::mul, g, g, t.root);
  move_average(t.slots[square_avg], t.root, o.alpha);
  if (o.centered) {
    const Tensor& mean = t.slots[grad_avg];
    move_average(mean, g, o.alpha);
    write(UnaryOp::neg, mean, t.root);
    write(BinaryOp::mul, t.root, mean, t.root);
    write(BinaryOp::add, t.root, t.slots[square_avg], t.root);
  }
  write(UnaryOp::sqrt, o.centered ? t.root : t.slots[square_avg], t.root);
  write(UnaryOp::add_scalar, t.root, t.root, o.eps);
  write(BinaryOp::div, g, t.root, t.quotient);
  // The rest is a step of SGD by the quotient.
  SgdArgs last{{}, o.lr, o.momentum, 0, 0, false, false, replayed_lr};
  last.tensors.push_back({t.parameter.in_out(), t.quotient.in(), t.slots[momentum_buffer].in_out(), false});
  detail::launch(t.parameter.device(), last);
}
}  // namespace

void RMSpropOptions::check(const char* optimizer) const {
  LOCKSTEP_CHECK(std::isfinite(lr) && lr >= 0, "[", optimizer, "] expected a learning rate of at least 0, got ", lr);
  LOCKSTEP_CHECK(alpha >= 0 && alpha <= 1, "[", optimizer, "] expected an alpha in [0, 1], got ", alpha);
  LOCKSTEP_CHECK(std::isfinite(eps) && eps >= 0, "[", optimizer, "] expected an eps of at least 0, got ", eps);
  LOCKSTEP_CHECK(std::isfinite(weight_decay) && weight_decay >= 0, "[", optimizer,
                 "] expected a weight decay of at least 0, got ", weight_decay);
  LOCKSTEP_CHECK(std::isfinite(momentum) && momentum >= 0, "[", optimizer, "] expected a momentum of at least 0, got ",
                 momentum);
}

RMSpropOptions RMSpropGroup::over(const RMSpropOptions& defaults) const {
  return {.lr = lr.value_or(defaults.lr),
          .alpha = alpha.value_or(defaults.alpha),
          .eps = eps.value_or(defaults.eps),
          .weight_decay = weight_decay.value_or(defaults.weight_decay),
          .momentum = momentum.value_or(defaults.momentum),
          .centered = centered.value_or(defaults.centered),
          .maximize = maximize.value_or(defaults.maximize)};
}

RMSprop::RMSprop(std::vector<Parameter> parameters, const RMSpropOptions& options)
    : RMSprop(std::vector<RMSpropGroup>{{.parameters = std::move(parameters)}}, options) {}
RMSprop::RMSprop(const std::vector<RMSpropGroup>& groups, const RMSpropOptions& defaults)
    : GroupedOptimizer("RMSprop",
                       {.slots = {"square_avg", "grad_avg", "momentum_buffer"}, .required = 1, .counts_steps = true},
                       groups, defaults) {}

void RMSprop::step() {
  NoGrad no_grad;
  struct Move {
    std::vector<State> next;
    std::vector<Tensor> scratch;  // flat; the parameters of the batch take turns
  };
  const std::vector<Batch> all = batches();
  std::vector<Move> moves;
  // What needs memory, for all of them before the first one moves: a step is made wholly or not at all.
  for (const Batch& batch : all) {
    const RMSpropOptions& o = options(batch.group);
    auto& [next, scratch] = moves.emplace_back();
    std::int64_t largest = 0;
    std::size_t tensors = 2;  // the parameter and its gradient
    for (std::size_t which = 0; which < slot_count; ++which) tensors += uses(o, which);
    for (const std::size_t index : batch.indices) {
      largest = std::max(largest, parameters()[index].tensor().count());
      State& moved = next.emplace_back(State{state(index).steps + 1, {}});
      if (moved.steps == 1) check_not_first(index);
      for (std::size_t which = 0; which < slot_count; ++which) {
        Tensor& tensor = moved.slots.emplace_back(slot(index, which));
        if (tensor.defined() || !uses(o, which)) continue;
        check_not_first(index);
        tensor = new_slot(index);
        detail::fill(tensor, 0);
      }
    }
    const DType dtype = computing(batch.dtype);
    scratch.resize(2 + (dtype == batch.dtype ? 0 : tensors));
    for (Tensor& flat : scratch) flat = detail::fresh({largest}, dtype, batch.device);
  }
  for (std::size_t b = 0; b < all.size(); ++b) {
    const Batch& batch = all[b];
    const RMSpropOptions& o = options(batch.group);
    const double* const lr = replayed(
        1, [group = batch.group](const Optimizer& optimizer, double* to) { *to = optimizer.lr(group); },
        [indices = batch.indices](Optimizer& optimizer) {
          for (const std::size_t index : indices) ++static_cast<RMSprop&>(optimizer).state(index).steps;
        });
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      if (lr) --moves[b].next[i].steps;  // a replay counts it
      const Tensor parameter = parameters()[batch.indices[i]].tensor();
      State& next = moves[b].next[i];
      auto flat = moves[b].scratch.begin();
      const auto take = [&] { return detail::alias(*flat++, parameter.shape(), parameter.strides(), 0); };
      const auto widen = [&](const Tensor& x) {
        if (x.dtype() == computing(x.dtype())) return x;
        Tensor wide = take();
        detail::copy_elements(wide, x);
        return wide;
      };
      const auto put_back = [&](const Tensor& x, const Tensor& wide) {
        if (x.dtype() != wide.dtype()) detail::copy_elements(x, wide);
      };
      Operands t{widen(parameter), widen(batch.gradients[i]), {}, take(), take()};
      for (std::size_t which = 0; which < slot_count; ++which)
        if (uses(o, which)) t.slots[which] = widen(next.slots[which]);
      move(o, lr, t);
      put_back(parameter, t.parameter);
      for (std::size_t which = 0; which < slot_count; ++which)
        if (uses(o, which)) put_back(next.slots[which], t.slots[which]);
      parameter.mark_changed();
      state(batch.indices[i]) = std::move(next);
    }
  }
}

}  // namespace lockstep
