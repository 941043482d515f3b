// Gradients that are rows: from an operation that takes rows to a leaf or mirror.
#include <algorithm>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/engine/graph_task.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {

// Not under create_graph, which differentiates matrices, and not where a hook is to see one.
bool GraphTask::takes_rows(std::int32_t target) const {
  if (target < 0 || !mode_.accumulate || mode_.create_graph) return false;
  const Node* leaf = states_[static_cast<std::size_t>(target)].node;
  if (leaf->kind() == Node::Kind::mirror) leaf = leaf->edges()[0].node.get();
  return leaf->is_leaf() && (!leaf->hooks || leaf->hooks->empty());
}

void GraphTask::send_rows(const State& from, const Tensor& gradient) {
  pass_rows(from, static_cast<RowsNode*>(from.node)->rows(gradient), from.node->sequence, 0);
}

void GraphTask::pass_rows(const State& from, SparseGradient rows, std::uint64_t sequence, int origin) {
  const auto target = static_cast<std::uint32_t>(targets_[from.first_edge]);
  if (states_[target].node->is_leaf())
    rows = static_cast<const LeafNode*>(states_[target].node)->brought_home(std::move(rows));
  for (const Tensor& part : {rows.indices, rows.values})
    LOCKSTEP_EDGE(hand_over_gradient(part, stream_of(*states_[target].node)));
  std::lock_guard lock(mutex_);
  states_[target].gets_rows = true;
  rows_.push_back({target, sequence, origin, std::move(rows)});
}

// Adds the rows to the gradient where there is one; else they go on by themselves.
void GraphTask::receive_rows(std::uint32_t index, Tensor& gradient) {
  std::vector<Rows> mine;
  {
    std::lock_guard lock(mutex_);
    const auto others =
        std::stable_partition(rows_.begin(), rows_.end(), [&](const Rows& r) { return r.target != index; });
    mine.assign(std::make_move_iterator(others), std::make_move_iterator(rows_.end()));
    rows_.erase(others, rows_.end());
  }
  // Latest operation first, as for other gradients; what came through mirrors last.
  std::stable_sort(mine.begin(), mine.end(), [](const Rows& a, const Rows& b) {
    return std::pair(~a.sequence, a.origin) < std::pair(~b.sequence, b.origin);
  });
  std::vector<SparseGradient> pieces;
  for (Rows& rows : mine) pieces.push_back(std::move(rows.gradient));
  SparseGradient joined = join_rows(pieces);
  const State& state = states_[index];
  if (gradient.defined()) {
    gradient = index_add(gradient, 0, joined.indices, joined.values);
  } else if (is_for_sink(state)) {
    give_to_sink(state, {}, std::move(joined));
  } else if (state.node->is_leaf()) {
    static_cast<LeafNode*>(state.node)->accumulate_rows(std::move(joined));
  } else {  // a mirror whose slot is gone
    pass_rows(state, std::move(joined), 0, state.replica);
  }
}

}  // namespace lockstep::detail
