#include "lockstep/tensor/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/sparse_gradient.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

void check_scale(double scale) {
  LOCKSTEP_CHECK(scale > 0 && scale <= std::numeric_limits<float>::max(),
                 "[GradScaler] expected a finite scale above 0, got ", scale);
}

void check_options(const GradScalerOptions& o) {
  check_scale(o.init_scale);
  LOCKSTEP_CHECK(std::isfinite(o.growth_factor) && o.growth_factor > 1,
                 "[GradScaler] expected a growth factor above 1, got ", o.growth_factor);
  LOCKSTEP_CHECK(o.backoff_factor > 0 && o.backoff_factor < 1,
                 "[GradScaler] expected a backoff factor between 0 and 1, got ", o.backoff_factor);
  LOCKSTEP_CHECK(o.growth_interval > 0, "[GradScaler] expected a growth interval of at least 1 iteration, got ",
                 o.growth_interval);
}

// The gradients on one device.
struct Share {
  Device device;
  std::vector<Tensor> gradients, dense;
};

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  check_options(options);
}

Tensor GradScaler::scale(const Tensor& loss) const { return options_.enabled ? mul(loss, scale_) : loss; }

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (const auto found = progress_.find(&optimizer); found != progress_.end())
    throw Error(cat("[GradScaler] expected one unscale_() of an optimizer between updates, got ",
                    found->second.stepped ? "one after step()" : "a second one"));
  NoGrad no_grad;
  std::vector<Share> shares;
  for (const Parameter& parameter : optimizer.parameters()) {
    SparseGradient rows = parameter.sparse_grad();
    if (rows.defined() && rows.values.dtype() == DType::f16) {  // finite rows may have an infinite sum
      rows = detail::sum_rows(rows);
      parameter.set_sparse_grad(rows);
    }
    const Tensor gradient = rows.defined() ? rows.values : parameter.grad();
    if (!gradient.defined()) continue;
    Share* share = nullptr;
    for (Share& known : shares)
      if (known.device == gradient.device()) share = &known;
    if (!share) share = &shares.emplace_back(Share{gradient.device(), {}, {}});
    share->gradients.push_back(gradient);
    share->dense.push_back(gradient.contiguous(gradient.memory_format()));
  }
  Progress progress;  // what needs memory, before the first gradient changes
  for (const Share& share : shares) progress.found.push_back(detail::fresh_zeros({}, DType::f32, share.device));
  for (std::size_t s = 0; s < shares.size(); ++s) {
    const Share& share = shares[s];
    UnscaleArgs args{{}, progress.found[s].in_out(), 1 / scale_};
    for (const Tensor& dense : share.dense) args.gradients.push_back(dense.in_out());
    detail::launch(share.device, args);
    for (std::size_t i = 0; i < share.gradients.size(); ++i) {
      Tensor gradient = share.gradients[i];
      if (share.dense[i].identity() != gradient.identity())
        gradient.copy_(share.dense[i]);
      else
        gradient.mark_changed();
    }
  }
  progress_.emplace(&optimizer, std::move(progress));
}

bool GradScaler::is_bad(Progress& progress) const {
  if (!progress.known) {
    bool bad = false;
    for (const Tensor& found : progress.found) bad |= found.item<float>() != 0;
    progress.bad = options_.share_overflow ? options_.share_overflow(bad) : bad;
    progress.known = true;
  }
  return progress.bad;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (!progress_.contains(&optimizer)) unscale_(optimizer);
  Progress& progress = progress_.at(&optimizer);
  if (progress.stepped)
    throw Error("[GradScaler] expected one step() of an optimizer between updates, got a second one");
  if (!is_bad(progress)) optimizer.step();
  progress.stepped = true;
  return !progress.bad;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (progress_.empty()) throw Error("[GradScaler] expected unscale_() or step() before update(), got neither");
  bool bad = false;
  for (auto& [optimizer, progress] : progress_) bad |= is_bad(progress);
  progress_.clear();
  if (!options_.dynamic) return;
  if (bad) {
    // Not down to 0, which nothing leads back from.
    scale_ = std::max(scale_ * options_.backoff_factor, double{std::numeric_limits<float>::min()});
    growth_tracker_ = 0;
  } else if (++growth_tracker_ >= options_.growth_interval) {
    const double grown = scale_ * options_.growth_factor;
    if (grown <= std::numeric_limits<float>::max()) scale_ = grown;
    growth_tracker_ = 0;
  }
}

void GradScaler::check_between(const char* call) const {
  if (!progress_.empty())
    throw Error(cat("[GradScaler] expected ", call, " between iterations, got one before update()"));
}

void GradScaler::set_scale(double scale) {
  check_scale(scale);
  check_between("set_scale()");
  scale_ = scale;
  growth_tracker_ = 0;
}

std::vector<NamedTensor> GradScaler::state_dict() const {
  const TensorOptions real{.dtype = DType::f64}, whole{.dtype = DType::i64};
  return {{"scale", tensor(scale_, real)},
          {"growth_factor", tensor(options_.growth_factor, real)},
          {"backoff_factor", tensor(options_.backoff_factor, real)},
          {"growth_interval", tensor(options_.growth_interval, whole)},
          {"growth_tracker", tensor(growth_tracker_, whole)}};
}

void GradScaler::load_state_dict(const std::vector<NamedTensor>& state) {
  check_between("load_state_dict()");
  std::map<std::string, Tensor> given;
  for (const NamedTensor& entry : state) given[entry.name] = entry.tensor;
  std::size_t taken = 0;
  const auto take = [&]<class T>(const char* name, T& value) {
    const auto found = given.find(name);
    const Tensor tensor = found == given.end() ? Tensor() : found->second;
    LOCKSTEP_CHECK(tensor.defined() && tensor.count() == 1 && tensor.dtype() == dtype_of<T>(),
                   "[GradScaler] expected '", name, "' of ", dtype_of<T>(), "[], got ", tensor);
    value = tensor.item<T>();
    ++taken;
  };
  GradScalerOptions options = options_;
  double scale;
  std::int64_t growth_tracker;
  take("scale", scale);
  take("growth_factor", options.growth_factor);
  take("backoff_factor", options.backoff_factor);
  take("growth_interval", options.growth_interval);
  take("growth_tracker", growth_tracker);
  LOCKSTEP_CHECK(taken == state.size(), "[GradScaler] expected a state of ", taken, " entries, got ", state.size());
  check_options(options);
  check_scale(scale);
  LOCKSTEP_CHECK(growth_tracker >= 0, "[GradScaler] expected a growth tracker of at least 0, got ", growth_tracker);
  options_ = options;
  scale_ = scale;
  growth_tracker_ = growth_tracker;
}

}  // namespace lockstep
