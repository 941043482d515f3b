#include "lockstep/tensor/nn/folding.h"

#include <algorithm>
#include <utility>

#include "lockstep/kernels/packed_weights.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep::detail {
namespace {

thread_local FoldingCall* current = nullptr;

// Other weights or other dtypes than the parameters' hold in this place: nothing to be kept.
bool is_plain() {
  const ThreadContext& context = thread_context();
  return !context.substitution && !context.autocast && !GradMode::enabled();
}

// y = (w x + b - mean) * weight / sqrt(var + eps) + bias, in f64 up to the last rounding.
LayerWeights fold(const FoldedLayer& layer, const FoldedNorm& norm) {
  const auto wide = [](const Tensor& tensor) { return tensor.to(DType::f64); };
  Tensor scale = 1 / sqrt(wide(norm.var) + norm.eps);
  if (norm.weight.defined()) scale = scale * wide(norm.weight);
  Shape per_output = layer.weight.shape();
  for (int d = 1; d < per_output.rank(); ++d) per_output[d] = 1;
  Tensor bias = layer.bias.defined() ? wide(layer.bias) - wide(norm.mean) : -wide(norm.mean);
  bias = bias * scale;
  if (norm.bias.defined()) bias = bias + wide(norm.bias);
  const DType dtype = layer.weight.dtype();
  return {(wide(layer.weight) * scale.reshape(per_output)).to(dtype).contiguous(), bias.to(dtype)};
}

}  // namespace

FoldingCall* folding_call() { return current; }

// ---- Folding

Folding::Fate Folding::fate(const void* layer) const {
  const std::lock_guard lock(mutex_);
  const auto found = fates_.find(layer);
  return found == fates_.end() ? Fate::unknown : found->second;
}

Folding::Fate Folding::decide(const void* layer, Fate fate) {
  const std::lock_guard lock(mutex_);
  Fate& now = fates_[layer];
  const auto has_norm = [](Fate of) { return of == Fate::with_norm || of == Fate::with_both; };
  Fate next = fate;
  if (now != Fate::unknown && now != fate) next = has_norm(now) && has_norm(fate) ? Fate::with_norm : Fate::alone;
  return now = next;
}

Folding::Fold& Folding::kept(const void* norm, double eps, const FoldedLayer& layer,
                             std::initializer_list<const Tensor*> tensors) {
  std::vector<Elements> origins;
  for (const Tensor* tensor : tensors) origins.emplace_back(*tensor);
  Fold& entry = folds_[{layer.layer, norm, &current_stream(layer.x.device()).body()}];
  if (entry.origins != origins || entry.eps != eps) entry = {.origins = std::move(origins), .eps = eps, .weights = {}};
  return entry;
}

LayerWeights Folding::folded(const FoldedLayer& layer, const FoldedNorm& norm) {
  const std::lock_guard lock(mutex_);
  LayerWeights& weights =
      kept(norm.norm, norm.eps, layer, {&layer.weight, &layer.bias, &norm.weight, &norm.bias, &norm.mean, &norm.var})
          .weights;
  if (!weights.weight.defined()) {
    weights = fold(layer, norm);
    if (layer.packs) weights.packed = std::make_shared<PackedWeights>();
  }
  return weights;
}

LayerWeights Folding::packed(const FoldedLayer& layer) {
  if (!layer.packs) return {layer.weight, layer.bias};
  const std::lock_guard lock(mutex_);
  LayerWeights& own = kept(nullptr, 0, layer, {&layer.weight}).weights;
  if (!own.packed) own = {layer.weight.contiguous(), {}, std::make_shared<PackedWeights>()};
  return {own.weight, layer.bias, own.packed};
}

void Folding::forget() {
  const std::lock_guard lock(mutex_);
  fates_.clear();
  folds_.clear();
}

// ---- FoldingCall

FoldingCall::FoldingCall(Folding& folding) : folding_(folding), outer_(current), outer_relu_(relu_of_prepared()) {
  absent_read() = nullptr;
  current = this;
  relu_of_prepared() = [](const Tensor& x) { return current->relu(x); };
}

FoldingCall::~FoldingCall() {
  current = outer_;
  relu_of_prepared() = outer_relu_;
}

Folding::Fate FoldingCall::Seen::fate() const {
  using enum Folding::Fate;
  if (norms == 1 && relus == 0) return relus_of_normed == 1 ? with_both : with_norm;
  return norms == 0 && relus == 1 ? with_relu : alone;
}

bool FoldingCall::Left::can(bool first) const {
  return first && !done && layer.x.version() == x_version && Elements(layer.weight) == weight &&
         Elements(layer.bias) == bias && &current_stream(result.device()).body() == called_on;
}

