// Elements as unsigned integers in the same order, for sorting: NaN comes last, and -0 equals 0.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep/kernels/functors.h"

namespace lockstep::kernels {

template <class T>  // the type in which an element computes
using SortKey = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

// Bits that keys use.
template <class T>
inline constexpr int kSortKeyBits = sizeof(T) == 1 ? 8 : static_cast<int>(sizeof(T)) * 8;

template <class T>
LOCKSTEP_HD inline SortKey<T> sort_key(T x, bool descending) {
  using Key = SortKey<T>;
  constexpr Key kSign = Key(1) << (sizeof(Key) * 8 - 1);
  constexpr Key kAll = kSortKeyBits<T> == 8 ? Key(0xff) : static_cast<Key>(~Key(0));
  Key key;
  if constexpr (std::is_floating_point_v<T>) {
    if (x != x) {
      key = kAll;
    } else {
      if (x == T(0)) x = T(0);
      std::memcpy(&key, &x, sizeof key);
      key = key & kSign ? static_cast<Key>(~key) : static_cast<Key>(key | kSign);
    }
  } else if constexpr (std::is_signed_v<T>) {
    constexpr Key kSignOfT = Key(1) << (kSortKeyBits<T> - 1);
    key = (static_cast<Key>(x) & kAll) ^ kSignOfT;
  } else {
    key = static_cast<Key>(x);
  }
  return descending ? static_cast<Key>(kAll - key) : key;
}

}  // namespace lockstep::kernels
