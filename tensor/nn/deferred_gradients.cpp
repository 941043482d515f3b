#include "lockstep/tensor/nn/deferred_gradients.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

namespace {

ParameterBody* body_of(const OwnedGradient& gradient) { return lockstep::body_of(*gradient.leaf); }

// Whether the parameter has still a slot, or its home, where the gradient was made: not when it is gone or was moved.
bool is_slot(const OwnedGradient& gradient) {
  const ParameterBody* body = body_of(gradient);
  if (!body || !body->slabs) return false;
  const Device device = gradient.stream->device;
  return body->home.device() == device || body->slot(ordinal(device));
}

Tensor matrix_of(const OwnedGradient& gradient) {
  return gradient.rows.defined() ? gradient.rows.to_dense() : gradient.matrix;
}

// The training of the parameters, as by a backward.
class Claims {
 public:
  explicit Claims(std::vector<OwnedGradient>& gradients) {
    const std::uint64_t call = thread_context().training_call;
    const std::uint64_t mine = call ? call : next_training_call();
    bodies_.reserve(gradients.size());
    try {
      for (OwnedGradient& gradient : gradients) {
        ParameterBody* const body = body_of(gradient);
        if (!body) continue;
        gradient.nested = !body->begin_backward(mine, this);
        bodies_.push_back(body);
      }
    } catch (...) {
      release();
      throw;
    }
  }
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;
  ~Claims() { release(); }

 private:
  void release() {
    for (ParameterBody* body : bodies_) body->end_backward(this);
  }
  std::vector<ParameterBody*> bodies_;
};

}  // namespace

void DeferredGradients::List::merge(OwnedGradient more) {
  Index& index = index_[more.replicated ? 1 : 0];
  const auto at = index.find({more.leaf.get(), more.stream});
  if (at == index.end()) {
    all_.push_back(std::move(more));
    index.emplace(std::pair(all_.back().leaf.get(), all_.back().stream), all_.size() - 1);
    return;
  }
  OwnedGradient* const found = &all_[at->second];
  LOCKSTEP_EDGE_SCOPE(StreamScope, scope, *found->stream);
  found->differentiable |= more.differentiable;
  const GradMode mode(found->differentiable);
  if (found->rows.defined() && more.rows.defined()) {
    found->rows = detail::join_rows(std::array{found->rows, more.rows});
  } else {
    found->matrix = matrix_of(*found) + matrix_of(more);
    found->rows = {};
  }
}

bool DeferredGradients::wants(const LeafNode& leaf) const { return leaf.owner() && leaf.stream->device != device_; }

// Nobody else may write the elements until they are added.
void DeferredGradients::arrive(OwnedGradient& gradient) {
  Tensor& matrix = gradient.matrix;
  if (matrix.defined() && !gradient.differentiable &&
      !(matrix.contiguous_layout(matrix.memory_format()) && matrix.sole_owner()))
    matrix = matrix.clone();
}

void DeferredGradients::finish(std::vector<OwnedGradient> gradients) {
  const std::lock_guard lock(mutex_);
  for (OwnedGradient& gradient : gradients) gradients_.merge(std::move(gradient));
}

void DeferredGradients::add_all(std::span<DeferredGradients* const> replicas) {
  List merged;
  for (DeferredGradients* replica : replicas) {
    List deferred = std::exchange(replica->gradients_, {});
    for (OwnedGradient& gradient : deferred.all()) {
      gradient.replicated = gradient.replicated && is_slot(gradient);
      merged.merge(std::move(gradient));
    }
  }
  std::vector<OwnedGradient>& all = merged.all();
  if (all.empty()) return;
  const Claims claims(all);

  std::vector<OwnedGradient> stored;
  for (OwnedGradient& gradient : all) {
    if (!gradient.replicated) continue;
    const Device device = gradient.stream->device;
    const Stream here = current_stream(device);
    LOCKSTEP_EDGE(here.wait_for(*gradient.stream));
    if (gradient.matrix.defined()) LOCKSTEP_EDGE(gradient.matrix.storage()->record_use(here));
    stored.push_back(gradient);
    gradient.matrix = {};  // it has one owner
  }
  if (!stored.empty()) reduce_replica_gradients(std::move(stored));

  for (OwnedGradient& gradient : all) {
    if (gradient.replicated) continue;
    {
      LOCKSTEP_EDGE_SCOPE(StreamScope, scope, *gradient.stream);
      const GradMode mode(gradient.differentiable);
      LeafNode& leaf = *gradient.leaf;
      if (gradient.rows.defined())
        leaf.accumulate_rows(leaf.brought_home(std::move(gradient.rows)));
      else
        leaf.accumulate(leaf.brought_home(std::exchange(gradient.matrix, {})));
    }
    LOCKSTEP_EDGE(current_stream(gradient.stream->device).wait_for(*gradient.stream));
  }
}

}  // namespace lockstep
