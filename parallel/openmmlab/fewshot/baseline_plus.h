// BaselinePlus and NegMargin: Baseline with cosine classifiers. NegMargin's has a margin below 0 in training, which
// keeps the base classes closer together and leaves more room for new ones.
// Chen, Liu, Kira, Wang & Huang, "A Closer Look at Few-shot Classification", ICLR 2019 (Baseline++).
// Liu, Cao, Lin, Li, Zhang, Long & Hu, "Negative Margin Matters: Understanding Margin in Few-shot Classification", ECCV
// 2020 (its form with cosines).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "lockstep/parallel/openmmlab/fewshot/head_per_task.h"

namespace lockstep {

struct BaselinePlusOptions {
  std::int64_t in_channels = 0;                      // features of the backbone
  std::int64_t num_classes = 0;                      // of the base classes
  std::int64_t meta_test_classes = 5;                // of a task
  std::optional<double> temperature = std::nullopt;  // default: 2 for up to 200 base classes, else 10
  double meta_test_temperature = 2;
};
struct NegMarginOptions {
  std::int64_t in_channels = 0, num_classes = 0, meta_test_classes = 5;  // as above
  double temperature = 10, meta_test_temperature = 5;
  double margin = -0.01;  // in training; a task has none
};

template <IsModule Backbone>
class BaselinePlus : public detail::HeadPerTask<BaselinePlus<Backbone>, Backbone, CosineHead> {
 public:
  // Throws InvalidArgument for sizes below 1 and temperatures that are not above 0.
  BaselinePlus(Backbone module, const BaselinePlusOptions& o)
      : detail::HeadPerTask<BaselinePlus, Backbone, CosineHead>(
            "BaselinePlus", std::move(module),
            CosineHead(o.in_channels, o.num_classes,
                       {.temperature = o.temperature.value_or(o.num_classes <= 200 ? 2 : 10)}),
            o.meta_test_classes,
            [o] { return CosineHead(o.in_channels, o.meta_test_classes, {.temperature = o.meta_test_temperature}); }) {}
};

template <IsModule Backbone>
class NegMargin : public detail::HeadPerTask<NegMargin<Backbone>, Backbone, CosineHead> {
 public:
  // Throws InvalidArgument for sizes below 1 and temperatures that are not above 0.
  NegMargin(Backbone module, const NegMarginOptions& o)
      : detail::HeadPerTask<NegMargin, Backbone, CosineHead>(
            "NegMargin", std::move(module),
            CosineHead(o.in_channels, o.num_classes, {.temperature = o.temperature, .margin = o.margin}),
            o.meta_test_classes,
            [o] { return CosineHead(o.in_channels, o.meta_test_classes, {.temperature = o.meta_test_temperature}); }) {}
};

}  // namespace lockstep
