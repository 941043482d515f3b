#include "lockstep/parallel/openmmlab/fewshot/heads.h"

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

Tensor class_prototypes(const Tensor& feats, const Tensor& gt_label) {
  LOCKSTEP_CHECK(feats.rank() == 2 && gt_label.shape() == Shape{feats.size(0)} && feats.size(0) > 0,
                 "[class_prototypes] expected features [n, d] and labels [n], got ", feats, " and ", gt_label);
  const auto labels = gt_label.to_vector<std::int64_t>();
  const auto [least, most] = std::minmax_element(labels.begin(), labels.end());
  LOCKSTEP_CHECK(*least >= 0 && *most < feats.size(0), "[class_prototypes] expected labels from 0 to ",
                 feats.size(0) - 1, ", got ", *least < 0 ? *least : *most);
  const std::int64_t ways = *most + 1;
  std::vector<double> counts(static_cast<std::size_t>(ways));
  for (const std::int64_t label : labels) ++counts[static_cast<std::size_t>(label)];
  const auto empty = std::find(counts.begin(), counts.end(), 0.0);
  LOCKSTEP_CHECK(empty == counts.end(), "[class_prototypes] expected samples of each of ", ways,
                 " classes, got none of class ", empty - counts.begin());
  const TensorOptions like{.dtype = feats.dtype(), .device = feats.device()};
  const Tensor members = one_hot(gt_label.to(feats.device()), ways).to(feats.dtype());
  return matmul(members.t(), feats) / from_data(counts, {ways, 1}, like);
}

Tensor negative_squared_distances(const Tensor& feats, const Tensor& prototypes) {
  LOCKSTEP_CHECK(feats.rank() == 2 && prototypes.rank() == 2 && feats.size(1) == prototypes.size(1),
                 "[negative_squared_distances] expected features [n, d] and prototypes [ways, d], got ", feats, " and ",
                 prototypes);
  return -sum(square(feats.unsqueeze(1) - prototypes.unsqueeze(0)), {2});
}

namespace detail {

Linear make_head(const char* model, std::int64_t in_channels, std::int64_t num_classes) {
  LOCKSTEP_CHECK(in_channels > 0 && num_classes > 0, "[", model,
                 "] expected in_channels and classes of at least 1, got ", in_channels, " and ", num_classes);
  return {in_channels, num_classes};
}

void reset_head(const Linear& head) {
  const DefaultDType dtype(head.weight.dtype());
  const Linear fresh(head.weight.shape()[1], head.weight.shape()[0]);
  head.weight.assign(fresh.weight.tensor());
  head.bias.assign(fresh.bias.tensor());
}

}  // namespace detail
}  // namespace lockstep
