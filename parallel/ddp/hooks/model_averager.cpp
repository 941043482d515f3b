#include "lockstep/parallel/ddp/hooks/model_averager.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "lockstep/parallel/comm/agree.h"
#include "lockstep/parallel/ddp/coalesce.h"
#include "lockstep/parallel/ddp/hooks/state.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

ModelAverager::ModelAverager(const ModelAveragerOptions& options) : options_(options) {
  LOCKSTEP_CHECK(options.period >= 1, "[ModelAverager] expected a period of at least 1, got ", options.period);
  LOCKSTEP_CHECK(options.warmup_steps >= 0, "[ModelAverager] expected warmup_steps of at least 0, got ",
                 options.warmup_steps);
}

bool ModelAverager::average_but(ModuleBase& module, std::span<const std::string> ignore) {
  const std::int64_t steps = step_ - options_.warmup_steps;
  Communicator* const group = steps >= 0 ? due(steps) : nullptr;
  if (group) {
    std::vector<Tensor> tensors;
    const std::unordered_set<std::string_view> ignored(ignore.begin(), ignore.end());
    const auto add = [&](const std::vector<NamedParameter>& list) {
      for (const NamedParameter& named : list) {
        if (ignored.contains(named.name)) continue;
        const Tensor tensor = named.parameter.tensor();
        if (!is_floating(tensor.dtype()) || tensor.count() == 0) continue;
        LOCKSTEP_CHECK(tensor.device() == group->device(), "[ModelAverager] expected '", named.name, "' on ",
                       group->device(), ", where the communicator works, got ", tensor);
        tensors.push_back(tensor);
      }
    };
    add(module.named_parameters());
    if (options_.buffers) add(module.named_buffers());
    detail::coalesce(tensors, group->device(), [&](const Tensor& piece) {
      Tensor mean = piece * (1.0 / group->size());  // apart: a failure leaves the model what it was
      group->all_reduce(mean);
      return mean;
    });
  }
  ++step_;
  return group != nullptr;
}

std::vector<NamedTensor> ModelAverager::state_dict() const { return {{"step", tensor(step_, {.dtype = DType::i64})}}; }

void ModelAverager::load_state_dict(const std::vector<NamedTensor>& state) {
  step_ = detail::read_only_count("ModelAverager::load_state_dict", "step", state);
}

PeriodicModelAverager::PeriodicModelAverager(Communicator& communicator, const ModelAveragerOptions& options)
    : ModelAverager(options), communicator_(communicator) {}

Communicator* PeriodicModelAverager::due(std::int64_t steps) {
  return steps % options().period == 0 ? &communicator_ : nullptr;
}

HierarchicalModelAverager::HierarchicalModelAverager(Communicator& communicator,
                                                     const std::map<std::int64_t, int>& group_sizes,
                                                     const ModelAveragerOptions& options)
    : ModelAverager(options) {
  std::string problem, text;
  std::int64_t last_period = 1;
  int last_size = 1;
  for (const auto& [period, size] : group_sizes) {
    text += cat(' ', period, ':', size);
    if (period < 1 || size < 1 || period % last_period != 0 || size % last_size != 0 ||
        (size == last_size && last_size > 1))
      problem = "periods and group sizes that grow, each a divisor of the next";
    last_period = std::max<std::int64_t>(period, 1);
    last_size = std::max(size, 1);
  }
  if (problem.empty() && last_size != communicator.size())
    problem = cat("groups of all ", communicator.size(), " ranks for the longest period");
  if (!problem.empty()) problem = cat("expected ", problem, ", got {", text.empty() ? "" : text.substr(1), '}');
  detail::agree(communicator, "HierarchicalModelAverager", text, problem);
  for (const auto& [period, size] : group_sizes) {
    if (size < communicator.size()) groups_.push_back(communicator.split(communicator.rank() / size));
    levels_.insert(levels_.begin(), {period, size < communicator.size() ? groups_.back().get() : &communicator});
  }
}

Communicator* HierarchicalModelAverager::due(std::int64_t steps) {
  for (const Level& level : levels_)
    if (steps % level.period == 0) return level.group;
  return nullptr;
}

}  // namespace lockstep
