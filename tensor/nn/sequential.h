// A chain of modules, each of which maps one tensor to one tensor.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "lockstep/kernels/activation.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

class BatchNorm1d;
class BatchNorm2d;
class ReLU;

// What can stand in a chain.
template <class M>
concept UnaryModule = IsModule<M> && std::copy_constructible<M> && requires(const M& module, const Tensor& x) {
  { module(x) } -> std::convertible_to<Tensor>;
};

// Holds its modules by value, under the names "0", "1", …. A copy shares their parameters, as a copy of any module
// does. A BatchNorm1d or BatchNorm2d and the ReLU behind it are computed as one (BatchNorm::activated), unless one of
// them has hooks.
class LOCKSTEP_API Sequential : public Module<Sequential> {
 public:
  Sequential() = default;
  template <UnaryModule... M>
  requires(sizeof...(M) > 1 || !(std::same_as<M, Sequential> && ...)) explicit Sequential(M... modules) {
    (push_back(std::move(modules)), ...);
  }
  Sequential(const Sequential& other);
  Sequential(Sequential&&) = default;
  Sequential& operator=(Sequential other) noexcept;
  ~Sequential() override = default;

  template <UnaryModule M>
  void push_back(M module) {
    items_.push_back(std::make_unique<HolderOf<M>>(std::move(module)));
  }

  Tensor forward(const Tensor& x) const;
  void members(Members& m) override;

  std::size_t count() const { return items_.size(); }
  // Throws InvalidArgument when there is no such module.
  ModuleBase& operator[](std::size_t index) { return holder(index).module(); }
  const ModuleBase& operator[](std::size_t index) const { return holder(index).module(); }
  // The module at `index` by its type; throws InvalidArgument when it is of another.
  template <UnaryModule M>
  M& at(std::size_t index) {
    Holder& found = holder(index);
    if (found.type() != type_tag<M>()) fail_type(index);
    return static_cast<HolderOf<M>&>(found).held;
  }
  template <UnaryModule M>
  const M& at(std::size_t index) const {
    return const_cast<Sequential*>(this)->at<M>(index);
  }

 private:
  struct Holder {
    virtual ~Holder() = default;
    virtual Tensor call(const Tensor& x) const = 0;
    // The relu of its result, by a norm that computes it by the way; none from others.
    virtual std::optional<Tensor> call_with_relu(const Tensor& x) const = 0;
    virtual bool is_relu() const = 0;
    virtual ModuleBase& module() = 0;
    virtual const void* type() const = 0;
    virtual std::unique_ptr<Holder> clone() const = 0;
  };
  // An address of its own for each type.
  template <class M>
  static const void* type_tag() {
    static constexpr char kTag = 0;
    return &kTag;
  }
  template <class M>
  struct HolderOf final : Holder {
    explicit HolderOf(M module) : held(std::move(module)) {}
    Tensor call(const Tensor& x) const override { return held(x); }
    std::optional<Tensor> call_with_relu(const Tensor& x) const override {
      if constexpr (std::same_as<M, BatchNorm1d> || std::same_as<M, BatchNorm2d>)
        if (!held.has_hooks()) return held.activated(x, Activation::relu);
      return std::nullopt;
    }
    bool is_relu() const override { return std::same_as<M, ReLU>; }
    ModuleBase& module() override { return held; }
    const void* type() const override { return type_tag<M>(); }
    std::unique_ptr<Holder> clone() const override { return std::make_unique<HolderOf>(held); }
    M held;
  };

  Holder& holder(std::size_t index) const;
  [[noreturn]] static void fail_type(std::size_t index);

  std::vector<std::unique_ptr<Holder>> items_;
};

}  // namespace lockstep
