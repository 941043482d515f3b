// The signature of a module's forward.
#pragma once

#include <span>
#include <type_traits>

namespace lockstep::detail {

template <class F>
struct MemberSignature {
  static_assert(!std::is_same_v<F, F>, "forward must be a const member function");
};
template <class C, class R, class... Args>
struct MemberSignature<R (C::*)(Args...) const> {
  using type = R(Args...);
};
template <class C, class R, class... Args>
struct MemberSignature<R (C::*)(Args...) const noexcept> {
  using type = R(Args...);
};

template <class M>
concept HasOneForward = requires {
  &M::forward;
};
template <class M>
struct ForwardSignature {
  static_assert(HasOneForward<M>,
                "forward is overloaded or a template: name the signature that is meant, as in "
                "DataParallel<Net, Tensor(Tensor)>");
  using type = void;
};
template <HasOneForward M>
struct ForwardSignature<M> : MemberSignature<decltype(&M::forward)> {};

// Does not compile where forward is overloaded or a template: then the signature must be given.
template <class M>
using SignatureOf = typename ForwardSignature<M>::type;

template <class T>
inline constexpr bool is_span = false;
template <class T, std::size_t N>
inline constexpr bool is_span<std::span<T, N>> = true;
template <class T>
concept IsValueArgument = !is_span<T>;

}  // namespace lockstep::detail
