// Sharded trainings end with the bits of replicated ones.
#include "parallel/sharding/support.h"

using namespace parallel_test;

TEST_CASE("fully sharded ranks end with the bits of replicated ones") {
  struct Way {
    const char* name;
    FullyShardedOptions options;
  };
  const std::vector<Way> ways = {
      {"one unit", {}},
      {"blocks", {.wrap = wrap_modules<Block>()}},
      {"layers in blocks", {.wrap = wrap_modules<Block, Layer>()}},
      {"by size, without prefetch", {.wrap = wrap_by_size(200), .prefetch = false}},
      {"one in flight", {.wrap = wrap_modules<Layer>(), .units_in_flight = 1}},
      {"stage 2", {.wrap = wrap_modules<Block>(), .reshard_after_forward = false}},
  };
  for (const auto& [name, make] : communicators())
    for (const int ranks : {1, 2, 3, 4}) {
      if (support::watched() && ranks != 3) continue;
      INFO(name << ", " << ranks << " ranks");
      const auto expected = run_ranks(
          ranks, [](Communicator& c) { return train_replicated(c, Tower(), adam(), steps()); }, {.make = make});
      for (std::size_t w = 0; w < ways.size(); ++w) {
        if (make && w % 2 == 0) continue;
        const Way& way = ways[w];
        INFO(way.name);
        const auto result =
            run_ranks(ranks, [&](Communicator& c) { return train_sharded(c, Tower(), adam(), steps(), way.options); },
                      {.make = make});
        CHECK(result == expected);  // each rank with statistics of its own
      }
    }
}

TEST_CASE("sharded trainings with clipped gradients are those of replicated ones but for rounding") {
  // A bias before a norm has a gradient of rounding alone, which Adam must not divide by its own size.
  constexpr double kEps = 0.01;
  for (const double limit : {0.01, 100.0}) {
    const auto expected =
        run_ranks(4, [&](Communicator& c) { return train_replicated(c, Tower(), adam(kEps), steps(), limit); });
    const auto result = run_ranks(4, [&](Communicator& c) {
      return train_sharded(c, Tower(), adam(kEps), steps(), {.wrap = wrap_modules<Block>()}, limit);
    });
    for (std::size_t r = 0; r < 4; ++r) CHECK(largest_difference(result[r], expected[r]) <= 1e-6);
  }
}
