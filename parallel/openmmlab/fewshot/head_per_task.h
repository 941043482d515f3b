// What Baseline, BaselinePlus and NegMargin have in common: a classifier of the base classes to train the backbone
// with, and one for each task.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/parallel/openmmlab/fewshot/classifier.h"
#include "lockstep/parallel/openmmlab/fewshot/cosine_head.h"
#include "lockstep/parallel/openmmlab/fewshot/heads.h"

namespace lockstep::detail {

inline Tensor head_loss(const Linear& head, const Tensor& feats, const Tensor& gt_label) {
  return cross_entropy(head(feats), gt_label);
}
inline Tensor head_loss(const CosineHead& head, const Tensor& feats, const Tensor& gt_label) {
  return head.loss(feats, gt_label);
}
inline void reset_head(const CosineHead& head) { head.reset(); }

// Training: the loss of `head` over all base classes. Meta-testing: the backbone is frozen and in evaluation mode, and
// support.train trains `meta_test_head`, which begins anew in every task.
template <class Derived, IsModule Backbone, IsModule Head>
class HeadPerTask : public BaseFewShotClassifier<Derived, Backbone> {
 public:
  // `name` is for messages. Throws InvalidArgument for `meta_test_classes` below 1.
  HeadPerTask(const char* name, Backbone module, Head of_base_classes, std::int64_t meta_test_classes,
              std::function<Head()> make_meta_test_head)
      : BaseFewShotClassifier<Derived, Backbone>(std::move(module)),
        head(std::move(of_base_classes)),
        name_(name),
        make_meta_test_head_(std::move(make_meta_test_head)) {
    LOCKSTEP_CHECK(meta_test_classes > 0, "[", name, "] expected meta_test_classes of at least 1, got ",
                   meta_test_classes);
  }
  using BaseFewShotClassifier<Derived, Backbone>::forward;

  Tensor forward_train(const FewShotData& data) const {
    return head_loss(head, this->extract_feat(data), data.gt_label);
  }
  Tensor forward_support(const FewShotData& data) const {
    return head_loss(task_head(), this->extract_feat(data), data.gt_label);
  }
  Tensor forward_query(const FewShotData& data) const { return task_head()(this->extract_feat(data)); }

  void before_meta_test(const auto&) {
    this->freeze_backbone();
    head.set_requires_grad(false);
    const DefaultDType dtype(head.weight.dtype());
    meta_test_head = make_meta_test_head_();
    meta_test_head->to(head.weight.device());
    this->named_parameters();  // so that those of the new head have names
  }
  void before_forward_support() {
    reset_head(task_head());
    meta_test_head->train();
  }
  void before_forward_query() {
    task_head();
    meta_test_head->eval();
  }

  void members(Members& m) override {
    BaseFewShotClassifier<Derived, Backbone>::members(m);
    m("head", head), m("meta_test_head", meta_test_head);
  }

  Head head;
  std::optional<Head> meta_test_head;  // from before_meta_test on

 private:
  const Head& task_head() const {
    LOCKSTEP_CHECK(meta_test_head, "[", name_,
                   "] expected before_meta_test before the samples of a task, got no call of it");
    return *meta_test_head;
  }

  const char* name_;
  std::function<Head()> make_meta_test_head_;
};

}  // namespace lockstep::detail
