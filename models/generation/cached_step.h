// One call of a model over the pages of a cache. Private to the library.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/kernels/optimizer_args.h"
#include "lockstep/models/generation/language_model.h"

namespace lockstep::detail {

struct KvPools {
  std::int64_t page_size = 0;
  std::vector<Tensor> tensors;  // [pages, page, heads, size]: keys of layer 0, values of layer 0, keys of layer 1, …
};

// Sequences with one new token are computed side by side, as are their queries in attention; the others one after the
// other behind them. What a sequence gets does not depend on the order of its neighbours.
class CachedStep final : public CachedAttention {
 public:
  CachedStep(const KvPools& pools, const LanguageModelShape& shape, Device device, DType dtype)
      : pools_(pools), shape_(shape), device_(device), dtype_(dtype) {}

  // `pages` has room for the tokens behind the first `length`.
  void add(std::span<const std::int32_t> pages, std::int64_t length, std::span<const std::int64_t> tokens, bool wanted);
  // The logits of the last token of those that are wanted, in the order of the calls.
  Tensor compute(const LanguageModel& model);

  Tensor attend(int layer, const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale) override;

 private:
  struct Sequence {
    std::span<const std::int32_t> pages;
    std::int64_t length;
    std::span<const std::int64_t> tokens;
    bool wanted;
    std::int64_t row;  // of its first token in the call
  };
  struct Group {  // of sequences with as many new tokens, one after the other, which attend in one operation
    std::int64_t row, sequences, tokens;
    Tensor block_table, lengths;
  };
  struct Run {  // of rows that lie one after the other in a page
    std::int64_t row, place, count;
  };
  const Tensor& keys_of(int layer) const { return pools_.tensors[2 * static_cast<std::size_t>(layer)]; }
  const Tensor& values_of(int layer) const { return pools_.tensors[2 * static_cast<std::size_t>(layer) + 1]; }
  void make_group(std::span<const Sequence* const> sequences);
  void write(const Tensor& keys, const Tensor& values, int layer);

  const KvPools& pools_;
  LanguageModelShape shape_;
  Device device_;
  DType dtype_;
  std::vector<Sequence> sequences_;
  std::vector<Group> groups_;
  std::vector<Run> runs_;
  std::int64_t rows_ = 0;
  int layers_ = 0;  // that have attended
};

}  // namespace lockstep::detail
