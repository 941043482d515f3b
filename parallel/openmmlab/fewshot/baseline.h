// Baseline: a network that was trained to classify the base classes, with a new linear classifier for each task.
// Chen, Liu, Kira, Wang & Huang, "A Closer Look at Few-shot Classification", ICLR 2019.
#pragma once

#include <cstdint>
#include <utility>

#include "lockstep/parallel/openmmlab/fewshot/head_per_task.h"

namespace lockstep {

struct BaselineOptions {
  std::int64_t in_channels = 0;        // features of the backbone
  std::int64_t num_classes = 0;        // of the base classes
  std::int64_t meta_test_classes = 5;  // of a task
};

// Training: the cross entropy of forward(batch, FewShotMode::train), over all base classes. Meta-testing: the backbone
// is frozen and in evaluation mode, and support.train trains `meta_test_head`, which begins anew in every task.
template <IsModule Backbone>
class Baseline : public detail::HeadPerTask<Baseline<Backbone>, Backbone, Linear> {
 public:
  // Throws InvalidArgument for options below 1.
  Baseline(Backbone module, const BaselineOptions& o)
      : detail::HeadPerTask<Baseline, Backbone, Linear>(
            "Baseline", std::move(module), detail::make_head("Baseline", o.in_channels, o.num_classes),
            o.meta_test_classes, [o] { return detail::make_head("Baseline", o.in_channels, o.meta_test_classes); }) {}
};

}  // namespace lockstep
