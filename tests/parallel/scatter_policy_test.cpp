// How a batch is shared out among devices.
#include "lockstep/parallel/scatter_policy.h"

#include <numeric>

#include "parallel/support.h"

using namespace parallel_test;
using Shares = std::vector<std::int64_t>;

TEST_CASE("chunk: pieces of ceil(n / N), the last devices may get none") {
  const ScatterPolicy chunk;
  CHECK(chunk.shares(9, 4) == Shares{3, 3, 3, 0});
  CHECK(chunk.shares(10, 4) == Shares{3, 3, 3, 1});
  CHECK(chunk.shares(36, 7) == Shares{6, 6, 6, 6, 6, 6, 0});
  CHECK(chunk.shares(2, 5) == Shares{1, 1, 0, 0, 0});
  CHECK(chunk.shares(0, 3) == Shares{0, 0, 0});
  CHECK(ScatterPolicy::chunk().shares(8, 1) == Shares{8});
}

TEST_CASE("balanced: shares differ by one at most") {
  CHECK(ScatterPolicy::balanced().shares(9, 4) == Shares{3, 2, 2, 2});
  CHECK(ScatterPolicy::balanced().shares(2, 3) == Shares{1, 1, 0});
  CHECK(ScatterPolicy::balanced().shares(8, 4) == Shares{2, 2, 2, 2});
}

TEST_CASE("sizes: as given, or an error") {
  CHECK(ScatterPolicy::sizes({1, 0, 4}).shares(5, 3) == Shares{1, 0, 4});
  CHECK(missing(message_of<InvalidArgument>([] { ScatterPolicy::sizes({1, 4}).shares(5, 3); }), {"3", "[1, 4]"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] {
                  ScatterPolicy::sizes({1, 2, 4}).shares(5, 3);
                }),
                {"add up to 5", "[1, 2, 4]", "add up to 7"}) == "");
  CHECK_THROWS_AS(ScatterPolicy::sizes({-1, 6}), InvalidArgument);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS(ScatterPolicy::sizes({kMost, kMost}), InvalidArgument);
}

TEST_CASE("weights: in proportion, by largest remainder") {
  CHECK(ScatterPolicy::weights({1, 1, 2}).shares(8, 3) == Shares{2, 2, 4});
  CHECK(ScatterPolicy::weights({3, 2, 1}).shares(10, 3) == Shares{5, 3, 2});  // 5, 3.33, 1.67
  CHECK(ScatterPolicy::weights({1, 1, 1}).shares(4, 3) == Shares{2, 1, 1});   // the first of equals
  CHECK(ScatterPolicy::weights({0, 1, 0.5}).shares(3, 3) == Shares{0, 2, 1});
  CHECK(ScatterPolicy::weights({1, 1000}).shares(3, 2) == Shares{0, 3});
  CHECK(missing(message_of<InvalidArgument>([] {
                  ScatterPolicy::weights({1, 2}).shares(5, 3);
                }),
                {"3", "[1, 2]"}) == "");
  CHECK_THROWS_AS(ScatterPolicy::weights({0, 0}), InvalidArgument);
  CHECK_THROWS_AS(ScatterPolicy::weights({1, -1}), InvalidArgument);
  CHECK_THROWS_AS(ScatterPolicy::weights({1, std::numeric_limits<double>::quiet_NaN()}), InvalidArgument);
  CHECK_THROWS_AS(ScatterPolicy::weights({1e308, 1e308}), InvalidArgument);
  for (std::int64_t count = 0; count < 50; ++count) {
    const Shares shares = ScatterPolicy::weights({0.1, 0, 0.7, 0.3, 0.3}).shares(count, 5);
    CHECK(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}) == count);
    CHECK(shares[1] == 0);
  }
}

TEST_CASE("weights: counts that a double cannot hold are divided without a rest") {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::vector<double>> all{{1}, {0, 1}, {1, 1}, {1, 1, 1}, {3, 1e-30}, {0.1, 0, 0.7, 0.3, 0.3}};
  for (const std::int64_t count : {(std::int64_t{1} << 53) + 1, (std::int64_t{1} << 53) + 3, kMost - 1, kMost}) {
    for (const std::vector<double>& weights : all) {
      const Shares shares = ScatterPolicy::weights(weights).shares(count, static_cast<int>(weights.size()));
      std::int64_t left = count;
      for (std::size_t i = 0; i < shares.size(); ++i) {
        CHECK((shares[i] >= 0 && shares[i] <= left));
        CHECK((weights[i] > 0 || shares[i] == 0));
        left -= shares[i];
      }
      CHECK(left == 0);
    }
  }
}
