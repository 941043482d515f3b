// A classifier by the angle between features and a vector for each class, as BaselinePlus and NegMargin have it.
#pragma once

#include <cstdint>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

struct CosineHeadOptions {
  double temperature = 10;  // what the cosines are multiplied by, above 0
  double margin = 0;        // what is taken from the cosine of the right class before the loss
};

// Scores are temperature * cos(features, weight of the class).
class LOCKSTEP_API CosineHead : public Module<CosineHead> {
 public:
  // Throws InvalidArgument for sizes below 1 and a temperature that is not above 0.
  CosineHead(std::int64_t in_channels, std::int64_t num_classes, CosineHeadOptions options = {});

  // [n, in_channels] -> [n, num_classes]. A vector of length 0 has the cosine 0 with all others.
  Tensor forward(const Tensor& feats) const;
  // The cross entropy of the scores with the margin.
  Tensor loss(const Tensor& feats, const Tensor& gt_label) const;
  // New values, as of a new layer, from the thread's random numbers.
  void reset() const;
  const CosineHeadOptions& options() const { return options_; }

  void members(Members& m) override { m("weight", weight); }

  Parameter weight;  // [num_classes, in_channels]

 private:
  Tensor cosines(const Tensor& feats) const;
  CosineHeadOptions options_;
};

}  // namespace lockstep
