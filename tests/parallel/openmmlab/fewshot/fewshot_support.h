// A small backbone, its data and the definitions of the few-shot algorithms in plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/parallel/openmmlab/fewshot/data.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "parallel/support.h"

namespace fewshot_test {

using namespace parallel_test;
using Rows = std::vector<Doubles>;

// [n, 2] -> [n, 3] in f64.
struct Backbone : Module<Backbone> {
  Affine layer{2, 3, 7};
  Tensor forward(const Tensor& x) const { return tanh(layer(x)); }
  void members(Members& m) override { m("layer", layer); }
};

inline FewShotData labelled(const Tensor& images, std::vector<std::int64_t> labels) {
  const auto count = static_cast<std::int64_t>(labels.size());
  return {.img = images, .gt_label = from_data(labels, {count})};
}
inline Episode episode() {
  return {.support_data = labelled(noise({4, 2}, 5), {0, 1, 0, 1}),
          .query_data = labelled(noise({5, 2}, 6), {0, 1, 1, 0, 1})};
}

inline Rows rows(const Tensor& matrix) {
  const Doubles all = values(matrix);
  const auto width = static_cast<std::size_t>(matrix.size(1));
  Rows result;
  for (std::size_t start = 0; start < all.size(); start += width)
    result.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(start),
                        all.begin() + static_cast<std::ptrdiff_t>(start + width));
  return result;
}

// ---- the definitions, in plain loops

inline Rows plain_prototypes(const Rows& feats, const std::vector<std::int64_t>& labels, std::size_t ways) {
  Rows means(ways, Doubles(feats[0].size()));
  for (std::size_t c = 0; c < ways; ++c) {
    double count = 0;
    for (const std::int64_t label : labels) count += label == static_cast<std::int64_t>(c);
    for (std::size_t i = 0; i < feats.size(); ++i)
      for (std::size_t d = 0; d < feats[i].size(); ++d)
        if (labels[i] == static_cast<std::int64_t>(c)) means[c][d] += feats[i][d] / count;
  }
  return means;
}
inline Rows plain_scores(const Rows& feats, const Rows& prototypes) {
  Rows scores(feats.size(), Doubles(prototypes.size()));
  for (std::size_t i = 0; i < feats.size(); ++i)
    for (std::size_t c = 0; c < prototypes.size(); ++c)
      for (std::size_t d = 0; d < feats[i].size(); ++d)
        scores[i][c] -= (feats[i][d] - prototypes[c][d]) * (feats[i][d] - prototypes[c][d]);
  return scores;
}
inline Doubles plain_softmax(const Doubles& scores) {
  double total = 0;
  for (const double score : scores) total += std::exp(score);
  Doubles result;
  for (const double score : scores) result.push_back(std::exp(score) / total);
  return result;
}
inline double plain_cross_entropy(const Rows& scores, const std::vector<std::int64_t>& labels) {
  double loss = 0;
  for (std::size_t i = 0; i < scores.size(); ++i)
    loss -=
        std::log(plain_softmax(scores[i])[static_cast<std::size_t>(labels[i])]) / static_cast<double>(labels.size());
  return loss;
}
inline double largest_difference(const Rows& a, const Rows& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j) largest = std::max(largest, std::abs(a[i][j] - b[i][j]));
  return largest;
}

template <class F>
std::string refusal(F&& f) {
  return message_of<InvalidArgument>(f);
}

}  // namespace fewshot_test
