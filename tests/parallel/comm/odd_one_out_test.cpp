#include "lockstep/parallel/comm/odd_one_out.h"

#include <vector>

#include "support/catch.h"

using lockstep::detail::odd_one_out;

TEST_CASE("of members that are not all the same, the first that differs from most is the odd one") {
  struct Case {
    std::vector<int> values;
    int odd, usual;
  };
  for (const Case& c : std::vector<Case>{{{5, 6}, 1, 0},
                                         {{5, 6, 6}, 0, 1},
                                         {{6, 5, 6}, 1, 0},
                                         {{6, 6, 5}, 2, 0},
                                         {{5, 5, 6, 6}, 2, 0},
                                         {{5, 5, 6, 6, 6}, 0, 2},  // its neighbour is as odd
                                         {{5, 4, 6, 6}, 0, 2},
                                         {{1, 2, 3}, 1, 0}}) {
    const auto found = odd_one_out(static_cast<int>(c.values.size()), [&](int a, int b) {
      return c.values[static_cast<std::size_t>(a)] == c.values[static_cast<std::size_t>(b)];
    });
    REQUIRE(found);
    CHECK(found->odd == c.odd);
    CHECK(found->usual == c.usual);
  }
  CHECK(!odd_one_out(3, [](int, int) { return true; }));
  CHECK(!odd_one_out(1, [](int, int) { return true; }));
  CHECK(!odd_one_out(0, [](int, int) { return true; }));
}
