#include "lockstep/tensor/nn/folding.h"

#include "lockstep/kernels/packed_weights.h"
#include "lockstep/tensor/absent_elements.h"
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
  return {(wide(layer.weight) * scale.reshape(per_output)).to(dtype), bias.to(dtype)};
}

}  // namespace

FoldingCall* folding_call() { return current; }

// ---- Folding

Folding::Origin::Origin(const Tensor& tensor) {
  if (!tensor.defined()) return;
  storage = tensor.storage();
  version = tensor.version();
  offset = tensor.storage_offset();
}

Folding::Fate Folding::fate(const void* layer) const {
  const std::lock_guard lock(mutex_);
  const auto found = fates_.find(layer);
  return found == fates_.end() ? Fate::unknown : found->second;
}

bool Folding::decide(const void* layer, Fate fate) {
  const std::lock_guard lock(mutex_);
  Fate& now = fates_[layer];
  if (now == fate || now == Fate::alone) return false;
  now = fate;
  return true;
}

Folding::Fold& Folding::kept(const void* norm, double eps, const FoldedLayer& layer,
                             std::initializer_list<const Tensor*> tensors) {
  std::vector<Origin> origins;
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
  LayerWeights weights{layer.weight, layer.bias};
  if (!layer.packs) return weights;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<PackedWeights>& packed = kept(nullptr, 0, layer, {&layer.weight}).weights.packed;
  if (!packed) packed = std::make_shared<PackedWeights>();
  weights.packed = packed;
  return weights;
}

// ---- FoldingCall

FoldingCall::FoldingCall(Folding& folding) : folding_(folding), outer_(current) {
  absent_read() = nullptr;
  current = this;
}

FoldingCall::~FoldingCall() { current = outer_; }

Tensor FoldingCall::layer(const FoldedLayer& layer) {
  if (!is_plain() || layer.x.dtype() != layer.weight.dtype()) return layer.compute(layer, {layer.weight, layer.bias});
  const auto alone = [&] { return layer.compute(layer, folding_.packed(layer)); };
  const Folding::Fate fate = layer.folds ? folding_.fate(layer.layer) : Folding::Fate::alone;
  if (fate == Folding::Fate::alone) return alone();
  if (fate == Folding::Fate::unknown) {
    Tensor result = layer.compute(layer, {layer.weight, layer.bias});
    seen_.push_back({layer.layer, result, result.version()});
    return result;
  }
  const Shape shape = layer.shape(layer);
  if (element_count(shape) == 0) return alone();
  left_.push_back({layer, layer.x.version(), absent(shape, layer.x.dtype(), layer.x.device())});
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
    // Taken before, or computed from what is there no more: the norm asks for the elements, and learns that there are
    // none.
    if (left.taken || left.layer.x.version() != left.x_version || norm.x.size(1) != channels) return {};
    const LayerWeights weights = folding_.folded(left.layer, norm);
    left.taken = true;
    Tensor y = left.layer.compute(left.layer, weights);
    left.layer.x = {};
    return y;
  }
  return {};
}

void FoldingCall::check_result(const Tensor& result) const {
  if (is_absent(result)) absent_read() = result.storage().get();
}

bool FoldingCall::again_after_throw() {
  const Storage* const read = absent_read();
  for (const Left& left : left_)
    if (read && left.result.storage().get() == read) {
      folding_.decide(left.layer.layer, Folding::Fate::alone);
      return true;
    }
  return false;
}

bool FoldingCall::again_after_return() {
  if (again_after_throw()) return true;  // of something that the module has caught
  bool news = false;
  for (const Seen& seen : seen_)
    if (seen.norms != 1) folding_.decide(seen.layer, Folding::Fate::alone);
  for (const Seen& seen : seen_)
    if (seen.norms == 1) news |= folding_.decide(seen.layer, Folding::Fate::folded);
  return news;
}

}  // namespace lockstep::detail
