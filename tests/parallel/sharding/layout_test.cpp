// Where parts lie, and who owns what.
#include "lockstep/parallel/sharding/partition.h"
#include "lockstep/parallel/sharding/shard_layout.h"
#include "parallel/support.h"

using namespace parallel_test;

TEST_CASE("the parts of a layout are its tensors, each element once") {
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const std::vector<std::int64_t>& counts :
         std::vector<std::vector<std::int64_t>>{{1}, {10}, {64, 1, 63}, {1000, 3, 0, 129}, {5, 5, 5, 5, 5}}) {
      const ShardLayout layout(counts, 4, ranks);
      INFO(ranks << " ranks, " << counts.size() << " tensors, a part of " << layout.shard);
      CHECK(layout.shard % 4 == 0);
      CHECK(layout.total() == layout.shard * ranks);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        CHECK(layout.whole[i].begin % 4 == 0);
        std::int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const ShardRange kept = layout.kept(i, rank);
          if (kept.count == 0) continue;
          CHECK(kept.begin == next);
          next = kept.end();
          CHECK(layout.place(i, rank) + rank * layout.shard == layout.whole[i].begin + kept.begin);
          CHECK(layout.place(i, rank) + kept.count <= layout.shard);
        }
        CHECK(next == counts[i]);
      }
    }
}

TEST_CASE("ten elements over eight ranks leave the last ranks padding") {
  const std::int64_t counts[] = {10};
  const ShardLayout layout(counts, 1, 8);
  CHECK(layout.shard == 2);
  CHECK(layout.kept(0, 4) == ShardRange{8, 2});
  for (const int rank : {5, 6, 7}) CHECK(layout.kept(0, rank).count == 0);
}

TEST_CASE("the largest goes first, to the rank that has the least") {
  std::vector<std::int64_t> totals(3);
  CHECK(partition_by_size(std::vector<std::int64_t>{1, 9, 5, 5, 4}, totals) == std::vector<int>{2, 0, 1, 2, 1});
  CHECK(totals == std::vector<std::int64_t>{9, 9, 6});
  // Totals carry over, and of equal ones the lowest rank gets it.
  CHECK(partition_by_size(std::vector<std::int64_t>{3, 1}, totals) == std::vector<int>{2, 0});
  std::vector<std::int64_t> none(4);
  CHECK(partition_by_size(std::vector<std::int64_t>{7}, none) == std::vector<int>{0});
}
