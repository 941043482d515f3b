// MAML: parameters from which a few steps of gradient descent on the samples of a task lead to a good classifier.
// Finn, Abbeel & Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/fewshot/classifier.h"
#include "lockstep/parallel/openmmlab/fewshot/heads.h"

namespace lockstep {

struct MAMLOptions {
  std::int64_t in_channels = 0;  // features of the backbone
  std::int64_t num_classes = 5;  // of a task
  std::int64_t num_inner_steps = 2;
  double inner_lr = 0.01;
  bool first_order = false;  // the steps count as independent of the parameters: cheaper, and often as good
};

// Training: forward(episode) steps from the parameters to fast weights on the samples, and is the cross entropy of the
// queries with these. Its gradient goes through the steps (second order), or is that with respect to the fast weights
// (first_order). Meta-testing: the same steps in every task; or, where the config has support.train, those of its
// optimizer on the parameters of the task's copy. Parameters that require no gradient stay as they are.
template <IsModule Backbone>
class MAML : public BaseFewShotClassifier<MAML<Backbone>, Backbone> {
 public:
  // Throws InvalidArgument for sizes and steps below 1.
  MAML(Backbone module, const MAMLOptions& options)
      : BaseFewShotClassifier<MAML, Backbone>(std::move(module)),
        head(detail::make_head("MAML", options.in_channels, options.num_classes)),
        options_(options) {
    LOCKSTEP_CHECK(options.num_inner_steps > 0, "[MAML] expected num_inner_steps of at least 1, got ",
                   options.num_inner_steps);
  }
  using BaseFewShotClassifier<MAML, Backbone>::forward;

  Tensor forward(const Episode& episode) const {
    const std::vector<Tensor> fast = adapt(episode.support_data, GradMode::enabled() && !options_.first_order);
    const SubstituteScope scope(adapted(), fast);
    return loss(episode.query_data);
  }

  Tensor forward_train(const FewShotData&) const {
    detail::fail<InvalidArgument>("[MAML] expected an episode to train on, got a batch in mode 'train'");
  }
  // The loss, where support.train asks for it; else the samples are kept.
  Tensor forward_support(const FewShotData& data) const {
    if (!adapts_) return loss(data);
    images_.push_back(images(data));
    labels_.push_back(data.gt_label);
    return {};
  }
  Tensor forward_query(const FewShotData& data) const {
    if (fast_.empty()) return scores(data);
    const SubstituteScope scope(adapted(), fast_);
    return scores(data);
  }

  void before_meta_test(const auto& config) {
    adapts_ = !config.support.train;
    this->zero_grad();
  }
  void before_forward_support() {
    images_.clear();
    labels_.clear();
    fast_.clear();
  }
  // Throws InvalidArgument where there were no samples.
  void before_forward_query() {
    if (!adapts_) return;
    LOCKSTEP_CHECK(!images_.empty(), "[MAML] expected samples in mode 'support' before queries, got none");
    fast_ = adapt({.img = cat(images_), .gt_label = cat(labels_)}, false);
    for (Tensor& weight : fast_) weight = weight.detach();
  }

  void members(Members& m) override {
    BaseFewShotClassifier<MAML, Backbone>::members(m);
    m("head", head);
  }
  const MAMLOptions& options() const { return options_; }

  Linear head;

 private:
  static const Tensor& images(const FewShotData& data) {
    LOCKSTEP_CHECK(data.img.defined() && !data.feats.defined(),
                   "[MAML] expected images, got features: its backbone differs from task to task");
    return data.img;
  }
  Tensor scores(const FewShotData& data) const { return head(this->backbone(images(data))); }
  Tensor loss(const FewShotData& data) const { return cross_entropy(scores(data), data.gt_label); }

  std::vector<Parameter> adapted() const {
    std::vector<Parameter> parameters = this->parameters();
    std::erase_if(parameters, [](const Parameter& parameter) { return !parameter.requires_grad(); });
    return parameters;
  }
  // The fast weights, one for each of adapted().
  std::vector<Tensor> adapt(const FewShotData& samples, bool create_graph) const {
    const GradMode grad_mode(true);
    const std::vector<Parameter> parameters = adapted();
    std::vector<Tensor> weights;
    for (const Parameter& parameter : parameters) weights.push_back(parameter.on(images(samples).device()));
    for (std::int64_t step = 0; step < options_.num_inner_steps; ++step) {
      const SubstituteScope scope(parameters, weights);
      const std::vector<Tensor> gradients =
          grad(loss(samples), weights, {.create_graph = create_graph, .allow_unused = true});
      for (std::size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i].defined()) weights[i] = weights[i] - options_.inner_lr * gradients[i];
    }
    return weights;
  }

  MAMLOptions options_;
  bool adapts_ = true;
  mutable std::vector<Tensor> images_, labels_;  // of the task's samples so far
  std::vector<Tensor> fast_;                     // for its queries; empty: the parameters themselves
};

}  // namespace lockstep
