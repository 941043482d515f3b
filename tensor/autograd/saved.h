// What a node keeps for backward.
#pragma once

#include <utility>

#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// A tensor that a node keeps for backward, or computes again then (checkpoint.h). Reading it after an in-place write,
// or after it was freed, is an Error. It belongs to its node, which frees it after backward: a member
// `Saved x{*this};`, or, where their number is known at run time, an element of a std::deque<Saved> in the node
// (`saved.emplace_back(*this)`), which only grows.
class LOCKSTEP_API Saved {
 public:
  explicit Saved(Node& node) noexcept : previous_(std::exchange(node.saved_, this)) {}
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  void save(const Tensor& input);  // an input of the operation, or any tensor outside its result
  // An output of the operation itself: kept without its edge (which would be a cycle).
  void save_output(const Tensor& output, std::uint32_t index = 0);
  // `self` is the node that saved it.
  Tensor get(Node& self) const;

 private:
  friend class Node;
  void release();
  void leave_out(const Tensor& tensor);
  Tensor computed_again(Node& self) const;

  enum class State : std::uint8_t { empty, input, output, freed };
  Tensor tensor_;              // with a frame: without elements
  std::uint64_t version_ = 0;  // with a frame: the tensor's number in it
  Ref<detail::CheckpointFrame> frame_;
  Saved* const previous_;  // of the node's
  std::uint32_t index_ = 0;
  State state_ = State::empty;
};

}  // namespace lockstep
