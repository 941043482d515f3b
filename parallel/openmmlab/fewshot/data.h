// What few-shot models are given: labelled images, episodes of them, and the phase of a call.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Images with their labels, or features that were computed from images before. What is not there is undefined.
struct LOCKSTEP_API FewShotData {
  Tensor img;       // [n, ..]
  Tensor feats;     // [n, ..], in place of img
  Tensor gt_label;  // i64[n]

  // Of img, or else of feats. Throws InvalidArgument unless one of the two, and not both, is there.
  const Tensor& content() const;
  std::int64_t count() const { return content().size(0); }
  // The samples at `indices`; those from `start` on, at most `length`.
  FewShotData select(const std::vector<std::int64_t>& indices) const;
  FewShotData slice(std::int64_t start, std::int64_t length) const;

  void fields(auto& f) { f(img, feats, gt_label); }
};

// One task: a few labelled images to learn from, and others to be asked about. Both are labelled 0 … N-1: label i
// stands for the class class_ids[i] of the set that the task was drawn from.
struct Episode {
  FewShotData support_data, query_data;
  std::vector<std::int64_t> class_ids = {};
  void fields(auto& f) { f(support_data, query_data, class_ids); }
};

// What a call of a few-shot model does. train: the loss of a batch, for training. support: learns from samples of a
// task, or gives their loss. query: scores [n, ways]. extract_feat: the features of images.
enum class FewShotMode { train, support, query, extract_feat };
// Throws InvalidArgument for a number that is none of them.
LOCKSTEP_API const char* to_string(FewShotMode mode);

namespace detail {
[[noreturn]] LOCKSTEP_API void fail_few_shot_mode(FewShotMode mode);
}

}  // namespace lockstep
