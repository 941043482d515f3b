// What SubstituteScope puts into the thread's context.
#pragma once

#include <memory>
#include <unordered_map>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

class ParameterBody;

class Substitution {
 public:
  explicit Substitution(const Substitution* outer) : outer_(outer) {}
  void add(const ParameterBody* body, const Tensor& tensor) { tensors_[body] = tensor; }
  const Tensor* find(const ParameterBody* body) const {
    for (const Substitution* scope = this; scope; scope = scope->outer_)
      if (auto found = scope->tensors_.find(body); found != scope->tensors_.end()) return &found->second;
    return nullptr;
  }
  // A copy that depends on no scope: replicas may outlive those of their caller.
  std::unique_ptr<Substitution> flattened() const {
    auto flat = std::make_unique<Substitution>(nullptr);
    for (const Substitution* scope = this; scope; scope = scope->outer_)
      flat->tensors_.insert(scope->tensors_.begin(), scope->tensors_.end());  // the innermost wins
    return flat;
  }

 private:
  const Substitution* outer_;
  std::unordered_map<const ParameterBody*, Tensor> tensors_;
};

}  // namespace lockstep
