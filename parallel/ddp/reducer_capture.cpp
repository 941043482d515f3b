// Iterations in graphs: what cannot be in one, and what a graph tells the reducer.
#include <algorithm>
#include <memory>

#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/runtime/stream/capture.h"

namespace lockstep::detail {

// `may_rebuild`: before the forward, where buckets are laid out anew once.
void Reducer::check_capture(bool may_rebuild) const {
  if (!current_capture) [[likely]]
    return;
  const auto refuse = [](const std::string& what) { current_capture->refuse("DistributedDataParallel", what); };
  if (hooked()) refuse(cat("the communication hook '", hook_.name, "', which is the program's code on the host"));
  if (options_.find_unused_parameters && !options_.static_graph)
    refuse("find_unused_parameters, for which the host waits for the other ranks; static_graph learns it once");
  if (options_.backwards_per_forward > 1)
    refuse(cat(options_.backwards_per_forward, " backwards per forward, which are counted on the host"));
  const auto sparse = [](const Variable& variable) { return variable.entry.sparse; };
  const auto first = std::find_if(variables_.begin(), variables_.end(), sparse);
  if (first != variables_.end())
    refuse(cat("the sparse gradient of '", first->name, "', whose rows the ranks count on the host"));
  if (!settled_ || learns_graph() || (may_rebuild && !rebuilt_))
    refuse(cat("iteration ", reductions_ + 1,
               ", while the buckets are not final: the first two in training are called as they are"));
}

class Reducer::InGraph final : public Replayed {
 public:
  explicit InGraph(std::weak_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {}
  void captured() noexcept override {
    if (const auto reducer = reducer_.lock()) reducer->give_up_iteration();
  }
  void replayed(const Stream&) noexcept override {
    const auto reducer = reducer_.lock();
    if (!reducer) return;
    const std::lock_guard lock(reducer->mutex_);
    ++reducer->reductions_;
  }

 private:
  const std::weak_ptr<Reducer> reducer_;
};

void Reducer::join_capture() {
  (void)current_capture->add(std::make_unique<InGraph>(weak_from_this()), 0);
  timeline_.stop();
}

// A capture that has come to nothing in the middle of an iteration.
void Reducer::give_up_iteration() {
  const std::lock_guard lock(mutex_);
  if (!started_) return;
  started_ = false;
  open_.clear();
  for (Variable& variable : variables_) {
    variable.kept = Tensor();
    variable.used = false;
  }
}

}  // namespace lockstep::detail
