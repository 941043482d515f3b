// MetaTestParallel: a few-shot model on its one device, for meta-testing. After mmfewshot's class.
//
//   MetaTestParallel task(deep_copy(model));
//   task.before_meta_test(config);
//   task.before_forward_support();
//   task(support_data, FewShotMode::support);    // data from anywhere is moved to the model
//   task.before_forward_query();
//   const Tensor scores = task(query_data, FewShotMode::query);
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/parallel/openmmlab/data/data_container.h"
#include "lockstep/parallel/scatter.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

namespace detail {
// Nothing is divided, so that tensors without dimensions go along.
struct MoveWhole {
  Device device;
  void operator()(Tensor& tensor) { tensor = move_whole(tensor, device); }
  template <class C>
  void divided(C& container) {
    const ScatterPolicy policy;
    ScatterPlan({&device, 1}, 0, policy).add_divided(container.piece_count());
    container.take_piece(0, device);
  }
};
}  // namespace detail

// Holds the module by value. Each of the four calls below moves its arguments, whole, to the device of the module's
// first parameter (cpu without one), which is looked up at every call; calls the module's function of the same name;
// and returns what that returns. No arguments are fine; a DataContainer must hold one group; a type whose tensors would
// be passed over (see scatter) does not compile. Nothing is communicated, so ranks may meta-test different tasks, or
// different numbers of them.
//
// deep_copy of a wrapper gives one that is independent of it: parameters, buffers, modes, and whatever the module keeps
// by value. A Tensor that the module keeps without listing it in members() is a handle: it starts on the same elements,
// and is independent where the module assigns it, as the modules in fewshot/ do; a module that writes into its elements
// makes them a Buffer instead.
template <IsModule M>
class MetaTestParallel : public Module<MetaTestParallel<M>> {
 public:
  explicit MetaTestParallel(M module) : module_(std::move(module)) {}

  const M& module() const { return module_; }
  M& module() { return module_; }
  const ModuleBase* wrapped_module() const override { return &module_; }
  Device device() const {
    const std::vector<Parameter> parameters = module_.parameters();
    return parameters.empty() ? Device::cpu() : parameters.front().device();
  }

  template <class... Args>
  auto forward(const Args&... args) const {
    return call([this](auto&&... moved) { return module_(std::move(moved)...); }, args...);
  }
  template <class... Args>
  auto before_meta_test(const Args&... args) {
    return call([this](auto&&... moved) { return module_.before_meta_test(std::move(moved)...); }, args...);
  }
  template <class... Args>
  auto before_forward_support(const Args&... args) {
    return call([this](auto&&... moved) { return module_.before_forward_support(std::move(moved)...); }, args...);
  }
  template <class... Args>
  auto before_forward_query(const Args&... args) {
    return call([this](auto&&... moved) { return module_.before_forward_query(std::move(moved)...); }, args...);
  }

  void members(Members& m) override { m("module", module_); }

 private:
  template <class F, class... Args>
  auto call(F&& function, const Args&... args) const {
    (tree::check_tensors_found<std::decay_t<const Args&>>(), ...);  // they would stay where they are
    // Decayed, so that a literal is kept as a pointer.
    std::tuple<std::decay_t<const Args&>...> all(args...);
    detail::MoveWhole move{device()};
    for_each_tensor(all, move);
    return std::apply(function, std::move(all));
  }

  M module_;
};

}  // namespace lockstep
