#include "lockstep/parallel/replicas/prepared_replica.h"

#include <algorithm>

#include "lockstep/tensor/context.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/module_internals.h"

namespace lockstep::detail {

bool ReplicaFolding::folds(const ModuleBase& module) {
  if (GradMode::enabled()) return false;
  const std::lock_guard lock(mutex_);
  if (shown_.exchange(false, std::memory_order_acq_rel)) {
    modules_.clear();
    MemberVisitor visitor;
    visitor.module = [&](ModuleBase& each) { modules_.push_back(ModuleInternals::state(each)); };
    visitor.visit(module);
  }
  const std::int8_t scope = thread_context().training;
  if (scope >= 0) return scope == 0;
  return std::none_of(modules_.begin(), modules_.end(), [](const std::shared_ptr<ModuleState>& state) {
    return state->training.load(std::memory_order_relaxed);
  });
}

void ReplicaFolding::forget() { folding_.forget(); }

}  // namespace lockstep::detail
