// What NCCL ranks leave for each other in the store.
#if __has_include(<nccl.h>)
#include "lockstep/parallel/comm/nccl/nccl_out_of_band.h"

#include "support/catch.h"

using namespace lockstep;

TEST_CASE("nccl: the words of a failure come back as they were") {
  for (const CommError& error :
       {CommError(-1, "store", "the store is gone"), CommError(3, "all_reduce", "first line\nsecond: line\n"),
        CommError(0, "send", ""), CommError(2, "abort", "rank 2 aborted: out of ideas"),
        CommError(2, "abort", "rank 2: rank 2 "), CommError(1'000'000, "make_nccl_communicator", "[x] rank 1: y")}) {
    const auto store = make_local_store();
    nccl::OutOfBand(store, 0, 2).report(error);
    const std::optional<CommError> got = nccl::OutOfBand(store, 1, 2).failure();
    REQUIRE(got);
    CHECK(got->rank == error.rank);
    CHECK(got->collective == error.collective);
    CHECK(std::string(got->what()) == error.what());
  }
}
#endif
