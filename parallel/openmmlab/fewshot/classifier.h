// What the few-shot classifiers have in common: a backbone, and a call by phase. After mmfewshot's
// BaseFewShotClassifier.
#pragma once

#include <utility>

#include "lockstep/parallel/openmmlab/fewshot/data.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// `Derived` has forward_train, forward_support and forward_query of (FewShotData). The backbone maps images [n, ..]
// to features [n, d].
//
// forward is const, yet mode support may remember what it is given, for the queries that follow: a model that is being
// meta-tested belongs to one thread, as each task's copy does.
template <class Derived, IsModule Backbone>
class BaseFewShotClassifier : public Module<Derived> {
 public:
  explicit BaseFewShotClassifier(Backbone module) : backbone(std::move(module)) {}

  // Throws InvalidArgument for a number that is no mode.
  Tensor forward(const FewShotData& data, FewShotMode mode) const {
    const auto& self = static_cast<const Derived&>(*this);
    switch (mode) {
      case FewShotMode::train:
        return self.forward_train(data);
      case FewShotMode::support:
        return self.forward_support(data);
      case FewShotMode::query:
        return self.forward_query(data);
      case FewShotMode::extract_feat:
        return extract_feat(data);
    }
    detail::fail_few_shot_mode(mode);
  }
  // Features that are there already are taken as they are.
  Tensor extract_feat(const FewShotData& data) const {
    return &data.content() == &data.feats ? data.feats : backbone(data.img);
  }
  Device device() const {
    const std::vector<Parameter> parameters = this->parameters();
    return parameters.empty() ? Device::cpu() : parameters.front().device();
  }

  void members(Members& m) override { m("backbone", backbone); }

  Backbone backbone;

 protected:
  // The backbone stays as it is while a model is meta-tested.
  void freeze_backbone() {
    backbone.set_requires_grad(false);
    backbone.eval();
  }
};

}  // namespace lockstep
