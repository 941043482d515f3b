// Ranks that are processes, and see different links: all take the choice of rank 0, and what one cannot read all hear
// of.
#include <sched.h>

#include <cstdlib>

#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/parallel/ddp/bucket_cap.h"
#include "parallel/ddp/support.h"
#include "processes/forked.h"
#include "support/devices.h"

using namespace parallel_test;

namespace {

struct Large : Module<Large> {
  Parameter weight{zeros({1'280'000})};  // f32: 5.12 MB
  Tensor forward(const Tensor& x) const { return x; }
  void members(Members& m) override { m("weight", weight); }
};

constexpr const char* kNoNetwork = "no network of its own";

// The limit that each rank has. `apart`: this many of the last ranks have a network of their own each, as on another
// machine; kNoNetwork where the system does not give it.
std::vector<std::string> limits(const std::vector<const char*>& links, int apart = 0) {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const int ranks = static_cast<int>(links.size());
  return processes::fork_ranks(ranks, [&](int rank) {
    ::setenv("LOCKSTEP_HOST_LINK", links[static_cast<std::size_t>(rank)], 1);
    ::setenv("LOCKSTEP_NETWORK_GBITS", "3200", 1);
    const auto communicator =
        make_process_communicator(store, rank, ranks, support::first_devices(ranks)[static_cast<std::size_t>(rank)],
                                  {.timeout = Milliseconds(60'000)});
    // Now that they have met.
    const bool other = rank >= ranks - apart;
    const bool moved = !other || ::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
    const DistributedDataParallel<Large> net(Large(), *communicator, {.bucket_cap_mb = kAutoBucketCap});
    return moved ? std::to_string(net.logging_data().bucket_cap_bytes) : kNoNetwork;
  });
}

}  // namespace

TEST_CASE("ranks that see different links take rank 0's choice of buckets") {
  const auto all = [](int count) { return std::vector<std::string>(3, std::to_string(count * (64 << 10))); };
  CHECK(limits({"nvlink", "memory", "pcie"}) == all(25));
  CHECK(limits({"memory", "nvlink", "nvlink"}) == all(16));
  for (const std::string& said : limits({"nvlink", "nvlink", "isdn"}))
    CHECK(missing(said, {"threw: ", "expected memory, pcie or nvlink, got 'isdn'"}) == "");
}

TEST_CASE("ranks on several machines choose buckets for the network between them") {
  const auto chosen = [](int hosts) {
    return std::vector<std::string>(
        3, std::to_string(detail::choose_bucket_cap(
               {.bytes = 5'120'000, .ranks = 3, .hosts = hosts, .links = {detail::HostLink::nvlink, 3200}})));
  };
  REQUIRE(chosen(1) != chosen(2));
  REQUIRE(chosen(2) != chosen(3));
  const std::vector<const char*> links(3, "nvlink");
  CHECK(limits(links) == chosen(1));
  for (const int apart : {1, 2}) {
    const std::vector<std::string> said = limits(links, apart);
    if (said.back() == kNoNetwork)
      WARN("skipped: " << kNoNetwork);
    else
      CHECK(said == chosen(1 + apart));
  }
}
