#include "lockstep/tensor/autograd/checkpoint.h"

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/substitution.h"

namespace lockstep::detail {

CheckpointFrame*& CheckpointFrame::current() {
  static thread_local CheckpointFrame* frame = nullptr;
  return frame;
}

CheckpointFrame::CheckpointFrame(std::function<void()> again, std::vector<Tensor> inputs)
    : again_(std::move(again)), inputs_(std::move(inputs)), context_(thread_context()) {
  for (const Tensor& input : inputs_) versions_.push_back(input.version());
  if (!inputs_.empty()) LOCKSTEP_EDGE(stream_ = &current_stream(inputs_[0].device()).body());
  if (context_.substitution) {
    substitution_ = context_.substitution->flattened();
    context_.substitution = substitution_.get();
  }
}

std::size_t CheckpointFrame::take(const Tensor& tensor) {
  if (!again_now_) return taken_++;
  values_.push_back(tensor.detach());
  return values_.size() - 1;
}

Tensor CheckpointFrame::get(std::size_t number) {
  if (current() == this)
    throw Error("[checkpoint] expected a function that calls no backward, got one that does: it would run without end");
  const std::lock_guard lock(mutex_);
  if (number >= values_.size() || !values_[number].defined()) run_again();
  return values_[number];
}

void CheckpointFrame::forget(std::size_t number) {
  const std::lock_guard lock(mutex_);
  if (number < values_.size()) values_[number] = Tensor();
}

void CheckpointFrame::run_again() {
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].version() != versions_[i])
      throw Error(cat("[checkpoint] expected inputs that stay as they are until backward, but input ", i, ", ",
                      inputs_[i], ", was changed in place"));
  ThreadContext context = context_;
  context.training_call = thread_context().training_call;
  context.gradient_sink = thread_context().gradient_sink;
  context.sequence = thread_context().sequence;
  context.numbering = thread_context().numbering;
  const ContextScope in_context(context);
  const AutocastThread casts;
  const Scope scope(this);
  struct Again {
    bool& now;
    explicit Again(bool& flag) : now(flag) { now = true; }
    ~Again() { now = false; }
  } again(again_now_);
  values_.clear();
  values_.reserve(taken_);
  const auto run = [&] {
    if (!stream_) return again_();
    LOCKSTEP_EDGE_SCOPE(StreamScope, on_stream, *stream_);
    again_();
  };
  run();
  if (values_.size() == taken_) return;
  const std::size_t count = values_.size();
  values_.clear();
  throw Error(cat("[checkpoint] expected the function to do the same again in backward: it saved ", taken_,
                  " tensors at first and ", count, " then"));
}

}  // namespace lockstep::detail
