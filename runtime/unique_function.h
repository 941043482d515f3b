// A move-only `void()` callable (std::move_only_function does not exist before C++23). Small callables live inside it.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace lockstep {

class UniqueFunction {
 public:
  UniqueFunction() = default;

  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, UniqueFunction> && std::is_invocable_v<std::decay_t<F>&>)
      UniqueFunction(F&& callable) {  // NOLINT: implicit like std::function
    using Callable = std::decay_t<F>;
    if constexpr (sizeof(Callable) <= kInlineBytes && alignof(Callable) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Callable>) {
      ::new (static_cast<void*>(storage_)) Callable(std::forward<F>(callable));
      ops_ = &kInlineOps<Callable>;
    } else {
      ::new (static_cast<void*>(storage_)) Callable*(new Callable(std::forward<F>(callable)));
      ops_ = &kHeapOps<Callable>;
    }
  }
  UniqueFunction(UniqueFunction&& other) noexcept : ops_(std::exchange(other.ops_, nullptr)) {
    if (ops_) ops_->move(storage_, other.storage_);
  }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this != &other) {
      reset();
      ops_ = std::exchange(other.ops_, nullptr);
      if (ops_) ops_->move(storage_, other.storage_);
    }
    return *this;
  }
  ~UniqueFunction() { reset(); }

  explicit operator bool() const { return ops_ != nullptr; }
  void operator()() { ops_->call(storage_); }
  void reset() {
    if (ops_) std::exchange(ops_, nullptr)->destroy(storage_);
  }

 private:
  struct Ops {
    void (*call)(void*);
    void (*move)(void* to, void* from) noexcept;  // leaves `from` destroyed
    void (*destroy)(void*) noexcept;
  };
  template <class F>
  static constexpr Ops kInlineOps{[](void* p) { (*static_cast<F*>(p))(); },
                                  [](void* to, void* from) noexcept {
                                    ::new (to) F(std::move(*static_cast<F*>(from)));
                                    static_cast<F*>(from)->~F();
                                  },
                                  [](void* p) noexcept { static_cast<F*>(p)->~F(); }};
  template <class F>
  static constexpr Ops kHeapOps{[](void* p) { (**static_cast<F**>(p))(); },
                                [](void* to, void* from) noexcept { ::new (to) F*(*static_cast<F**>(from)); },
                                [](void* p) noexcept { delete *static_cast<F**>(p); }};

  static constexpr std::size_t kInlineBytes = 48;
  const Ops* ops_ = nullptr;
  alignas(std::max_align_t) std::byte storage_[kInlineBytes];
};

}  // namespace lockstep
