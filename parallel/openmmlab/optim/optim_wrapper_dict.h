// OptimWrapperDict: several OptimWrappers by name, for models whose parts have optimizers of their own (a GAN). After
// mmengine's class.
//
//   OptimWrapperDict optims;
//   optims.add("generator", std::make_unique<OptimWrapper>(Adam(gan.generator.parameters(), {.lr = 1e-4})));
//   optims.add("discriminator", std::make_unique<OptimWrapper>(Adam(gan.discriminator.parameters(), {.lr = 4e-4})));
//   optims["generator"].update_params(loss);
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/optim/optim_wrapper.h"

namespace lockstep {

// Can be moved, not copied.
class LOCKSTEP_API OptimWrapperDict : public OptimWrapper {
 public:
  using Item = std::pair<std::string, std::unique_ptr<OptimWrapper>>;
  OptimWrapperDict() : OptimWrapper(WithoutOptimizer{}) {}
  // Throws InvalidArgument for a name that is empty, has a dot in it (names of states have) or comes twice, and for no
  // wrapper.
  explicit OptimWrapperDict(std::vector<Item> items);
  OptimWrapperDict(OptimWrapperDict&&) = default;
  OptimWrapperDict& operator=(OptimWrapperDict&&) = default;
  void add(std::string name, std::unique_ptr<OptimWrapper> wrapper);

  // The wrapper of that name. Throws InvalidArgument that lists the names there are.
  const OptimWrapper& at(std::string_view name) const;
  OptimWrapper& at(std::string_view name) {
    return const_cast<OptimWrapper&>(std::as_const(*this).at(name));  // NOLINT: *this is not const
  }
  OptimWrapper& operator[](std::string_view name) { return at(name); }
  bool contains(std::string_view name) const;
  std::vector<std::string> names() const;
  std::size_t count() const { return items_.size(); }
  // Over names and wrappers, in the order in which they were added.
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  // Of all wrappers; rates and momentums as "name.lr" and "name.momentum", states as "name." and the wrapper's name.
  void zero_grad() override;
  void initialize_count_status(const ModuleBase& model, std::int64_t init_counts, std::int64_t max_counts) override;
  NamedNumbers get_lr() const override;
  NamedNumbers get_momentum() const override;
  std::vector<NamedTensor> state_dict() const override;
  // Throws InvalidArgument, before anything is changed, for names of no wrapper here and for what a wrapper throws.
  void load_state_dict(const std::vector<NamedTensor>& state) override;

  void for_each_optimizer(const OptimizerFunction& f) override;

  // What each optimizer does for itself: NotSupported, which says so. So is optim_context.
  void update_params(const Tensor& loss) override;
  Tensor scale_loss(const Tensor& loss) const override;
  void backward(const Tensor& loss) override;
  void step() override;
  bool should_update() const override;
  bool should_sync() const override;

 protected:
  void check_context() const override;

 private:
  [[noreturn]] void refuse(const char* call) const;
  NamedNumbers prefixed(NamedNumbers (OptimWrapper::*numbers)() const) const;
  std::string listed() const;

  std::vector<Item> items_;
};

}  // namespace lockstep
