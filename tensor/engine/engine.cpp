#include "lockstep/tensor/engine/engine.h"

#include "lockstep/runtime/check_function.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/engine/graph_task.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

namespace {

std::vector<detail::GraphTask::Root> make_roots(const char* op, std::span<const Tensor> tensors,
                                                std::span<const Tensor> gradients) {
  LOCKSTEP_CHECK(!tensors.empty(), "[", op, "] expected at least one tensor, got none");
  LOCKSTEP_CHECK(gradients.empty() || gradients.size() == tensors.size(), "[", op, "] expected ", tensors.size(),
                 " gradients, one for each tensor, got ", gradients.size());
  std::vector<detail::GraphTask::Root> roots;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    LOCKSTEP_CHECK(tensor.requires_grad(), "[", op, "] expected a tensor that was computed from one that requires a ",
                   "gradient, got ", tensor.describe());
    Tensor gradient = gradients.empty() ? Tensor() : gradients[i];
    if (gradient.defined()) {
      LOCKSTEP_CHECK(gradient.shape() == tensor.shape() && gradient.dtype() == tensor.dtype() &&
                         gradient.device() == tensor.device(),
                     "[", op, "] expected a gradient like its tensor, ", tensor.describe(), ", got ",
                     gradient.describe());
    } else {
      LOCKSTEP_CHECK(tensor.count() == 1, "[", op, "] expected a gradient for a tensor of other than one element, ",
                     tensor.describe(), ", got none");
      gradient = ones_like(tensor);
    }
    roots.push_back({tensor.edge(), std::move(gradient)});
  }
  return roots;
}

}  // namespace

void backward(std::span<const Tensor> tensors, std::span<const Tensor> gradients, BackwardOptions options) {
  const trace::Scope span("backward");
  auto task =
      std::make_shared<detail::GraphTask>(make_roots("backward", tensors, gradients), std::vector<Edge>{},
                                          detail::GraphTask::Mode{true, options.create_graph, options.retain_graph});
  task->run();
}

std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> gradients, GradOptions options) {
  const trace::Scope span("backward");
  auto roots = make_roots("grad", outputs, gradients);
  std::vector<Edge> captures;
  for (const Tensor& input : inputs) {
    LOCKSTEP_CHECK(input.requires_grad(), "[grad] expected inputs that require a gradient, got ", input.describe());
    captures.push_back(input.edge());
  }
  auto task =
      std::make_shared<detail::GraphTask>(std::move(roots), std::move(captures),
                                          detail::GraphTask::Mode{false, options.create_graph, options.retain_graph});
  if (!options.allow_unused)
    for (std::size_t i = 0; i < inputs.size(); ++i)
      LOCKSTEP_CHECK(task->capture_reached[i], "[grad] expected outputs that depend on every input, but input ", i,
                     ", ", inputs[i].describe(),
                     ", does not take part; pass allow_unused = true for an undefined gradient");
  return task->run();
}

namespace detail {
std::uint64_t GraphTask::next_number() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void GraphTask::visit(const std::function<bool(const Node&)>& visit) const {
  for (const State& state : states_)
    if (!visit(*state.node)) return;
}
}  // namespace detail

namespace {
detail::GraphTask& task_in_progress(const char* op) {
  detail::GraphTask* task = detail::GraphTask::current();
  if (!task) throw Error(cat("[", op, "] expected a backward in progress in this thread, found none"));
  return *task;
}
}  // namespace

void queue_backward_callback(std::function<void()> callback) {
  detail::GraphTask& task = task_in_progress("queue_backward_callback");
  detail::check_function("queue_backward_callback", callback);
  std::lock_guard lock(task.callbacks_mutex);
  task.callbacks.push_back(std::move(callback));
}

std::uint64_t backward_number() { return task_in_progress("backward_number").number; }

void visit_backward(const std::function<bool(const Node&)>& visit) { task_in_progress("visit_backward").visit(visit); }

}  // namespace lockstep