Tensor FoldingCall::Left::compute(const LayerWeights& of, bool with_relu) {
  done = true;
  Tensor y = layer.compute(layer, of, with_relu);
  layer.x = {};
  return y;
}

Tensor FoldingCall::layer(const FoldedLayer& layer) {
  if (!is_plain() || layer.x.dtype() != layer.weight.dtype())
    return layer.compute(layer, {layer.weight, layer.bias}, false);
  const auto alone = [&] { return layer.compute(layer, folding_.packed(layer), false); };
  const Folding::Fate fate = layer.folds ? folding_.fate(layer.layer) : Folding::Fate::alone;
  if (fate == Folding::Fate::alone) return alone();
  if (fate == Folding::Fate::unknown) {
    Tensor result = layer.compute(layer, {layer.weight, layer.bias}, false);
    seen_.push_back({layer.layer, result, result.version(), layer.packs && result.dtype() == DType::f32});
    return result;
  }
  const Shape shape = layer.shape(layer);
  if (element_count(shape) == 0) return alone();
  const Device device = layer.x.device();
  left_.push_back({.layer = layer,
                   .fate = fate,
                   .result = absent(shape, layer.x.dtype(), device),
                   .x_version = layer.x.version(),
                   .weight = Elements(layer.weight),
                   .bias = Elements(layer.bias),
                   .called_on = &current_stream(device).body()});
  return left_.back().result;
}

Tensor FoldingCall::norm(const FoldedNorm& norm) {
  if (!norm.folds || !is_plain()) return {};
  const std::int64_t channels = norm.mean.count();
  for (Seen& seen : seen_)
    if (seen.result.identity() == norm.x.identity() && seen.version == norm.x.version() && norm.x.size(1) == channels)
      ++seen.norms;
  for (Left& left : left_) {
    if (left.result.identity() != norm.x.identity()) continue;
    const bool with_both = left.fate == Folding::Fate::with_both;
    // The norm asks for the elements, and learns that there are none.
    if (!left.can((with_both || left.fate == Folding::Fate::with_norm) && !left.normed.defined()) ||
        norm.x.size(1) != channels)
      return {};
    LayerWeights weights = folding_.folded(left.layer, norm);
    if (!with_both) return left.compute(weights, false);
    left.weights = std::move(weights);
    left.normed = absent(norm.x.shape(), norm.x.dtype(), norm.x.device());
    return left.normed;
  }
  return {};
}

bool FoldingCall::sees(const Tensor& x) const {
  return std::any_of(seen_.begin(), seen_.end(),
                     [&](const Seen& seen) { return seen.result.identity() == x.identity(); });
}

void FoldingCall::normed(const Tensor& x, const Tensor& y) {
  for (Seen& seen : seen_)
    if (seen.result.identity() == x.identity()) seen.normed = y, seen.normed_version = y.version();
}

Tensor FoldingCall::relu(const Tensor& x) {
  if (!x.defined() || !is_plain()) return {};
  for (Seen& seen : seen_) {
    if (seen.result.identity() == x.identity() && seen.version == x.version()) ++seen.relus;
    if (seen.normed.defined() && seen.normed.identity() == x.identity() && seen.normed_version == x.version())
      ++seen.relus_of_normed;
  }
  for (Left& left : left_) {
    const bool has_norm = left.fate == Folding::Fate::with_both;
    const Tensor& of = has_norm ? left.normed : left.result;
    if (!of.defined() || of.identity() != x.identity()) continue;
    if (!left.can(has_norm || left.fate == Folding::Fate::with_relu)) return {};
    return left.compute(has_norm ? left.weights : folding_.packed(left.layer), true);
  }
  return {};
}

void FoldingCall::check_result(const Tensor& result) const {
  if (is_absent(result)) absent_read() = result.storage().get();
}

bool FoldingCall::again_after_throw() {
  const Storage* const read = absent_read();
  if (!read) return false;
  for (const Left& left : left_) {
    if (left.result.storage().get() == read) {
      folding_.decide(left.layer.layer, Folding::Fate::alone);
      return true;
    }
    if (left.normed.defined() && left.normed.storage().get() == read) {
      folding_.decide(left.layer.layer, Folding::Fate::with_norm);
      return true;
    }
  }
  return false;
}

bool FoldingCall::again_after_return(bool& learned) {
  if (again_after_throw()) return true;  // of something that the module has caught
  bool differs = false;                  // from what later calls give
  for (const Seen& seen : seen_)
    differs |= folding_.decide(seen.layer, seen.fate()) != Folding::Fate::alone || seen.packs;
  // Once is enough, also for layers that are new in every call.
  return differs && !std::exchange(learned, true);
}

}  // namespace lockstep::detail
