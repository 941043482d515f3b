#include "lockstep/parallel/openmmlab/optim/optim_wrapper.h"

#include <algorithm>

#include "lockstep/runtime/log.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/optim/clip.h"

namespace lockstep {
namespace {

void check(const OptimWrapperOptions& options) {
  LOCKSTEP_CHECK(options.accumulative_counts > 0, "[OptimWrapper] expected accumulative_counts above 0, got ",
                 options.accumulative_counts);
  if (!options.clip_grad) return;
  const ClipGrad& clip = *options.clip_grad;
  const bool by_norm = clip.type == "norm";
  LOCKSTEP_CHECK(by_norm || clip.type == "value", "[OptimWrapper] expected clip_grad of type 'norm' or 'value', got '",
                 clip.type, "'");
  const std::optional<double>& limit = by_norm ? clip.max_norm : clip.clip_value;
  const std::optional<double>& other = by_norm ? clip.clip_value : clip.max_norm;
  const char* name = by_norm ? "max_norm" : "clip_value";
  const char* other_name = by_norm ? "clip_value" : "max_norm";
  LOCKSTEP_CHECK(limit, "[OptimWrapper] expected clip_grad of type '", clip.type, "' with ", name, ", got ",
                 other ? cat("one with ", other_name, " alone") : std::string("an empty one"));
  LOCKSTEP_CHECK(!other, "[OptimWrapper] expected clip_grad of type '", clip.type, "' with ", name,
                 " alone, got one with ", other_name, " too");
  LOCKSTEP_CHECK(*limit > 0, "[OptimWrapper] expected clip_grad with ", name, " above 0, got ", *limit);
  LOCKSTEP_CHECK(clip.norm_type > 0, "[OptimWrapper] expected clip_grad with norm_type above 0, got ", clip.norm_type);
}

std::vector<const ModuleBase*>& local_models() {
  thread_local std::vector<const ModuleBase*> models;
  return models;
}

bool has_batch_norm(const ModuleBase& model) {
  for (const NamedParameter& buffer : model.named_buffers())
    if (buffer.name == "running_mean" || buffer.name.ends_with(".running_mean")) return true;
  return false;
}

}  // namespace

detail::LocalGradients::LocalGradients(const ModuleBase& model) : model_(&model) { local_models().push_back(model_); }
detail::LocalGradients::~LocalGradients() {
  std::vector<const ModuleBase*>& models = local_models();
  if (const auto found = std::find(models.begin(), models.end(), model_); found != models.end()) models.erase(found);
}
bool detail::LocalGradients::of(const ModuleBase& model) {
  const std::vector<const ModuleBase*>& models = local_models();
  return std::find(models.begin(), models.end(), &model) != models.end();
}

OptimWrapper::OptimWrapper(std::unique_ptr<Optimizer> optimizer, OptimWrapperOptions options)
    : optimizer_(std::move(optimizer)), options_(std::move(options)) {
  LOCKSTEP_CHECK(optimizer_, "[OptimWrapper] expected an optimizer, got none");
  check(options_);
}

const Optimizer& OptimWrapper::optimizer() const {
  if (!optimizer_)
    detail::fail<NotSupported>("[OptimWrapper] expected a wrapper of one optimizer, got one of several: ask each");
  return *optimizer_;
}
Optimizer& OptimWrapper::optimizer() {
  return const_cast<Optimizer&>(std::as_const(*this).optimizer());  // NOLINT: *this is not const
}

// ---- windows

bool OptimWrapper::window_ends_at(std::int64_t count) const {
  return count % options_.accumulative_counts == 0 || count == max_counts_;
}
bool OptimWrapper::should_update() const { return window_ends_at(inner_count_); }
bool OptimWrapper::should_sync() const { return window_ends_at(inner_count_ + 1); }

Tensor OptimWrapper::scale_loss(const Tensor& loss) const {
  const std::int64_t each = options_.accumulative_counts;
  if (each == 1) return loss;
  const std::int64_t rest = max_counts_ < 0 ? 0 : max_counts_ % each;
  const bool in_last = inner_count_ >= max_counts_ - rest && inner_count_ < max_counts_;
  return loss / static_cast<double>(in_last ? rest : each);
}

void OptimWrapper::initialize_count_status(const ModuleBase& model, std::int64_t init_counts, std::int64_t max_counts) {
  LOCKSTEP_CHECK(init_counts >= 0 && max_counts >= -1 && (max_counts < 0 || init_counts <= max_counts),
                 "[OptimWrapper] expected init_counts from 0 to max_counts (-1: unknown), got ", init_counts, " and ",
                 max_counts);
  const std::int64_t each = options_.accumulative_counts;
  if (init_counts % each != 0)
    log(LogLevel::warning,
        cat("[OptimWrapper] expected init_counts to be a multiple of accumulative_counts ", each, ", got ", init_counts,
            ": the gradients of the ", init_counts % each, " losses before it are lost"));
  if (each > 1 && has_batch_norm(model))
    log(LogLevel::warning, cat("[OptimWrapper] gradients of ", each,
                               " losses accumulate, but the statistics of batch norm are those of each loss"));
  inner_count_ = init_counts;
  max_counts_ = max_counts;
}

// ---- steps

void OptimWrapper::update_params(const Tensor& loss) {
  backward(scale_loss(loss));
  if (!should_update()) return;
  step();
  zero_grad();
}

void OptimWrapper::backward(const Tensor& loss) {
  loss.backward();
  ++inner_count_;
}

void OptimWrapper::step() {
  clip_grad();
  optimizer().step();
}

void OptimWrapper::zero_grad() { optimizer().zero_grad(); }

void OptimWrapper::clip_grad() {
  if (!options_.clip_grad) return;
  const ClipGrad& clip = *options_.clip_grad;
  const std::vector<Parameter>& parameters = optimizer().parameters();  // frozen ones show no gradient
  if (clip.type == "value") {
    clip_grad_value(parameters, *clip.clip_value);
  } else {
    const ClipNormOptions options{.norm_type = clip.norm_type, .error_if_nonfinite = clip.error_if_nonfinite};
    grad_norm_ = clip.clips_norm ? clip.clips_norm(*clip.max_norm, options)
                                 : clip_grad_norm(parameters, *clip.max_norm, options);
  }
}

NamedNumbers OptimWrapper::get_lr() const {
  std::vector<double> rates;
  for (std::size_t group = 0; group < optimizer().group_count(); ++group) rates.push_back(optimizer().lr(group));
  return {{"lr", std::move(rates)}};
}

NamedNumbers OptimWrapper::get_momentum() const {
  std::vector<double> momenta;
  for (std::size_t group = 0; group < optimizer().group_count(); ++group)
    momenta.push_back(optimizer().momentum(group));
  return {{"momentum", std::move(momenta)}};
}

// ---- state

std::vector<NamedTensor> OptimWrapper::state_dict() const {
  std::vector<NamedTensor> state = optimizer().state_dict();
  state.push_back({"inner_count", tensor(inner_count_, {.dtype = DType::i64})});
  state.push_back({"max_counts", tensor(max_counts_, {.dtype = DType::i64})});
  return state;
}

OptimWrapper::Counts OptimWrapper::take_counts(const std::vector<NamedTensor>& state) {
  Counts counts;
  Tensor inner, max;
  for (const NamedTensor& entry : state) {
    if (entry.name.starts_with(kScalerPrefix)) continue;  // of an AmpOptimWrapper
    Tensor* const own = entry.name == "inner_count" ? &inner : entry.name == "max_counts" ? &max : nullptr;
    if (!own) {
      counts.rest.push_back(entry);
      continue;
    }
    LOCKSTEP_CHECK(!own->defined(), "[OptimWrapper] expected each name of a state once, got '", entry.name, "' again");
    *own = entry.tensor;
  }
  if (!inner.defined() && !max.defined()) return counts;  // the optimizer's own state
  const auto number = [](const char* name, const Tensor& tensor, std::int64_t least) {
    LOCKSTEP_CHECK(tensor.defined() && tensor.dtype() == DType::i64 && tensor.count() == 1, "[OptimWrapper] expected '",
                   name, "' of i64[], got ", tensor);
    const auto value = tensor.item<std::int64_t>();
    LOCKSTEP_CHECK(value >= least, "[OptimWrapper] expected '", name, "' of at least ", least, ", got ", value);
    return value;
  };
  counts.inner = number("inner_count", inner, 0);
  counts.max = number("max_counts", max, -1);
  return counts;
}

void OptimWrapper::load(const Counts& counts) {
  optimizer().load_state_dict(counts.rest);
  inner_count_ = counts.inner;
  max_counts_ = counts.max;
}

void OptimWrapper::load_state_dict(const std::vector<NamedTensor>& state) { load(take_counts(state)); }

}  // namespace lockstep
