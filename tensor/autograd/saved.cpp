#include "lockstep/tensor/autograd/saved.h"

namespace lockstep {

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
  if (!tensor.defined() || !detail::CheckpointFrame::current()) [[likely]]
    return false;
  const Node* node = tensor.edge().node.get();
  return !node || node->kind() == Node::Kind::operation;
}

// A parameter may get other memory before backward: its module is moved, converted or wrapped.
bool is_owned_leaf(const Tensor& tensor) {
  const Node* node = tensor.defined() ? tensor.edge().node.get() : nullptr;
  return node && node->is_owned();
}

// The tensor as it is now, with its place in the graph.
Tensor as_it_is(const Tensor& tensor) {
  Tensor alias = tensor.detach();
  alias.set_edge(tensor.edge());
  return alias;
}

}  // namespace

void Saved::save(const Tensor& input) {
  state_ = State::input;
  if (left_out(input)) [[unlikely]]
    return leave_out(input);
  tensor_ = is_owned_leaf(input) ? as_it_is(input) : input;
  version_ = input.defined() ? input.version() : 0;
}

void Saved::save_output(const Tensor& output, std::uint32_t index) {
  state_ = State::output;
  index_ = index;
  if (left_out(output)) [[unlikely]]
    return leave_out(output);
  tensor_ = output.detach();
  version_ = output.version();
}

void Saved::leave_out(const Tensor& tensor) {
  tensor_ = hollow(tensor, state_ == State::input);
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
