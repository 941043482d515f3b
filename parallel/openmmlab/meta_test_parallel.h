// MetaTestParallel: a few-shot model on its one device, for meta-testing. After mmfewshot's class.
//
//   MetaTestParallel task(deep_copy(model));
//   task.before_meta_test(config);
//   task.before_forward_support();
//   task(support_data, FewShotMode::support);    // data from anywhere is moved to the model
//   task.before_forward_query();
//   const Tensor scores = task(query_data, FewShotMode::query);
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/parallel/scatter.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

struct MetaTestParallelOptions {
  std::int64_t dim = 0;  // that of scatter. There is one device, so a tensor stays whole
};

// Holds the module by value. Each of the four calls below scatters its arguments to the device of the module's first
// parameter (cpu without one), which is looked up at every call; calls the module's function of the same name; and
// returns what that returns. No arguments are fine; a DataContainer must hold one group. Nothing is communicated, so
// ranks may meta-test different tasks, or different numbers of them.
//
// deep_copy of a wrapper gives one that is independent of it: parameters, buffers, modes, and whatever the module keeps
// by value. A Tensor that the module keeps without listing it in members() is a handle: it starts on the same elements,
// and is independent where the module assigns it, as the modules in fewshot/ do; a module that writes into its elements
// makes them a Buffer instead.
template <IsModule M>
class MetaTestParallel : public Module<MetaTestParallel<M>> {
 public:
  explicit MetaTestParallel(M module, const MetaTestParallelOptions& options = {})
      : module_(std::move(module)), options_(options) {}

  const M& module() const { return module_; }
  M& module() { return module_; }
  const ModuleBase* wrapped_module() const override { return &module_; }
  std::int64_t dim() const { return options_.dim; }
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
    const std::array<Device, 1> devices{device()};
    // Decayed, so that a literal is kept as a pointer.
    auto pieces = scatter_pieces(std::tuple<std::decay_t<const Args&>...>(args...), devices, options_.dim);
    return std::apply(function, std::move(pieces.values.at(0)));
  }

  M module_;
  MetaTestParallelOptions options_;
};

}  // namespace lockstep
