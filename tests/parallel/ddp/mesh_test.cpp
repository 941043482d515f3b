// Several modules in one step over the groups of a mesh.
#include "parallel/ddp/mesh_scenarios.h"
#include "support/catch.h"

using namespace parallel_test;

TEST_CASE("ddp: modules along the rows and columns of a mesh, and over all ranks, in one backward") {
  const std::vector<Doubles> expected = train_mesh_alone();
  for (int round = 0; round < 3; ++round) {
    const std::vector<Doubles> got = run_ranks(kMeshRanks, train_on_mesh);
    for (std::size_t r = 0; r < got.size(); ++r) {
      INFO("rank " << r);
      CHECK(largest_difference(got[r], expected[r]) <= 1e-10);
    }
  }
  // The rows and columns have indeed learned something of their own.
  CHECK(largest_difference(expected[0], expected[1]) > 1e-3);
  CHECK(largest_difference(expected[0], expected[2]) > 1e-3);
}
