// Steps that are written out when this is compiled.
#pragma once

#include <type_traits>
#include <utility>

namespace lockstep::kernels::host {

// f(0), f(1), … as separate statements, with numbers that are known when this is compiled. A loop in a loop would not
// become vector code, and an array of registers that is unrolled late has become memory by then.
template <int kCount, class F>
[[gnu::always_inline]] inline void each(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

}  // namespace lockstep::kernels::host
