// Who is to blame where ranks do not agree. Private to the library.
#pragma once

#include <optional>

namespace lockstep::detail {

struct OddOneOut {
  int odd, usual;  // members that differ
};

// Of `count` members that are not all the same, the first that differs from most: from the largest group of equals, of
// groups as large from the one with the lowest member. `usual` is the first of that group. Everybody who asks gets the
// same answer.
template <class Same>
std::optional<OddOneOut> odd_one_out(int count, Same&& same) {
  int usual = 0, most = 0;
  for (int m = 0; m < count; ++m) {
    int equals = 0;
    for (int other = 0; other < count; ++other) equals += same(m, other);
    if (equals > most) usual = m, most = equals;
  }
  for (int m = 0; m < count; ++m)
    if (!same(usual, m)) return OddOneOut{m, usual};
  return std::nullopt;
}

}  // namespace lockstep::detail
