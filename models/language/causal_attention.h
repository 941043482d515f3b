// Attention over whole texts, without a cache: what forward gives a model's layers in place of a cache.
#pragma once

#include "lockstep/models/generation/language_model.h"

namespace lockstep::detail {

// The tokens of a call are those of `texts` texts of one length, one after the other.
class CausalAttention final : public CachedAttention {
 public:
  explicit CausalAttention(std::int64_t texts, double dropout = 0) : texts_(texts), dropout_(dropout) {}
  Tensor attend(int layer, const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale) override;

 private:
  std::int64_t texts_;
  double dropout_;
};

// ids [B, T] of integers as one row of tokens; throws InvalidArgument, naming `model`, for another rank.
Tensor flat_tokens(const char* model, const Tensor& ids);
// The place of each token of ids [B, T] in its text, as one row.
Tensor flat_positions(const Tensor& ids);

}  // namespace lockstep::detail
