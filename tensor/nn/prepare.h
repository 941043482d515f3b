// Modules prepared for inference: BatchNorms and relus folded into the layers before them, weights packed.
//
//   const auto fast = prepare(net);
//   Tensor scores = fast(images);  // what net gives in evaluation mode, up to rounding
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/tensor/nn/folding.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

namespace detail {
// Calls the module in this thread, where gradients must be off, and again until what it folds is right.
template <class M, class... Args>
auto call_folded(Folding& folding, const M& module, const Args&... args) {
  const std::uint64_t random_counter = thread_context().random_counter;
  bool learned = false;
  for (;;) {
    FoldingCall call(folding);
    try {
      if constexpr (std::is_void_v<decltype(module(args...))>) {
        module(args...);
        if (!call.again_after_return(learned)) return;
      } else {
        auto result = module(args...);
        for_each_tensor(result, [&](const Tensor& tensor) { call.check_result(tensor); });
        if (!call.again_after_return(learned)) return result;
      }
    } catch (...) {
      if (!call.again_after_throw()) throw;
    }
    thread_context().random_counter = random_counter;
  }
}
}  // namespace detail

// Is called as the module is, and gives what that gives in evaluation mode (whatever its own mode is) without
// gradients: in f32 equal to some 1e-5 of the largest element, in f64 to 1e-12. The bits are the same for any number of
// threads, and again and again.
//
// Where the result of a Conv2d or a Linear (without an activation) goes to a BatchNorm and nowhere else, the two are
// computed as one layer, with weights that have the norm's factors in them (Jacob et al., 2018, section 3.2); so is the
// relu to which alone the result of the two, or of the layer, goes. It does not matter how the module is written: in
// its first call, which runs `forward` twice (as does a later one that comes to layers it has not seen), is seen where
// results go, and whenever one goes elsewhere after all, the call begins anew with that layer as ever. So `forward`
// must not change its arguments, and not take the bare pointer Tensor::data() of such a result before the norm or the
// relu has it. Results must be tensors or hold them where for_each_tensor finds them (tree.h): of others, and of what
// `forward` puts elsewhere, the elements may be absent, and reading them is an Error. Not folded: layers and norms with
// hooks, norms without running statistics, all in the scope of a substitute() or an Autocast, and what runs in other
// threads: a DataParallel has an option of its own.
//
// Kernels keep weights in the form that they compute in, in f32 on host devices: those of convolutions in oneDNN's
// blocks, of the last four shapes of images for each convolution, those of linear layers in strips of columns. That is
// as much memory again as the weights, outside of what the device's allocator counts.
//
// Shares the parameters of the module. Folded and packed weights belong to the versions of their parameters and
// buffers: after an optimizer's step, a load, set_data(), to(), a refresh of a replica, or a write the next call folds
// anew. Writes through a DLPack alias of a parameter count when the alias is released or the tensor has been told with
// mark_changed(); of a buffer, with mark_changed() alone.
//
// Computes on the device and the current stream of its input, where the parameters must have slots; folded weights are
// kept for each stream that has asked for them, in the memory of its device, until the last copy of this goes. Threads
// may call it at once, as they may the module.
template <IsModule M>
class Prepared {
 public:
  explicit Prepared(const M& module) : state_(std::make_shared<State>(module)) {}

  // Blocks as the module does; throws what it throws.
  template <class... Args>
  auto operator()(const Args&... args) const {
    const InferenceMode no_gradients;
    const TrainingScope evaluation(false);
    return detail::call_folded(state_->folding, state_->module, args...);
  }

  const M& module() const { return state_->module; }

 private:
  struct State {
    explicit State(const M& of) : module(of) {}
    M module;
    mutable detail::Folding folding;
  };
  std::shared_ptr<const State> state_;
};

// See Prepared. Modules that are added to `module` later are not in it.
template <IsModule M>
Prepared<M> prepare(const M& module) {
  return Prepared<M>(module);
}

}  // namespace lockstep
