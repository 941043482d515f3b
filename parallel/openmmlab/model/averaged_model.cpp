#include "lockstep/parallel/openmmlab/model/averaged_model.h"

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/read_gate.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {
namespace {

// Whether the update changes nothing. One of whole numbers is a copy each time.
bool passed_over(const AverageOptions& options, const Tensor& average, std::int64_t updates) {
  return is_floating(average.dtype()) && updates % options.interval != 0;
}
// Whether this thread is inside a call that reads it.
bool is_read_here(const Parameter& parameter) {
  const std::shared_ptr<ReadGate>* const gate = parameter.body()->gate();
  return gate && Reading::holds(**gate);
}

}  // namespace

void AverageOptions::check() const {
  LOCKSTEP_CHECK(momentum > 0 && momentum < 1, "[AveragedModel] expected a momentum above 0 and below 1, got ",
                 momentum);
  LOCKSTEP_CHECK(interval > 0 && gamma > 0, "[AveragedModel] expected an interval and a gamma above 0, got ", interval,
                 " and ", gamma);
}

Tensor AverageOptions::next(const Tensor& average, const Tensor& parameter, std::int64_t updates) const {
  const NoGrad no_grad;
  if (passed_over(*this, average, updates)) return average;
  const Tensor source = parameter.detach().to(average.device());
  if (updates == 0 || !is_floating(average.dtype())) return source.clone();
  double share = momentum;
  if (kind == AverageKind::annealing)
    share = std::max(momentum, static_cast<double>(gamma) / static_cast<double>(gamma + updates));
  if (kind == AverageKind::stochastic) {
    const auto averaged = updates / interval;  // models so far
    share = 1 / static_cast<double>(averaged + 1);
  }
  return average + (source.to(average.dtype()) - average) * share;
}

void detail::update_average(const ModuleBase& average, const ModuleBase& source, const AverageOptions& options,
                            std::int64_t updates) {
  const NoGrad no_grad;
  std::vector<std::pair<Parameter, Tensor>> fresh;
  const auto update = [&](const std::vector<NamedParameter>& to, const std::vector<NamedParameter>& from,
                          bool averages) {
    LOCKSTEP_CHECK(to.size() == from.size(), "[AveragedModel] expected a model like the one it was made of, with ",
                   to.size(), " names, got one with ", from.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      const Tensor& now = to[i].parameter.tensor();
      const Tensor& parameter = from[i].parameter.tensor();
      LOCKSTEP_CHECK(to[i].name == from[i].name && now.shape() == parameter.shape(),
                     "[AveragedModel] expected a model like the one it was made of, with '", to[i].name, "' of ",
                     now.shape(), ", got '", from[i].name, "' of ", parameter.shape());
      if (averages && passed_over(options, now, updates)) continue;
      fresh.emplace_back(to[i].parameter, averages ? options.next(now, parameter, updates) : parameter.detach());
    }
  };
  update(average.named_parameters(), source.named_parameters(), true);
  update(average.named_buffers(), source.named_buffers(), options.update_buffers);
  // All between the same calls of the average, unless its own call asks for it: a model may update what it uses.
  if (std::any_of(fresh.begin(), fresh.end(), [](const auto& each) { return is_read_here(each.first); }))
    for (const auto& [parameter, value] : fresh) parameter.assign(value);
  else
    detail::assign_all("AveragedModel", fresh);
}

}  // namespace lockstep
