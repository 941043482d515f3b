#include "lockstep/tensor/data/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "lockstep/tensor/data/random_engine.h"
#include "support/catch.h"

using namespace lockstep;
using Indices = std::vector<std::int64_t>;

namespace {

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}
Indices counting(std::int64_t count) {
  Indices all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

}  // namespace

static_assert(Sampler<SequentialSampler> && Sampler<RandomSampler> && Sampler<SubsetSampler> &&
              Sampler<WeightedRandomSampler> && BatchesOfIndices<BatchSampler<RandomSampler>>);

TEST_CASE("random engine: known numbers, unbiased bounds") {
  RandomEngine a(1, 2), b(1, 2), other(1, 3), another(2, 2);
  const std::uint64_t first = a();
  CHECK(first == b());
  CHECK(first != other());
  CHECK(first != another());
  CHECK(RandomEngine(0)() == 2077113891230206638u);  // must not change: saved runs depend on it
  std::vector<int> counts(3);
  for (int i = 0; i < 3000; ++i) ++counts[a.below(3)];
  for (const int count : counts) CHECK(std::abs(count - 1000) < 150);
  // A bound above 2^63: half of the raw numbers must be refused.
  const std::uint64_t bound = (std::uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) CHECK(a.below(bound) < bound);
  CHECK_THROWS_AS(a.below(0), InvalidArgument);
  for (int i = 0; i < 100; ++i) {
    const double x = a.uniform();
    CHECK((x >= 0 && x < 1));
  }
}

TEST_CASE("sampler: sequential") {
  CHECK(SequentialSampler(4).indices(0) == Indices{0, 1, 2, 3});
  CHECK(SequentialSampler(4).indices(7) == Indices{0, 1, 2, 3});
  CHECK(SequentialSampler(0).indices(0).empty());
  CHECK_THROWS_AS(SequentialSampler(-1), InvalidArgument);
}

TEST_CASE("sampler: random orders are permutations that seed and epoch decide") {
  const RandomSampler sampler(100, {.seed = 5});
  const Indices first = sampler.indices(0);
  CHECK(first == RandomSampler(100, {.seed = 5}).indices(0));
  CHECK(sorted(first) == counting(100));
  CHECK(first != counting(100));
  CHECK(first != sampler.indices(1));
  CHECK(first != RandomSampler(100, {.seed = 6}).indices(0));
  CHECK(RandomSampler(5, {.seed = 1}).indices(0) == RandomSampler(5, {.seed = 1}).indices(0));
  CHECK(RandomSampler(0).indices(0).empty());
  CHECK(RandomSampler(1).indices(3) == Indices{0});
}

TEST_CASE("sampler: every permutation of three is as likely as the others") {
  std::map<Indices, int> counts;
  const RandomSampler sampler(3);
  for (std::uint64_t epoch = 0; epoch < 6000; ++epoch) ++counts[sampler.indices(epoch)];
  CHECK(counts.size() == 6);
  for (const auto& [order, count] : counts) CHECK(std::abs(count - 1000) < 150);
}

TEST_CASE("sampler: random with fewer samples, and with replacement") {
  const RandomSampler few(10, {.samples = 4});
  CHECK(few.size() == 4);
  const Indices drawn = few.indices(0);
  CHECK(std::set(drawn.begin(), drawn.end()).size() == 4);
  const RandomSampler again(3, {.replacement = true, .samples = 300});
  const Indices repeated = again.indices(0);
  CHECK(repeated.size() == 300);
  for (std::int64_t i = 0; i < 3; ++i) CHECK(std::count(repeated.begin(), repeated.end(), i) > 60);
  CHECK_THROWS_AS(RandomSampler(3, {.samples = 4}), InvalidArgument);
  CHECK_THROWS_AS(RandomSampler(-1), InvalidArgument);
  CHECK_THROWS_AS(RandomSampler(3, {.samples = -1}), InvalidArgument);
  CHECK_THROWS_AS(RandomSampler(0, {.replacement = true, .samples = 1}), InvalidArgument);
}

TEST_CASE("sampler: subsets") {
  CHECK(SubsetSampler({7, 2, 7}).indices(3) == Indices{7, 2, 7});
  const SubsetSampler shuffled(counting(50), 1);
  CHECK(sorted(shuffled.indices(0)) == counting(50));
  CHECK(shuffled.indices(0) != shuffled.indices(1));
}

TEST_CASE("sampler: weighted") {
  const WeightedRandomSampler with({0, 1, 3, 0}, 4000);
  const Indices drawn = with.indices(0);
  CHECK(drawn == WeightedRandomSampler({0, 1, 3, 0}, 4000).indices(0));
  CHECK(drawn != with.indices(1));
  const auto count = [&](std::int64_t index) { return std::count(drawn.begin(), drawn.end(), index); };
  CHECK((count(0) == 0 && count(3) == 0));
  CHECK(std::abs(count(1) - 1000) < 150);

  int first_is_heavy = 0;
  const WeightedRandomSampler without({1, 0, 9, 0}, 2, {.replacement = false});
  for (std::uint64_t epoch = 0; epoch < 1000; ++epoch) {
    const Indices both = without.indices(epoch);
    REQUIRE(sorted(both) == Indices{0, 2});
    first_is_heavy += both[0] == 2;
  }
  CHECK(std::abs(first_is_heavy - 900) < 50);

  const double infinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(WeightedRandomSampler({1, -1}, 1), InvalidArgument);
  CHECK_THROWS_AS(WeightedRandomSampler({1, infinity}, 1), InvalidArgument);
  CHECK_THROWS_AS(WeightedRandomSampler({1, std::nan("")}, 1), InvalidArgument);
  CHECK_THROWS_AS(WeightedRandomSampler({1e308, 1e308}, 1), InvalidArgument);
  CHECK_THROWS_AS(WeightedRandomSampler({0, 0}, 1), InvalidArgument);
  CHECK_THROWS_AS(WeightedRandomSampler({}, 1), InvalidArgument);
  CHECK_THROWS_AS(WeightedRandomSampler({1, 0}, 2, {.replacement = false}), InvalidArgument);
}

TEST_CASE("sampler: batches and their uneven end") {
  using Batches = std::vector<Indices>;
  const BatchSampler keep(SequentialSampler(5), 2);
  CHECK(keep.size() == 3);
  CHECK(keep.batches(0) == Batches{{0, 1}, {2, 3}, {4}});
  const BatchSampler drop(SequentialSampler(5), 2, true);
  CHECK(drop.size() == 2);
  CHECK(drop.batches(0) == Batches{{0, 1}, {2, 3}});
  CHECK(BatchSampler(SequentialSampler(4), 2, true).size() == 2);
  CHECK(BatchSampler(SequentialSampler(4), 9).batches(0) == Batches{{0, 1, 2, 3}});
  CHECK(BatchSampler(SequentialSampler(4), 9, true).batches(0).empty());
  CHECK(BatchSampler(SequentialSampler(0), 9).size() == 0);
  CHECK_THROWS_AS(BatchSampler(SequentialSampler(4), 0), InvalidArgument);
}
