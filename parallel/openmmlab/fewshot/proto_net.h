// ProtoNet: a class is the mean of the embeddings of its samples, and a query belongs to the nearest.
// Snell, Swersky & Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/fewshot/classifier.h"
#include "lockstep/parallel/openmmlab/fewshot/heads.h"

namespace lockstep {

// Training: the cross entropy of forward(episode). Meta-testing: the backbone is frozen and in evaluation mode, nothing
// is trained.
template <IsModule Backbone>
class ProtoNet : public BaseFewShotClassifier<ProtoNet<Backbone>, Backbone> {
 public:
  explicit ProtoNet(Backbone module) : BaseFewShotClassifier<ProtoNet, Backbone>(std::move(module)) {}
  using BaseFewShotClassifier<ProtoNet, Backbone>::forward;

  // The loss of the queries of an episode. Blocks for the labels.
  Tensor forward(const Episode& episode) const {
    const Tensor prototypes = class_prototypes(this->extract_feat(episode.support_data), episode.support_data.gt_label);
    const Tensor scores = negative_squared_distances(this->extract_feat(episode.query_data), prototypes);
    return cross_entropy(scores, episode.query_data.gt_label);
  }

  Tensor forward_train(const FewShotData&) const {
    detail::fail<InvalidArgument>("[ProtoNet] expected an episode to train on, got a batch in mode 'train'");
  }
  Tensor forward_support(const FewShotData& data) const {
    feats_.push_back(this->extract_feat(data));
    labels_.push_back(data.gt_label);
    return {};
  }
  Tensor forward_query(const FewShotData& data) const {
    LOCKSTEP_CHECK(prototypes_.defined(), "[ProtoNet] expected before_forward_query before queries, got no call of it");
    return negative_squared_distances(this->extract_feat(data), prototypes_);
  }

  void before_meta_test(const auto&) { this->freeze_backbone(); }
  void before_forward_support() {
    feats_.clear();
    labels_.clear();
    prototypes_ = Tensor();
  }
  // Throws InvalidArgument for samples of which none are of a class below the highest label, or no samples at all.
  void before_forward_query() {
    LOCKSTEP_CHECK(!feats_.empty(), "[ProtoNet] expected samples in mode 'support' before queries, got none");
    prototypes_ = class_prototypes(cat(feats_), cat(labels_));
  }

 private:
  mutable std::vector<Tensor> feats_, labels_;  // of the task's samples so far
  Tensor prototypes_;
};

}  // namespace lockstep
