#include "lockstep/tensor/nn/deferred_gradients.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

namespace {

using Gradient = KeptGradients::Gradient;

ParameterBody* body_of(const Gradient& gradient) { return static_cast<LeafNode&>(*gradient.leaf).parameter; }

// Whether the parameter has still a slot, or its home, where the gradient was made: not when it is gone or was moved.
bool is_slot(const Gradient& gradient) {
  const ParameterBody* body = body_of(gradient);
  if (!body || !body->slabs) return false;
  const Device device = gradient.stream->device();
  return body->home.device() == device || body->slot(ordinal(device));
}

Tensor matrix_of(const Gradient& gradient) {
  return gradient.rows.defined() ? gradient.rows.to_dense() : gradient.matrix;
}

// Puts `more` behind what there is for the same slot.
void merge(std::vector<Gradient>& all, Gradient more) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Gradient& other) {
    return other.leaf.get() == more.leaf.get() && other.stream == more.stream && other.of_slot == more.of_slot;
  });
  if (found == all.end()) {
    all.push_back(std::move(more));
    return;
  }
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

// The training of the parameters, as by a backward.
class Claims {
 public:
  explicit Claims(const std::vector<Gradient>& gradients) {
    const std::uint64_t call = thread_context().training_call;
    const std::uint64_t mine = call ? call : next_training_call();
    bodies_.reserve(gradients.size());
    try {
      for (const Gradient& gradient : gradients) {
        if (!body_of(gradient)) continue;
        body_of(gradient)->claim(mine);
        bodies_.push_back(body_of(gradient));
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
    for (ParameterBody* body : bodies_) body->unclaim();
  }
  std::vector<ParameterBody*> bodies_;
};

}  // namespace

bool KeptGradients::wants(const Node& leaf) const {
  const ParameterBody* body = static_cast<const LeafNode&>(leaf).parameter;
  return body && leaf.stream->device() != device_;
}

void KeptGradients::keep(std::vector<Gradient> gradients) {
  const std::lock_guard lock(mutex_);
  for (Gradient& gradient : gradients) merge(gradients_, std::move(gradient));
}

void KeptGradients::add_all(std::span<KeptGradients* const> replicas) {
  std::vector<Gradient> all;
  for (KeptGradients* replica : replicas)
    for (Gradient& gradient : std::exchange(replica->gradients_, {})) {
      gradient.of_slot = gradient.of_slot && is_slot(gradient);
      merge(all, std::move(gradient));
    }
  if (all.empty()) return;
  const Claims claims(all);

  std::vector<ReplicaGradient> stored;
  for (const Gradient& gradient : all) {
    if (!gradient.of_slot) continue;
    const Device device = gradient.stream->device();
    Stream& here = current_stream(device);
    LOCKSTEP_EDGE(here.wait_for(*gradient.stream));
    if (gradient.matrix.defined()) LOCKSTEP_EDGE(gradient.matrix.storage()->record_use(here));
    if (!gradient.rows.defined()) {
      const NoGrad no_grad;
      store_replica_gradient(*body_of(gradient), device, gradient.matrix);
    }
    stored.push_back({body_of(gradient), device, gradient.rows});
  }
  if (!stored.empty()) reduce_replica_gradients(std::move(stored));

  for (Gradient& gradient : all) {
    if (gradient.of_slot) continue;
    {
      LOCKSTEP_EDGE_SCOPE(StreamScope, scope, *gradient.stream);
      const GradMode mode(gradient.differentiable);
      auto& leaf = static_cast<LeafNode&>(*gradient.leaf);
      if (gradient.rows.defined())
        leaf.accumulate_rows(leaf.brought_home(std::move(gradient.rows)));
      else
        leaf.accumulate(leaf.brought_home(std::exchange(gradient.matrix, {})));
    }
    LOCKSTEP_EDGE(current_stream(gradient.stream->device()).wait_for(*gradient.stream));
  }
}

}  // namespace lockstep
