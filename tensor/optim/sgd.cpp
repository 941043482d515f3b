#include "lockstep/tensor/optim/sgd.h"

#include <cmath>

#include "lockstep/tensor/ops_support.h"

namespace lockstep {

SGD::SGD(std::vector<Parameter> parameters, const SgdOptions& options)
    : Optimizer("SGD", std::move(parameters), options.lr), options_(options), momentum_(parameters_.size()) {
  LOCKSTEP_CHECK(std::isfinite(options.momentum) && options.momentum >= 0,
                 "[SGD] expected a momentum of at least 0, got ", options.momentum);
  LOCKSTEP_CHECK(std::isfinite(options.weight_decay) && options.weight_decay >= 0,
                 "[SGD] expected a weight decay of at least 0, got ", options.weight_decay);
  LOCKSTEP_CHECK(std::isfinite(options.dampening), "[SGD] expected a finite dampening, got ", options.dampening);
  LOCKSTEP_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                 "[SGD] expected momentum and no dampening with nesterov, got momentum ", options.momentum,
                 " and dampening ", options.dampening);
}

void SGD::step() {
  NoGrad no_grad;
  struct Group {
    Device device;
    DType dtype;
    SgdArgs args;
    std::vector<std::size_t> indices;
    std::vector<Tensor> momenta, gradients;  // what the views point into
  };
  std::vector<Group> groups;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    const Tensor parameter = parameters_[i].tensor();
    Tensor momentum = options_.momentum > 0 ? momentum_[i] : Tensor();
    const bool first_step = !momentum.defined();
    if (options_.momentum > 0) {
      if (first_step)
        momentum = detail::fresh(parameter.shape(), parameter.dtype(), parameter.device());
      else
        momentum = momentum.to(parameter.device()).to(parameter.dtype());  // where the module was moved to
    }
    Group* group = nullptr;
    for (Group& known : groups)
      if (known.device == parameter.device() && known.dtype == parameter.dtype()) group = &known;
    if (!group) {
      groups.push_back({parameter.device(), parameter.dtype(), {}, {}, {}, {}});
      group = &groups.back();
      group->args = SgdArgs{
          {}, lr_, options_.momentum, options_.dampening, options_.weight_decay, options_.nesterov, options_.maximize};
    }
    const Tensor dense = gradient.contiguous();
    group->args.tensors.push_back({parameter.in_out(), dense.in(), momentum.in_out(), first_step});
    group->indices.push_back(i);
    group->momenta.push_back(momentum);
    group->gradients.push_back(dense);
  }
  for (const Group& group : groups) {
    detail::launch(group.device, &KernelTable::sgd, group.args);
    // Not before: after an error the next step must not take an unwritten buffer for a momentum.
    for (std::size_t i = 0; i < group.indices.size(); ++i) {
      parameters_[group.indices[i]].tensor().mark_changed();
      momentum_[group.indices[i]] = group.momenta[i];
    }
  }
}

std::vector<NamedTensor> SGD::state_dict() const {
  NoGrad no_grad;
  std::vector<NamedTensor> state;
  for (std::size_t i = 0; i < momentum_.size(); ++i)
    if (momentum_[i].defined()) state.push_back({cat("momentum.", i), momentum_[i].clone()});
  return state;
}

void SGD::load_state_dict(const std::vector<NamedTensor>& state) {
  NoGrad no_grad;
  std::vector<Tensor> slots = load_slots(state, "momentum");
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (slots[i].defined()) slots[i] = slots[i].to(parameters_[i].device()).to(parameters_[i].dtype()).clone();
  momentum_ = std::move(slots);
}

}  // namespace lockstep
