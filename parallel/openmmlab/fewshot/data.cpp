#include "lockstep/parallel/openmmlab/fewshot/data.h"

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {
namespace {

// `part` of each tensor that is there.
template <class F>
FewShotData each(const FewShotData& data, F&& part) {
  const auto of = [&](const Tensor& tensor) { return tensor.defined() ? part(tensor) : Tensor(); };
  return {of(data.img), of(data.feats), of(data.gt_label)};
}

}  // namespace

const Tensor& FewShotData::content() const {
  LOCKSTEP_CHECK(img.defined() != feats.defined(), "[FewShotData] expected either images or features, got ",
                 img.defined() ? "both" : "neither");
  return img.defined() ? img : feats;
}

FewShotData FewShotData::select(const std::vector<std::int64_t>& indices) const {
  const Tensor on_cpu = from_data(indices, {static_cast<std::int64_t>(indices.size())});
  return each(*this, [&](const Tensor& x) { return index_select(x, 0, on_cpu.to(x.device())); });
}

FewShotData FewShotData::slice(std::int64_t start, std::int64_t length) const {
  const std::int64_t taken = std::min(length, count() - start);
  return each(*this, [&](const Tensor& x) { return x.narrow(0, start, taken); });
}

const char* to_string(FewShotMode mode) {
  switch (mode) {
    case FewShotMode::train:
      return "train";
    case FewShotMode::support:
      return "support";
    case FewShotMode::query:
      return "query";
    case FewShotMode::extract_feat:
      return "extract_feat";
  }
  detail::fail_few_shot_mode(mode);
}

void detail::fail_few_shot_mode(FewShotMode mode) {
  fail<InvalidArgument>("[FewShotMode] expected train, support, query or extract_feat, got number ",
                        static_cast<int>(mode));
}

}  // namespace lockstep
