// Baseline: a network that was trained to classify the base classes, with a new linear classifier for each task.
// Chen, Liu, Kira, Wang & Huang, "A Closer Look at Few-shot Classification", ICLR 2019.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "lockstep/parallel/openmmlab/fewshot/classifier.h"
#include "lockstep/parallel/openmmlab/fewshot/heads.h"

namespace lockstep {

struct BaselineOptions {
  std::int64_t in_channels = 0;        // features of the backbone
  std::int64_t num_classes = 0;        // of the base classes
  std::int64_t meta_test_classes = 5;  // of a task
};

// Training: the cross entropy of forward(batch, FewShotMode::train), over all base classes. Meta-testing: the backbone
// is frozen and in evaluation mode, and support.train trains `meta_test_head`, which begins anew in every task.
template <IsModule Backbone>
class Baseline : public BaseFewShotClassifier<Baseline<Backbone>, Backbone> {
 public:
  // Throws InvalidArgument for options below 1.
  Baseline(Backbone module, const BaselineOptions& options)
      : BaseFewShotClassifier<Baseline, Backbone>(std::move(module)),
        head(detail::make_head("Baseline", options.in_channels, options.num_classes)),
        options_(options) {
    LOCKSTEP_CHECK(options.meta_test_classes > 0, "[Baseline] expected meta_test_classes of at least 1, got ",
                   options.meta_test_classes);
  }
  using BaseFewShotClassifier<Baseline, Backbone>::forward;

  Tensor forward_train(const FewShotData& data) const {
    return cross_entropy(head(this->extract_feat(data)), data.gt_label);
  }
  Tensor forward_support(const FewShotData& data) const {
    return cross_entropy(task_head()(this->extract_feat(data)), data.gt_label);
  }
  Tensor forward_query(const FewShotData& data) const { return task_head()(this->extract_feat(data)); }

  void before_meta_test(const auto&) {
    this->freeze_backbone();
    head.set_requires_grad(false);
    const DefaultDType dtype(head.weight.dtype());
    meta_test_head = detail::make_head("Baseline", options_.in_channels, options_.meta_test_classes);
    meta_test_head->to(head.weight.device());
    this->named_parameters();  // so that those of the new head have names
  }
  void before_forward_support() {
    detail::reset_head(task_head());
    meta_test_head->train();
  }
  void before_forward_query() {
    task_head();
    meta_test_head->eval();
  }

  void members(Members& m) override {
    BaseFewShotClassifier<Baseline, Backbone>::members(m);
    m("head", head), m("meta_test_head", meta_test_head);
  }

  Linear head;
  std::optional<Linear> meta_test_head;  // from before_meta_test on

 private:
  const Linear& task_head() const {
    LOCKSTEP_CHECK(meta_test_head,
                   "[Baseline] expected before_meta_test before the samples of a task, got no call of it");
    return *meta_test_head;
  }

  BaselineOptions options_;
};

}  // namespace lockstep
