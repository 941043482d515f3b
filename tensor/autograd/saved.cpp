// What nodes keep for backward, and what they do not keep while a function is checkpointed.
#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/autograd/substitution.h"

namespace lockstep {
namespace detail {

CheckpointFrame*& CheckpointFrame::current() {
  static thread_local CheckpointFrame* frame = nullptr;
  return frame;
}

CheckpointFrame::CheckpointFrame(std::function<void()> again, std::vector<Tensor> inputs)
    : again_(std::move(again)), inputs_(std::move(inputs)), context_(thread_context()) {
  for (const Tensor& input : inputs_) versions_.push_back(input.version());
  if (!inputs_.empty()) LOCKSTEP_EDGE(stream_ = &current_stream(inputs_[0].device()));
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
  context.kept_gradients = thread_context().kept_gradients;
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

namespace {

// Shape, dtype and place in the graph of a tensor, without its elements.
Tensor hollow(const Tensor& tensor, bool with_edge) {
  Ref<TensorImpl> impl(new TensorImpl);
  impl->shape = tensor.shape();
  impl->dtype = tensor.dtype();
  if (with_edge) impl->edge = tensor.edge();
  return Tensor(std::move(impl));
}

// Leaves are there anyway.
bool left_out(const Tensor& tensor) {
  if (!tensor.defined() || !CheckpointFrame::current()) [[likely]]
    return false;
  const Node* node = tensor.edge().node.get();
  return !node || node->kind() == Node::Kind::operation;
}

}  // namespace
}  // namespace detail

namespace {

// A parameter may get other memory before backward: its module is moved, converted or wrapped.
bool is_home(const Tensor& tensor) {
  const Node* node = tensor.defined() ? tensor.edge().node.get() : nullptr;
  return node && node->is_leaf() && static_cast<const LeafNode*>(node)->parameter;
}

// The tensor as it is now, with its place in the graph.
Tensor as_it_is(const Tensor& tensor) {
  Tensor kept = tensor.detach();
  kept.set_edge(tensor.edge());
  return kept;
}

}  // namespace

void Saved::save(const Tensor& input) {
  state_ = State::input;
  if (detail::left_out(input)) [[unlikely]]
    return leave_out(input);
  tensor_ = is_home(input) ? as_it_is(input) : input;
  version_ = input.defined() ? input.version() : 0;
}

void Saved::save_output(const Tensor& output, std::uint32_t index) {
  state_ = State::output;
  index_ = index;
  if (detail::left_out(output)) [[unlikely]]
    return leave_out(output);
  tensor_ = output.detach();
  version_ = output.version();
}

void Saved::leave_out(const Tensor& tensor) {
  tensor_ = detail::hollow(tensor, state_ == State::input);
  frame_ = Ref<detail::CheckpointFrame>(detail::CheckpointFrame::current());
  version_ = frame_->take(tensor);
}

void Node::release_saved() {
  for (Saved* saved = saved_; saved; saved = saved->previous_) saved->release();
}

void Saved::release() {
  if (frame_) {
    frame_->forget(version_);
    frame_.reset();
  }
  tensor_ = Tensor();
  state_ = State::freed;
}

Tensor Saved::computed_again(Node& self) const {
  const Tensor value = frame_->get(version_);
  if (value.shape() != tensor_.shape() || value.dtype() != tensor_.dtype())
    throw Error(cat("[", self.name(),
                    "] expected the checkpointed function to do the same again in backward: it saved ", tensor_.dtype(),
                    tensor_.shape(), " at first and ", value, " then"));
  Tensor result = value.detach();
  if (state_ == State::input)
    result.set_edge(tensor_.edge());
  else
    result.set_edge({Ref<Node>(&self), index_});
  return result;
}

Tensor Saved::get(Node& self) const {
  if (state_ == State::freed) [[unlikely]]
    throw Error(cat("[", self.name(),
                    "] backward a second time through a graph whose saved tensors were freed; pass retain_graph = true "
                    "to the first backward"));
  if (!tensor_.defined()) return {};
  if (frame_) [[unlikely]]
    return computed_again(self);
  if (tensor_.version() != version_) [[unlikely]]
    throw Error(cat("[", self.name(), "] a tensor saved for backward, ", tensor_.describe(),
                    ", was changed in place: expected version ", version_, ", got ", tensor_.version()));
  if (state_ == State::input) return tensor_;
  Tensor output = tensor_.detach();
  output.set_edge({Ref<Node>(&self), index_});
  return output;
}

}  // namespace lockstep
