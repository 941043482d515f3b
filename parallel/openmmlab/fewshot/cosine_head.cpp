#include "lockstep/parallel/openmmlab/fewshot/cosine_head.h"

#include "lockstep/parallel/openmmlab/fewshot/heads.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/ops.h"

namespace lockstep {
namespace {

// Rows of length 1. The little something keeps the gradient of a row of zeros finite.
Tensor normalized(const Tensor& rows) { return rows / sqrt(sum(square(rows), {1}, true) + 1e-10); }

}  // namespace

CosineHead::CosineHead(std::int64_t in_channels, std::int64_t num_classes, CosineHeadOptions options)
    : weight(detail::make_head("CosineHead", in_channels, num_classes).weight), options_(options) {
  LOCKSTEP_CHECK(options.temperature > 0, "[CosineHead] expected a temperature above 0, got ", options.temperature);
}

Tensor CosineHead::cosines(const Tensor& feats) const {
  LOCKSTEP_CHECK(feats.rank() == 2 && feats.size(1) == weight.shape()[1], "[CosineHead] expected features [n, ",
                 weight.shape()[1], "], got ", feats);
  return linear(normalized(feats), normalized(weight.on(feats.device())));
}

Tensor CosineHead::forward(const Tensor& feats) const { return cosines(feats) * options_.temperature; }

Tensor CosineHead::loss(const Tensor& feats, const Tensor& gt_label) const {
  Tensor scores = cosines(feats);
  if (options_.margin != 0) {
    const Tensor right = one_hot(gt_label.to(scores.device()), scores.size(1)).to(scores.dtype());
    scores = scores - right * options_.margin;
  }
  return cross_entropy(scores * options_.temperature, gt_label);
}

void CosineHead::reset() const {
  const DefaultDType dtype(weight.dtype());
  weight.assign(detail::make_head("CosineHead", weight.shape()[1], weight.shape()[0]).weight.tensor());
}

}  // namespace lockstep
