// Checkpointing: what the operations of a function would save for backward is not kept, but computed again when
// backward first asks for it (Chen et al., 2016, "Training deep nets with sublinear memory cost").
//
//   for (const Block& block : blocks) x = checkpoint(block, x);
//
// The graph is the ordinary one, so backward(), grad(), create_graph, hooks, parameters and replicas are as without. In
// backward a copy of the function runs with the random numbers, modes, substitutes and autocast it had, on the stream
// that was current on the device of the first tensor among its inputs, and must do the same: let it capture by value
// what will be gone, and use no stream of its own. Side effects (running statistics) happen twice.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/runtime/check_function.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {
namespace detail {

// One checkpointed call: what the nodes of its graph hold in place of what they save.
class LOCKSTEP_API CheckpointFrame final : public RefCounted {
 public:
  CheckpointFrame(std::function<void()> again, std::vector<Tensor> inputs);
  static void destroy(CheckpointFrame* frame) noexcept { delete frame; }

  // The call in progress in this thread, or null.
  static CheckpointFrame*& current();
  // While it lives, operations of this thread leave what they save to `frame`.
  class LOCKSTEP_API Scope {
   public:
    explicit Scope(CheckpointFrame* frame) : before_(std::exchange(current(), frame)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { current() = before_; }

   private:
    CheckpointFrame* before_;
  };

  // A tensor that an operation saves: counts it, and in the second run keeps it. Returns its number.
  std::size_t take(const Tensor& tensor);
  // What had this number; runs the function again when that is not known.
  Tensor get(std::size_t number);
  void forget(std::size_t number);

 private:
  void run_again();

  std::function<void()> again_;
  std::vector<Tensor> inputs_;
  std::vector<std::uint64_t> versions_;
  ThreadContext context_;
  std::shared_ptr<const Substitution> substitution_;
  detail::StreamBody* stream_ = nullptr;
  std::mutex mutex_;  // what follows: backward may ask from several threads
  std::size_t taken_ = 0;
  bool again_now_ = false;
  std::vector<Tensor> values_;
};

}  // namespace detail

// function(inputs...), without what it saves for backward until backward needs it. Inputs and result may be of any
// type; the function is called with copies of the inputs again. Throws Error in backward when a tensor among the inputs
// was changed in place since, the function did not do the same again, or it calls a backward. Grad mode off: just the
// call.
template <class F, class... Inputs>
auto checkpoint(const F& function, const Inputs&... inputs) {
  detail::check_function("checkpoint", function);
  if (!GradMode::enabled()) return function(inputs...);
  std::vector<Tensor> tensors;
  (for_each_tensor(inputs, [&](const Tensor& tensor) { tensors.push_back(tensor); }), ...);
  const Ref<detail::CheckpointFrame> frame(
      new detail::CheckpointFrame([function, inputs...] { (void)function(inputs...); }, std::move(tensors)));
  const detail::CheckpointFrame::Scope scope(frame.get());
  return function(inputs...);
}

}  // namespace lockstep
